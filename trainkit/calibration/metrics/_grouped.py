"""Scores with a number beside each target, such as its group: checks, and how the numbers follow the scores."""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.binning import Closed, cell_sums, equal_width_index
from trainkit._core.checks import check_choice, check_floating, check_same_shape, check_values, reject, values_checked
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task, by_label
from trainkit.calibration.metrics._binned import Rows, Scheme

__all__ = ["OneRow", "Paired", "check_groups", "extremes", "grouped_sums", "in_pairs", "one_row_scheme"]

OneRow: TypeAlias = Literal["top_label", "all"]
Paired: TypeAlias = Iterable[tuple[Rows, Tensor]]


def one_row_scheme(
    owner: str,
    task: Task,
    n_bins: int,
    reduce: OneRow | None,
    closed: Closed,
    input_kind: InputKind,
    ignore_index: int,
) -> Scheme:
    """Scores of all classes in one row of bins of equal width, checked."""
    if reduce is not None:
        check_choice(owner, "reduce", reduce, ("top_label", "all"))
    scheme = Scheme(
        task, None, n_bins, "equal_width", reduce, 0.0, closed, "split", True, input_kind, ignore_index, top_k=1
    )
    scheme.check(owner)
    return scheme


def check_groups(owner: str, groups: Tensor, num_groups: int, validate_args: bool) -> None:
    """Require indices of groups, or -1 for none."""
    if groups.dtype != torch.int64:
        reject(owner, "groups", "be int64", groups, TypeError)
    if values_checked(validate_args):
        allowed = f"be in [0, {num_groups}), or -1 for what is left out"
        check_values(owner, ("groups", allowed, groups, (groups >= -1) & (groups < num_groups)))


def in_pairs(
    owner: str,
    scheme: Scheme,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    argument: str,
    values: Tensor,
    validate_args: bool,
) -> Iterator[tuple[Rows, Tensor]]:
    """The blocks of :meth:`Scheme.rows`, each with what ``values`` hold beside its scores, (m,).

    Args:
        owner: Class or function that errors name.
        scheme: Which scores are looked at, all of them in one row of bins.
        logits: Predictions.
        target: What happened.
        weight: One number for each target.
        argument: Name of ``values`` in errors.
        values: One number for each target.
        validate_args: Whether values of predictions, target and weight are checked.
    """
    check_floating(owner, logits=logits)
    for name, given in (("target", target), (argument, values)):
        if not isinstance(given, Tensor):
            reject(owner, name, "be a tensor", given, TypeError)
    if scheme.task != "binary" and logits.dim() < 2:
        reject(owner, "logits", "have shape (N, C, ...)", logits)
    shape: tuple[int, ...] = tuple(target.shape)
    if scheme.task != "binary":
        shape = tuple(logits.shape) if scheme.task == "multilabel" else (*logits.shape[:1], *logits.shape[2:])
    check_same_shape(owner, "the targets", shape, **{argument: values})
    values = by_label(values, scheme.task)
    if scheme.task == "multiclass" and not scheme.looks_at_top:
        values = values.repeat_interleave(logits.shape[1])
    return _followed(scheme.rows(owner, logits, target, weight, validate_args), values)


def _followed(rows: Iterable[Rows], values: Tensor) -> Iterator[tuple[Rows, Tensor]]:
    start = 0
    for block in rows:
        stop = start + len(block[0])
        yield block, values[start:stop]
        start = stop


def grouped_sums(scheme: Scheme, pairs: Paired, num_groups: int) -> Tensor:
    """Sums of :func:`cell_sums` for every group, (2, G, B, 2), of rows with their groups; -1 counts in none."""
    total: Tensor | None = None
    for (scores, hits, weight), groups in pairs:
        cells = equal_width_index(scores.squeeze(1), scheme.n_bins, scheme.closed)
        cells = cells + groups.clamp_min(0) * scheme.n_bins
        kept = torch.where(groups >= 0, weight.squeeze(1), 0)
        own = cell_sums(cells, num_groups * scheme.n_bins, scores, hits, kept)
        total = own if total is None else total.add_(own)
    if total is None:
        raise ValueError("a batch is at least one block of rows, got none")
    return total.view(2, num_groups, scheme.n_bins, 2)


def extremes(values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest of the values that are kept; nan where none is."""
    none = ~kept.any()
    low, high = torch.where(kept, values, torch.inf).amin(), torch.where(kept, values, -torch.inf).amax()
    return torch.where(none, torch.nan, low), torch.where(none, torch.nan, high)
