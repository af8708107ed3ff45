"""Calibration error inside of groups."""

import torch
from torch import Tensor

from trainkit._core.binning import BinSums, Closed
from trainkit._core.checks import check_choice, check_flag, check_integer
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._bin_gaps import Norm
from trainkit.calibration.metrics._binned import Scheme
from trainkit.calibration.metrics._grouped import (
    OneRow,
    check_groups,
    extremes,
    grouped_sums,
    in_pairs,
    one_row_scheme,
)

__all__ = ["PartitionedCalibrationError", "partitioned_calibration_error"]


def _check(owner: str, num_groups: int, norm: Norm, return_parts: bool) -> None:
    check_integer(owner, "num_groups", num_groups, minimum=1)
    check_choice(owner, "norm", norm, ("l1", "l2", "max"))
    check_flag(owner, return_parts=return_parts)


def _sums(
    owner: str,
    scheme: Scheme,
    num_groups: int,
    logits: Tensor,
    target: Tensor,
    groups: Tensor,
    weight: Tensor | None,
    validate_args: bool,
) -> Tensor:
    pairs = in_pairs(owner, scheme, logits, target, weight, "groups", groups, validate_args)
    check_groups(owner, groups, num_groups, validate_args)
    return grouped_sums(scheme, pairs, num_groups)


def _group_errors(sums: BinSums, norm: Norm) -> Tensor:
    """Binned error of every group, (G,), nan where there is nothing."""
    weight, score, hit = sums
    total = weight.sum(1, keepdim=True)
    filled, gaps = weight > 0, (hit - score).abs()
    if norm == "max":
        errors = torch.where(filled, gaps / weight, 0).amax(1)
    elif norm == "l2":
        errors = torch.where(filled, gaps.square() / weight / total, 0).sum(1).sqrt()
    else:
        errors = (gaps / total).sum(1)
    return torch.where(total.squeeze(1) > 0, errors, torch.nan)


def _told(owner: str, bins: Tensor, norm: Norm, return_parts: bool, warn: bool = True) -> Tensor | dict[str, Tensor]:
    sums = BinSums.of(bins)
    errors, count = _group_errors(sums, norm), sums.weight.sum(1)
    kept = count > 0
    error = mean_or_nan(owner, torch.where(kept, count * errors, 0).sum(), count.sum(), warn=warn)
    if not return_parts:
        return error
    least, largest = extremes(errors, kept)
    return {
        "error": error,
        "per_group": errors,
        "worst_group": largest,
        "max_gap": largest - least,
        "count": count,
    }


@torch.no_grad()
def partitioned_calibration_error(
    logits: Tensor,
    target: Tensor,
    *,
    groups: Tensor,
    weight: Tensor | None = None,
    num_groups: int,
    task: Task = "multiclass",
    n_bins: int = 15,
    norm: Norm = "l1",
    reduce: OneRow | None = None,
    closed: Closed = "left",
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`PartitionedCalibrationError`."""
    owner = "partitioned_calibration_error"
    _check(owner, num_groups, norm, return_parts)
    scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
    bins = _sums(owner, scheme, num_groups, logits, target, groups, weight, validate_args)
    return _told(owner, bins, norm, return_parts)


class PartitionedCalibrationError(StreamingMetric):
    r"""Mean over groups of the calibration error inside of each.

    Use it where probabilities have to hold for parts of the data, such as hospitals, languages or clusters of features:
    errors of opposite sign in two groups cancel in an ECE and don't here. With ``n_bins=1`` it asks only whether the
    mean confidence of each group is its accuracy.

    .. math:: \mathrm{PCE} = \sum_g \frac{W_g}{\sum_j W_j} \mathrm{CE}_g, \quad
        \mathrm{CE}_g = \sum_b \frac{W_{gb}}{W_g} \big| \mathrm{acc}_{gb} - \mathrm{conf}_{gb} \big|

    with W the weights in group g and in its bin b.

    Args:
        num_groups: Number of groups, G.
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        n_bins: Number of bins of equal width in each group.
        norm: ``"l1"``; ``"l2"`` for the root of the mean square, or ``"max"`` for the largest gap, in each group.
        reduce: ``"top_label"`` or ``"all"``, as in :class:`BinnedCalibrationError`. None is ``"top_label"`` for
            multiclass, else ``"all"``.
        closed: Where a score on an edge belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
        return_parts: Give a dict of the error and what it is made of, in place of the error.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target, groups and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - groups: int64, the group of each target, -1 for one that is left out
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of ``error``, ``worst_group`` (largest error of a group) and
          ``max_gap`` (largest less least) and of ``per_group`` and ``count`` (weights), (G,); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import ECE, PartitionedCalibrationError
        >>> p, target = torch.tensor([0.7, 0.7, 0.7, 0.7]), torch.tensor([1, 1, 1, 0])
        >>> metric = PartitionedCalibrationError(num_groups=2, task="binary", n_bins=5, input_kind="probs")
        >>> metric.update(p, target, groups=torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
        >>> ece = ECE(task="binary", n_bins=5, input_kind="probs")
        >>> ece(p, target)
        tensor(0.0500, dtype=torch.float64)

    Note:
        For l1 it is never below the ECE over the same bins, and equal where every bin errs to the same side in all
        groups. Groups are given, not learned as in the paper; an error of a small group is mostly noise, which raises
        the value. A group without targets has the error nan and counts in nothing else. State: sums over bins for
        each group in fp64 (fp32 on mps), exact over any split into batches and ranks. Nothing to average gives nan and
        a warning. Without gradients.

    References:
        Yang, Zhan and Gan, "Beyond Probability Partitions: Calibrating Neural Networks with Semantic Aware Grouping",
        NeurIPS 2023. arXiv:2306.04985
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    bins: Tensor

    def __init__(
        self,
        num_groups: int,
        task: Task = "multiclass",
        n_bins: int = 15,
        norm: Norm = "l1",
        reduce: OneRow | None = None,
        closed: Closed = "left",
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        owner = "PartitionedCalibrationError"
        _check(owner, num_groups, norm, return_parts)
        self._scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
        self.num_groups = num_groups
        self.task: Task = task
        self.n_bins = n_bins
        self.norm: Norm = norm
        self.reduce: OneRow | None = reduce
        self.closed: Closed = closed
        self.return_parts = return_parts
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.add_sums("bins", shape=(2, num_groups, n_bins, 2))
        self.tell_apart(self._scheme, num_groups)

    def update(self, logits: Tensor, target: Tensor, *, groups: Tensor, weight: Tensor | None = None) -> None:
        self.bins = self.bins + _sums(
            "PartitionedCalibrationError",
            self._scheme,
            self.num_groups,
            logits,
            target,
            groups,
            weight,
            self.validate_args,
        )

    def compute(self) -> Tensor | dict[str, Tensor]:
        return _told("PartitionedCalibrationError", self.bins, self.norm, self.return_parts, warn=self.update_called)
