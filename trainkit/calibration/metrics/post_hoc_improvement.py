"""How much a change of the predictions, as by a calibrator, improves proper scores."""

import math
import warnings
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_flag
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.typing import InputKind
from trainkit.calibration._common import FLOOR, Predictions, Task, canonicalize, check_task
from trainkit.calibration.metrics._changes import PARTS, change_sums

__all__ = ["PostHocImprovement", "post_hoc_improvement"]

Score: TypeAlias = Literal["nll", "brier"]

SCORES: tuple[Score, ...] = ("nll", "brier")
Z = 1.96


class _Sums(NamedTuple):
    """Sums over rows.

    Args:
        scores: For each of the :data:`SCORES`: before the change, the difference, its square; (2, 3).
        changes: Weights of :data:`PARTS`.
        clamped: How many probabilities of targets were clamped, before and after the change.
        weight_sum: Sum of the weights.
    """

    scores: Tensor
    changes: Tensor
    clamped: Tensor
    weight_sum: Tensor


def _check(
    owner: str, task: Task, score: Score, relative: bool, return_parts: bool, input_kind: InputKind, ignore_index: int
) -> None:
    check_task(owner, task, input_kind, ignore_index)
    check_choice(owner, "score", score, SCORES)
    check_flag(owner, relative=relative, return_parts=return_parts)


def _scores(inputs: Predictions) -> tuple[Tensor, Tensor]:
    """Each of the :data:`SCORES` of every row, (2, M), and how many probabilities of targets were clamped."""
    t, p, values = inputs.target_probs, inputs.probs, inputs.values
    low = values.isneginf() if inputs.logarithmic else values < FLOOR
    log_p = torch.where(low, math.log(FLOOR), values if inputs.logarithmic else values.clamp_max(1).log())
    nll = -(t * log_p).sum(1)
    brier = ((p - t).square() + t * (1 - t)).sum(1)
    clamped = (low & (t > 0) & (inputs.weight.unsqueeze(1) > 0)).sum()
    return torch.stack([nll, brier]), clamped


