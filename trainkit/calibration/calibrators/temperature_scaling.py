"""Temperature scaling: one number that every logit is divided by."""

import torch
from torch import Tensor

from trainkit._core.checks import check_number, reject
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.calibrators._base import Calibrator
from trainkit.calibration.calibrators._rows import FitRows, Solution, fit_region, warn_of
from trainkit.calibration.calibrators._temperature import solve_temperature

__all__ = ["TemperatureScaling", "temperature_scaling"]


def _check(owner: str, t_min: float | None, t_max: float | None) -> None:
    for argument, bound in (("t_min", t_min), ("t_max", t_max)):
        if bound is not None:
            check_number(owner, argument, bound, minimum=0, open_minimum=True)
    if t_min is not None and t_max is not None and t_min >= t_max:
        reject(owner, "t_max", f"be > t_min={t_min}", t_max)


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
        solution = solve_temperature(rows, t_min, t_max)
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
        return solve_temperature(rows, self.t_min, self.t_max)

    def _transform(self, logits: Tensor) -> Tensor:
        return logits / self.temperature.to(logits.dtype)
