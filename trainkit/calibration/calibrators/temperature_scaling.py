"""Temperature scaling: one number that every logit is divided by."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit._core.checks import check_number, reject
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.calibrators._base import Calibrator
from trainkit.calibration.calibrators._rows import Block, FitRows, Solution, fit_region, warn_of

__all__ = ["TemperatureScaling", "temperature_scaling"]

REACH = 1e3
"""The default bounds are this factor below and above the spread of the logits."""

LONGEST_STEP = 3.0
"""Largest change of the logarithm of the temperature at once."""

MOST_ITERATIONS = 100


def _check(owner: str, t_min: float | None, t_max: float | None) -> None:
    for argument, bound in (("t_min", t_min), ("t_max", t_max)):
        if bound is not None:
            check_number(owner, argument, bound, minimum=0, open_minimum=True)
    if t_min is not None and t_max is not None and t_min >= t_max:
        reject(owner, "t_max", f"be > t_min={t_min}", t_max)


def _below_top(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Logits less the largest of their row, their mean under the target, and the mass of the target; by row."""
    z = block.logits - block.logits.amax(1, keepdim=True)
    if block.target.is_floating_point():
        return z, (z * block.target).sum(1), block.target.sum(1)
    return z, z.gather(1, block.target.unsqueeze(1)).squeeze(1), torch.ones_like(block.weight)


def _survey(block: Block) -> Tensor:
    """Sums of weights, targets, squared spread, logits of the targets, and the slope at an infinite temperature."""
    z, hit, mass = _below_top(block)
    mean = z.mean(1, keepdim=True)
    w = block.weight
    spread = w @ (z - mean).square().mean(1)
    return torch.stack([w.sum(), (w > 0).sum().to(w.dtype), spread, w @ hit, w @ (mass * mean.squeeze(1) - hit)])


def _derivatives(block: Block, u: float) -> Tensor:
    """Negative log-likelihood of softmax(u z) and its first two derivatives in u, summed over the rows."""
    z, hit, mass = _below_top(block)
    p = (u * z).exp_()
    total = p.sum(1)
    mean = p.mul_(z).sum(1) / total
    variance = (torch.linalg.vecdot(p, z) / total - mean.square()).clamp_min(0)
    w = block.weight
    return torch.stack([w @ (mass * total.log() - u * hit), w @ (mass * mean - hit), w @ (mass * variance)])


class _Found(NamedTuple):
    """The optimum, and why it is to be doubted, if it is."""

    temperature: float
    nll: float
    iterations: int = 1
    doubt: str = ""


def _search(
    derivatives: Callable[[float], Sequence[float]], start: float, low: float, high: float, precision: float
) -> _Found:
    """Least value of a convex function of u = 1/T for a temperature from ``low`` to ``high``.

    Newton steps in log u, of limited length, inside the bracket that the signs of the slope give; bisection where they
    leave it.
    """
    first, last = -math.log(high), -math.log(low)
    left, right = -math.inf, math.inf
    s = min(max(-math.log(start), first), last)
    for iteration in range(1, MOST_ITERATIONS + 1):
        u = math.exp(s)
        value, slope, curvature = derivatives(u)
        gradient = u * slope
        hessian = u * u * curvature + gradient
        left, right = (left, s) if gradient > 0 else (s, right)
        if gradient > 0 and s <= first:
            return _Found(high, value, iteration, f"the bound t_max={high:g} was reached")
        if gradient < 0 and s >= last:
            return _Found(low, value, iteration, f"the bound t_min={low:g} was reached")
        step = -gradient / hessian if hessian > 0 else math.copysign(math.inf, -gradient)
        step = min(max(step, -LONGEST_STEP), LONGEST_STEP)
        ahead = min(max(s + step, first), last)
        if abs(step) <= precision or right - left <= precision:
            # The error of this step is the square of its length, and it changes the value by half of gradient x step.
            return _Found(math.exp(-ahead), value + gradient * step / 2, iteration)
        s = ahead if left < ahead < right else (left + right) / 2
    return _Found(math.exp(-s), value, MOST_ITERATIONS, f"it did not converge in {MOST_ITERATIONS} iterations")


