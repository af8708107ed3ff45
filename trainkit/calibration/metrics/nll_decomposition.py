"""Negative log likelihood as what a temperature can mend, and what it can't."""

import math

import torch
from torch import Tensor

from trainkit._core.metric import RowMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit._core.typing import InputKind
from trainkit.calibration._common import FLOOR, Task, canonicalize, check_task
from trainkit.calibration.calibrators._rows import FitRows, fit_region
from trainkit.calibration.calibrators._temperature import solve_temperature

__all__ = ["NLLDecomposition", "nll_decomposition"]

PARTS = ("nll", "refinement", "calibration", "temperature")


def _rows(
    owner: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    task: Task,
    input_kind: InputKind,
    ignore_index: int,
    validate_args: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithms of probabilities, (M, K), targets, (M, 1) or (M, K), and weights above zero, (M,)."""
    inputs = canonicalize(
        owner,
        logits,
        target,
        weight,
        task=task,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    log_p = inputs.values if inputs.logarithmic else inputs.values.log()
    if input_kind != "logits":
        log_p = log_p.clamp(math.log(FLOOR), 0)
    own = inputs.target if inputs.target.is_floating_point() else inputs.target.unsqueeze(1)
    kept = inputs.weight > 0
    return log_p[kept], own[kept], inputs.weight[kept]


def _parts(owner: str, log_p: Tensor, target: Tensor, weight: Tensor, warn: bool) -> dict[str, Tensor]:
    if not len(weight):
        nothing = torch.zeros((), dtype=sum_dtype(weight.device), device=weight.device)
        return dict.fromkeys(PARTS, mean_or_nan(owner, nothing, nothing, warn=warn))
    hard = not target.is_floating_point()
    with fit_region(owner, log_p):
        rows = FitRows(
            owner,
            log_p,
            target.squeeze(1) if hard else target,
            weight,
            task="multiclass",
            input_kind="logits",
            ignore_index=-100,
            validate_args=False,
            sync=False,
        )
        solution = solve_temperature(rows)
    log_p = log_p.to(weight.dtype)
    shares = log_p.gather(1, target).squeeze(1) if hard else (target * log_p).sum(1)
    nll = -(weight @ shares) / weight.sum()
    found = (nll, solution.nll, nll - solution.nll, solution.fitted["temperature"])
    return dict(zip(PARTS, found, strict=True))


@torch.no_grad()
def nll_decomposition(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> dict[str, Tensor]:
    """Functional form of :class:`NLLDecomposition`."""
    owner = "nll_decomposition"
    check_task(owner, task, input_kind, ignore_index)
    rows = _rows(owner, logits, target, weight, task, input_kind, ignore_index, validate_args)
    return _parts(owner, *rows, warn=True)


class NLLDecomposition(RowMetric):
    r"""Negative log likelihood as the part that one temperature would mend and the part that it would leave.

    Use it to tell during training whether a network still learns to tell classes apart (refinement falls) while it
    grows over-confident (the calibration part rises), and to stop by the refinement where a temperature is fitted
    afterwards. Of two networks, the one with the lower refinement is better once both are calibrated.

    .. math:: \mathrm{NLL} = \underbrace{\min_T \mathrm{NLL}(T)}_{\text{refinement}}
        + \underbrace{\mathrm{NLL}(1) - \min_T \mathrm{NLL}(T)}_{\text{calibration}}, \qquad
        \mathrm{NLL}(T) = -\frac{1}{\sum_i w_i} \sum_i w_i \sum_k t_{ik} \log \mathrm{softmax}(z_i / T)_k

    with z the logits, or the logarithms of the probabilities, and t the target as probabilities.

    Args:
        task: ``"multiclass"``; ``"binary"`` and ``"multilabel"`` targets are two classes each, over all labels.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: a dict of ``nll``, ``refinement``, ``calibration`` and ``temperature``, each (); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import NLLDecomposition
        >>> metric = NLLDecomposition()
        >>> metric.update(torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 0, 1, 1]))
        >>> {name: round(value.item(), 4) for name, value in metric.compute().items()}
        {'nll': 1.0181, 'refinement': 0.5623, 'calibration': 0.4558, 'temperature': 3.641}

    Note:
        The temperature is fitted to the rows that it is judged by, so with few rows the refinement is a little too low;
        what other calibrators could mend beside a temperature counts as refinement. Where the targets have the largest
        logit in every row the least value is at the lowest temperature that :class:`TemperatureScaling` allows, and
        where the logits speak against the targets at the highest: the temperature tells. A probability below 1e-12 is
        raised to it. State: the logarithms of all probabilities, so memory grows with the data; exact over any split
        into batches and ranks. Nothing to average gives nan and a warning. Without gradients.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. arXiv:1706.04599
    """

    is_differentiable = False
    higher_is_better = None

    log_p: Tensor
    target: Tensor
    weight: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        check_task("NLLDecomposition", task, input_kind, ignore_index)
        self.task: Task = task
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.add_rows("log_p", "target", "weight")
        self.tell_apart(task, input_kind, ignore_index)

    def update(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        rows = _rows(
            "NLLDecomposition",
            logits,
            target,
            weight,
            self.task,
            self.input_kind,
            self.ignore_index,
            self.validate_args,
        )
        for name, part in zip(("log_p", "target", "weight"), rows, strict=True):
            self.append(name, part)

    def compute(self) -> dict[str, Tensor]:
        return _parts("NLLDecomposition", self.log_p, self.target, self.weight, warn=self.update_called)