def _sums(
    owner: str,
    logits: Tensor,
    new_logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    task: Task,
    input_kind: InputKind,
    ignore_index: int,
    validate_args: bool,
) -> _Sums:
    changes, weight_sum = change_sums(
        owner,
        logits,
        new_logits,
        target,
        weight,
        task=task,
        tie="keep",
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    rows, counts = [], []
    for given in (logits, new_logits):
        inputs = canonicalize(
            owner,
            given,
            target,
            weight,
            task=task,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=False,
        )
        scores, clamped = _scores(inputs)
        rows.append(scores.to(inputs.weight.dtype))
        counts.append(clamped)
    before, after = rows
    better = before - after
    sums = (torch.stack([before, better, better.square()], 1) * inputs.weight).sum(2)
    return _Sums(sums, changes, torch.stack(counts).sum(), weight_sum)


def _told(
    owner: str, sums: _Sums, score: Score, relative: bool, return_parts: bool, warn: bool = True
) -> Tensor | dict[str, Tensor]:
    if warn and sums.clamped:
        message = f"{owner}: {int(sums.clamped)} probabilities of targets below {FLOOR:g} were clamped to it"
        warnings.warn(message, UserWarning, stacklevel=3)
    means = mean_or_nan(owner, sums.scores, sums.weight_sum, warn=warn)
    parts: dict[str, Tensor] = {}
    for name, (before, better, square) in zip(SCORES, means, strict=True):
        error = ((square - better.square()).clamp_min(0) / sums.weight_sum).sqrt()
        parts[name] = better
        parts[f"{name}_relative"] = torch.where(before > 0, better / before, torch.nan)
        parts[f"{name}_stderr"] = error
        parts[f"{name}_low"], parts[f"{name}_high"] = better - Z * error, better + Z * error
    if not return_parts:
        return parts[f"{score}_relative" if relative else score]
    shares = dict(zip(PARTS, sums.changes / sums.weight_sum, strict=True))
    parts["accuracy"] = shares["wrong_to_right"] - shares["right_to_wrong"]
    parts["change_rate"] = shares["changed"]
    return parts


@torch.no_grad()
def post_hoc_improvement(
    logits: Tensor,
    new_logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    score: Score = "nll",
    relative: bool = False,
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`PostHocImprovement`."""
    owner = "post_hoc_improvement"
    _check(owner, task, score, relative, return_parts, input_kind, ignore_index)
    sums = _sums(
        owner,
        logits,
        new_logits,
        target,
        weight,
        task=task,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return _told(owner, sums, score, relative, return_parts)


class PostHocImprovement(StreamingMetric):
    r"""By how much a change of the predictions, as by a calibrator, lowers a proper score; above zero is better.

    Use it to rank calibrators: a calibration error can fall while the probabilities get worse, a proper score can't.
    The rows are compared in pairs, so that the interval is much narrower than those of the two scores.

    .. math:: \mathrm{PHI} = \frac{1}{W} \sum_i w_i d_i, \quad d_i = S(p_i, y_i) - S(q_i, y_i), \quad
        \mathrm{stderr} = \sqrt{\frac{1}{W} \Big( \frac{1}{W} \sum_i w_i d_i^2 - \mathrm{PHI}^2 \Big)}

    with p the predictions before the change, q those after it and W the sum of the weights.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        score: S: ``"nll"``, the negative log likelihood, or ``"brier"``, the full form of the Brier score.
        relative: Divide by the score before the change.
        return_parts: Give a dict with both scores, their intervals and what became of the predicted classes.
        input_kind: What ``logits`` and ``new_logits`` hold: ``"logits"``, ``"probs"`` or ``"log_probs"``; not guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: before the change, (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...)
          for binary
        - new_logits: after the change, as logits
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of ``nll`` and ``brier``, each also with ``_relative``,
          ``_stderr``, ``_low`` and ``_high`` (the 95% interval), of ``accuracy`` (after less before) and of
          ``change_rate``, as :class:`TopOneChangeRate`; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import PostHocImprovement
        >>> metric = PostHocImprovement(return_parts=True)
        >>> logits = torch.tensor([[4.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 2.0]])
        >>> metric.update(logits, logits / 2, torch.tensor([0, 2, 2]))
        >>> {name: round(value.item(), 4) for name, value in metric.compute().items() if name in ("nll", "nll_low")}
        {'nll': 0.2368, 'nll_low': -0.5562}

    Note:
        Defined from the abstract, since the paper's text was out of reach. The interval is normal; it takes weights
        for numbers of rows, and the standard error is too small for a handful of rows and 0 for a single one. Of
        probabilities below 1e-12 the logarithm is that of 1e-12, with one warning. A target of probabilities gives
        expected scores. ``accuracy`` takes a class that stays among the largest for unchanged. The relative
        improvement of a score of 0 is nan. State: thirteen sums, exact over any split into batches and ranks; fp64
        (fp32 on mps). Nothing to average gives nan and a warning. Without gradients.

    References:
        Berta et al., "CalArena: A Large-Scale Post-Hoc Calibration Benchmark", 2026. arXiv:2605.30188
    """

    is_differentiable = False
    higher_is_better = True

    scores: Tensor
    changes: Tensor
    clamped: Tensor
    weight_sum: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        score: Score = "nll",
        relative: bool = False,
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        _check("PostHocImprovement", task, score, relative, return_parts, input_kind, ignore_index)
        self.task: Task = task
        self.score: Score = score
        self.relative = relative
        self.return_parts = return_parts
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.add_sums("scores", shape=(len(SCORES), 3))
        self.add_sums("changes", shape=(len(PARTS),))
        self.add_counts("clamped")
        self.add_sums("weight_sum")
        self.tell_apart(task, input_kind, ignore_index)

    def update(self, logits: Tensor, new_logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        sums = _sums(
            "PostHocImprovement",
            logits,
            new_logits,
            target,
            weight,
            task=self.task,
            input_kind=self.input_kind,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )
        for name, value in sums._asdict().items():
            setattr(self, name, getattr(self, name) + value)

    def compute(self) -> Tensor | dict[str, Tensor]:
        sums = _Sums(self.scores, self.changes, self.clamped, self.weight_sum)
        return _told("PostHocImprovement", sums, self.score, self.relative, self.return_parts, warn=self.update_called)