def _solve(rows: FitRows, t_min: float | None, t_max: float | None) -> Solution:
    figures = rows.total(_survey)
    weight, count, spread, hit, slope = figures.tolist()
    if not weight > 0:
        raise ValueError(f"{rows.owner}: target must hold an entry that counts, on some rank at least, got none")

    def derivatives(u: float) -> list[float]:
        means: list[float] = (rows.total(lambda block: _derivatives(block, u)) / weight).tolist()
        return means

    def settled(temperature: float, doubt: str) -> _Found:
        return _Found(temperature, derivatives(1 / temperature)[0], doubt=doubt)

    scale = math.sqrt(spread / weight)
    low = min((scale or 1) / REACH, t_max or math.inf) if t_min is None else t_min
    high = max((scale or 1) * REACH, low) if t_max is None else t_max
    if scale == 0:
        found = settled(min(max(1.0, low), high), "the logits of every row are equal, which no temperature changes")
    elif hit == 0:
        # Further out the slope underflows to zero, which a search would take for an optimum.
        found = settled(low, f"every target has the largest logit of its row; the bound t_min={low:g} was reached")
    elif slope >= 0:
        found = settled(high, f"the logits speak against the targets; the bound t_max={high:g} was reached")
    else:
        found = _search(derivatives, scale, low, high, math.sqrt(torch.finfo(figures.dtype).eps))
    doubt = f"{found.doubt}; the temperature is {found.temperature:g}" if found.doubt else ""
    fitted = {"temperature": figures.new_tensor(found.temperature)}
    return Solution(fitted, int(count), figures.new_tensor(found.nll), found.iterations, doubt)


def temperature_scaling(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    t_min: float | None = None,
    t_max: float | None = None,
    task: Task = "multiclass",
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`TemperatureScaling`: the fitted temperature, of this process alone."""
    owner = "temperature_scaling"
    _check(owner, t_min, t_max)
    rows = FitRows(
        owner,
        logits,
        target,
        weight,
        task=task,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
        sync=False,
    )
    with fit_region(owner, logits):
        solution = _solve(rows, t_min, t_max)
    warn_of(owner, solution)
    return solution.fitted["temperature"]


class TemperatureScaling(Calibrator):
    r"""Divides all logits by one temperature, fitted on held-out predictions.

    Use it first: one number mends the usual over-confidence of a trained network, cannot overfit, and leaves the order
    of the classes, and so the accuracy, as it is. Fit it on data that the network was not trained on.

    .. math:: p = \mathrm{softmax}(z / T), \qquad
        T = \arg\min_T \frac{1}{\sum_i w_i} \sum_i w_i \sum_k -t_{ik} \log p_{ik}

    with t the target as probabilities. In u = 1/T the problem is convex; it is solved by Newton steps on log u inside
    a bracket.

    Args:
        t_min: Least temperature; None takes a thousandth of the spread of the logits, the root of the mean square of
            their differences to the mean of their row.
        t_max: Largest temperature; None takes a thousand times that spread.
        task: ``"multiclass"``; ``"binary"`` and ``"multilabel"`` predictions are one number for each target,
            calibrated as sigmoid(z / T).
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that the fit leaves out.
        sync: Fit on several ranks to the rows of all of them.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel, (N, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; the shape of the logits for binary
          and multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: as logits; float32, or float64 for float64 logits

    Example:
        >>> import torch
        >>> from trainkit.calibration.calibrators import TemperatureScaling
        >>> logits = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 5.0], [2.0, 0.0]])
        >>> calibrator = TemperatureScaling().fit(logits, torch.tensor([0, 0, 1, 1]))
        >>> calibrator.temperature
        tensor(2.0425, dtype=torch.float64)
        >>> calibrator.predict_proba(logits[:1])
        tensor([[0.8764, 0.1236]])

    Note:
        The fit reads the rows in blocks, in float64 (float32 on mps) on the device of the logits, with autocast off:
        inputs of any precision give the fit of their exact values, and logits times a constant give the temperature
        times it. It has no random part. Probabilities below 1e-12 are raised to it, so that zeros have a logarithm.
        Where every target has the largest logit of its row, no temperature is small enough and the fit is ``t_min``;
        where the logits say less than chance it is ``t_max``; where all logits of each row are equal it is 1, or the
        bound next to it. Each warns, and ``converged`` is False. The least negative log-likelihood is not the least
        calibration error, which can grow. On several ranks the sums of a fit are over all of them, also for a rank
        without rows, and every rank gets the same temperature. The temperature is a constant to gradients, which flow
        to the logits. Under autocast the division is in float32.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. arXiv:1706.04599
    """

    argmax_preserving = True
    order_preserving = True
    translation_invariant = True
    supports_soft_targets = True

    temperature: Tensor

    def __init__(
        self,
        t_min: float | None = None,
        t_max: float | None = None,
        task: Task = "multiclass",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(task, input_kind, ignore_index, sync, validate_args)
        _check("TemperatureScaling", t_min, t_max)
        self.t_min = t_min
        self.t_max = t_max
        self.register_fitted("temperature", torch.tensor(1.0))

    def _solve(self, rows: FitRows) -> Solution:
        return _solve(rows, self.t_min, self.t_max)

    def _transform(self, logits: Tensor) -> Tensor:
        return logits / self.temperature.to(logits.dtype)
