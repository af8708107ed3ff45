"""A softmax over pairs of embeddings: what the rows are held to, and the form in which it is computed."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainkit._core.numerics import softplus
from trainkit._core.pairs.base import Pairs
from trainkit._core.pairs.heads import SoftmaxHead, SoftmaxTargetHead
from trainkit._core.pairs.strip import Head, strip_rows, strip_sum
from trainkit._core.pairs.tile import Softmax, tile_statistics
from trainkit._core.pairs.view import Hidden
from trainkit._core.typing import Reduction
from trainkit.distributed import all_reduce_max, all_reduce_sum, is_distributed, reduce_over_ranks, share_of_ranks
from trainkit.losses.contrastive._common import Blocks

__all__ = ["SoftmaxTask", "softmax_loss", "softmax_rows", "softmax_total"]

NOTHING = -1e30
"""Stand-in for the logarithm of zero that has a derivative."""


class SoftmaxTask(NamedTuple):
    """A softmax over pairs, and what its rows are held to.

    Args:
        pairs: Embeddings, scale and positive scores.
        hidden: Pairs that are no candidates.
        ids: Ids of rows and of columns where columns of the row's id are positives too; else empty.
        smoothing: Mass that is spread over all candidates.
        blocks: Blocks of the score matrix; None for the plain form.
        classes: Column of each row's positive where that column is all that ``hidden`` holds; else None.
    """

    pairs: Pairs
    hidden: Hidden
    ids: list[Tensor]
    smoothing: float
    blocks: Blocks | None
    classes: Tensor | None = None

    @property
    def single(self) -> bool:
        """Whether the own key is all that a row is held to."""
        return not self.ids and not self.smoothing

    @property
    def in_strips(self) -> bool:
        """Whether complete rows are computed at a time."""
        return self.blocks is not None and not self.blocks.tiled


class Sums(NamedTuple):
    """Statistics of rows or of columns: log-sum-exp, sums of scores with the own id and of all, and their counts."""

    log_mass: Tensor
    same: Tensor
    every: Tensor
    same_count: Tensor
    every_count: Tensor


def _values(positive: Tensor, sums: Sums, task: SoftmaxTask) -> Tensor:
    """Values of rows (or columns) from their statistics and positive scores."""
    log_mass = sums.log_mass.clamp_min(NOTHING)
    if task.single:
        return softplus(log_mass - positive)
    each = (1 - task.smoothing) / (sums.same_count + 1)
    uniform = task.smoothing / (sums.every_count + 1)
    linear = each * (sums.same + positive) + uniform * (sums.every + positive)
    return torch.logaddexp(log_mass, positive) - linear


def _plain_scores(pairs: Pairs) -> Tensor:
    """All scores, (n, M), without the bias: a softmax does not see it, and adding it is a pass over them."""
    scores = (pairs.scale.to(pairs.query.dtype) * pairs.query) @ pairs.key.T
    return scores.to(pairs.wide)


def _plain_sums(task: SoftmaxTask) -> tuple[Sums, Sums]:
    """Statistics of rows and columns from the score matrix itself."""
    scores = _plain_scores(task.pairs)
    hidden = task.hidden.mask(*scores.shape)
    masked = scores.masked_fill(hidden, NOTHING)
    visible = (~hidden).to(scores.dtype)
    same = visible * (task.ids[0].unsqueeze(1) == task.ids[1]) if task.ids else torch.zeros_like(visible)
    shown = scores.masked_fill(hidden, 0.0)
    return tuple(  # type: ignore[return-value]
        Sums(masked.logsumexp(dim), (same * shown).sum(dim), shown.sum(dim), same.sum(dim), visible.sum(dim))
        if masked.shape[dim]
        else Sums(*[masked.sum(dim) + start for start in (NOTHING, 0, 0, 0, 0)])
        for dim in (1, 0)
    )


def _tiled_sums(task: SoftmaxTask, blocks: tuple[int, int], columns: bool) -> tuple[Tensor, Sums, Sums]:
    """Positive scores, and statistics of rows and columns."""
    options = (float(columns), float(not task.single))
    found = tile_statistics(Softmax, task.pairs, task.hidden, tensors=task.ids, options=options, block=blocks)
    row, column, row_same, row_all, column_same, column_all, *counts, own = found
    return (
        own if task.pairs.own.numel() else task.pairs.positive,
        Sums(row, row_same, row_all, counts[0], counts[1]),
        Sums(column, column_same, column_all, counts[2], counts[3]),
    )


def _all_sums(task: SoftmaxTask) -> tuple[Tensor, Sums, Sums]:
    if task.blocks is None:
        return (task.pairs.positive, *_plain_sums(task))
    width = task.blocks.columns if task.blocks.tiled else task.pairs.key.shape[0]
    return _tiled_sums(task, (task.blocks.rows, width), columns=True)


def _merged(sums: Sums, call: str, sync: bool) -> Sums:
    """Statistics of columns over the rows of all ranks."""
    if not sync or not is_distributed():
        return sums
    log_mass = sums.log_mass.clamp_min(NOTHING)
    peak = all_reduce_max(log_mass, call=call)
    mass = all_reduce_sum((log_mass - peak).exp(), call=call)
    rest = all_reduce_sum(torch.stack(sums[1:]), call=call)
    return Sums(peak + mass.log(), *rest.unbind())


def softmax_rows(task: SoftmaxTask) -> Tensor:
    """Value of each row, (n,)."""
    blocks = task.blocks
    if blocks is None:
        if task.classes is not None:
            return F.cross_entropy(_plain_scores(task.pairs), task.classes, reduction="none")
        return _values(task.pairs.positive, _plain_sums(task)[0], task)
    if blocks.tiled:
        positive, sums, _ = _tiled_sums(task, (blocks.rows, blocks.columns), columns=False)
        return _values(positive, sums, task)
    head, options = _head(task)
    return strip_rows(head, task.pairs, task.hidden, tensors=task.ids, options=options, block=blocks[:2])


def _head(task: SoftmaxTask) -> tuple[type[Head], Sequence[float]]:
    return (SoftmaxHead, ()) if task.single else (SoftmaxTargetHead, (task.smoothing,))


def softmax_total(task: SoftmaxTask, weights: Tensor) -> Tensor:
    """Weighted sum of the rows in strips, which form the gradients at once."""
    head, options = _head(task)
    rows, columns, _ = task.blocks or Blocks(256, 1024, tiled=False)
    return strip_sum(head, task.pairs, weights, task.hidden, tensors=task.ids, options=options, block=(rows, columns))


def softmax_loss(
    task: SoftmaxTask, weights: Tensor, reduction: Reduction, *, symmetric: bool, start: int, call: str, sync: bool
) -> Tensor:
    """Reduce the rows of a softmax over pairs; ``symmetric`` averages each with its column.

    Args:
        task: The softmax.
        weights: Weight of each row, (n,).
        reduction: How to reduce.
        symmetric: Whether column ``start + i`` counts with row i.
        start: Column of the first row's positive.
        call: Name of the caller, for the agreement between ranks.
        sync: Whether other ranks' rows count.
    """
    if symmetric and task.blocks is None and task.classes is not None and not (sync and is_distributed()):
        scores = _plain_scores(task.pairs)
        sides = [F.cross_entropy(side, task.classes, reduction="none") for side in (scores, scores.T)]
        values = (sides[0] + sides[1]) / 2
    elif symmetric:
        positive, rows, columns = _all_sums(task)
        own = Sums(*[t[start : start + len(positive)] for t in _merged(columns, call, sync)])
        both = Sums(*[torch.stack(pair) for pair in zip(rows, own, strict=True)])
        values = _values(positive, both, task).mean(0)
    elif reduction != "none" and task.in_strips:
        return share_of_ranks(softmax_total(task, weights), weights.sum(), reduction, call=call, sync=sync)
    else:
        values = softmax_rows(task)
    return reduce_over_ranks(values * weights, weights, reduction, call=call, sync=sync)
