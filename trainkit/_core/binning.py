"""Bins of scores in [0, 1]: their edges, which bin each score falls in, and sums over bins."""

import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trainkit._core.numerics import sum_dtype

__all__ = [
    "TILE",
    "UNSURE",
    "BinSums",
    "Binning",
    "Closed",
    "Ties",
    "cell_sums",
    "equal_mass_edges",
    "equal_mass_index",
    "equal_width_edges",
    "equal_width_index",
    "order_bits",
    "top_and_hits",
    "without_ties",
]

Binning: TypeAlias = Literal["equal_width", "equal_mass"]
Closed: TypeAlias = Literal["left", "right"]
Ties: TypeAlias = Literal["split", "together"]

EDGE_SLACK = 1e-9
"""How near to an edge, in widths of a bin, the edge itself has to tell on which side a score is."""

RANK_SLACK = 1e-9
"""What rounding may take from a rank in bins, where weights are no integers; ranks themselves are 1/n apart."""

UNSURE = 0.5 + 1e-6
"""Up to here the largest probability of a row may have an equal, if the row sums to one as nearly as it has to."""

TILE = 2**18
"""Numbers that are looked at at once where that is done several times, so that only the first reads the memory."""


def _first_largest(values: Tensor) -> Tensor:
    """Place of the largest of each row; of equal ones the first."""
    return torch.from_numpy(values.detach().numpy().argmax(1))


def order_bits(values: Tensor) -> Tensor:
    """Numbers >= 0 as what has their order and is compared in half the time: for fp32, their bits as integers."""
    return values.view(torch.int32) if values.dtype == torch.float32 else values


def without_ties(values: Tensor, target: Tensor, top: Tensor, hits: Tensor, unsure: Tensor) -> Tensor:
    """``hits``, in which of equal largest values the first alone is one, set right in place.

    Args:
        values: What has the order of the probabilities, (M, K).
        target: Class indices, (M,).
        top: Largest of each row, (M,).
        hits: Whether the target's value equals the largest, (M,).
        unsure: Rows, among the hits, that are looked at, (M,) booleans.
    """
    # The place of the largest takes eight times as long to find as the largest itself. It is wanted only where
    # another class has the same, which is the largest of the others.
    lowest = -math.inf if values.is_floating_point() else -1
    for rows in unsure.nonzero().squeeze(1).split(max(1, TILE // values.shape[1])):
        others, own = values.index_select(0, rows), target.index_select(0, rows)
        others.scatter_(1, own.unsqueeze(1), lowest)
        tied = others.amax(1) == top.index_select(0, rows)
        if tied.any():
            rows = rows[tied]
            hits[rows] = _first_largest(values.index_select(0, rows)) == target.index_select(0, rows)
    return hits


def top_and_hits(values: Tensor, target: Tensor, *, negative: bool = True) -> tuple[Tensor, Tensor]:
    """Largest of each row and whether it is the target's; of equal ones the first counts. Both (M,).

    Args:
        values: Probabilities, or what has their order, (M, K).
        target: Class indices, (M,).
        negative: Whether values may be negative.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        top, first = values.max(1)
        return top, first == target
    ordered = values if negative else order_bits(values)
    top = ordered.amax(1)
    hits = ordered.gather(1, target.unsqueeze(1)).squeeze(1) == top
    return top.view(values.dtype), without_ties(ordered, target, top, hits, hits)


class BinSums(NamedTuple):
    """Sums over the scores of each bin, (..., B).

    Args:
        weight: Sum of the weights.
        score: Weighted sum of the scores.
        hit: Weighted sum of what happened, one or zero or a probability.
    """

    weight: Tensor
    score: Tensor
    hit: Tensor

    @classmethod
    def of(cls, cells: Tensor) -> "BinSums":
        """From the sums that :func:`cell_sums` gave."""
        weight, score = cells[:2].sum(-1)
        return cls(weight, score, cells[0, ..., 1])


def equal_width_edges(n_bins: int, device: torch.device | None = None) -> Tensor:
    """The ``n_bins`` + 1 edges of bins of equal width, to the last bit those of ``numpy.linspace``.

    torch.linspace counts the second half down from one, which puts a score such as 0.6 into another of five bins.
    """
    device = device or torch.device("cpu")
    edges = torch.arange(n_bins + 1, dtype=sum_dtype(device), device=device) * (1 / n_bins)
    edges[-1] = 1
    return edges


def equal_width_index(scores: Tensor, n_bins: int, closed: Closed = "left") -> Tensor:
    """Bin of equal width that each score falls in, int64; 0 is in the first bin and 1 in the last, always.

    Args:
        scores: Scores of any shape; those out of [0, 1] go to the bin at that end.
        n_bins: Number of bins.
        closed: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
    """
    values = scores.to(sum_dtype(scores.device)).reshape(-1)
    # A guess that rounding puts at most one bin off; both ends are far enough from their edges to be right.
    places = (values * n_bins).clamp_(0.5, n_bins - 0.5)
    index = places.long()
    if values.device.type == "cpu" and not torch.compiler.is_compiling() and len(values):
        least, most = places.sub_(index).aminmax()
        if least.item() > EDGE_SLACK and most.item() < 1 - EDGE_SLACK:
            return index.view(scores.shape)
    # Set right by the edges; a search would take three times as long. NaN has no place, but must stay in bounds.
    index.clamp_(0, n_bins - 1)
    edges = equal_width_edges(n_bins, scores.device)
    low, high = edges.index_select(0, index), edges[1:].index_select(0, index)
    if closed == "left":
        index = index - (values < low).long() + (values >= high).long()
    else:
        index = index - (values <= low).long() + (values > high).long()
    return index.clamp_(0, n_bins - 1).view(scores.shape)


def _split_ranks(before: Tensor, total: Tensor, n_bins: int) -> Tensor:
    """Bin of each score in order, by the weight before it."""
    return (before * n_bins / total + RANK_SLACK).floor().long().clamp_(max=n_bins - 1)


def _together_ranks(ordered: Tensor, before: Tensor, total: Tensor, n_bins: int) -> Tensor:
    """Bin of each score in order, where a bin begins at a score and takes all that equal it."""
    places = torch.arange(1, n_bins, dtype=before.dtype, device=before.device) * (total / n_bins)
    above = torch.searchsorted(before, places).clamp_(1, max(len(before) - 1, 1))
    below = above - 1
    above = above.clamp_max(len(before) - 1)
    # The nearest score, of two the even one: for unit weights, numpy's round.
    to_above, to_below = (before[above] - places).abs(), (before[below] - places).abs()
    nearest = torch.where((to_below < to_above) | ((to_below == to_above) & (below % 2 == 0)), below, above)
    first = torch.searchsorted(ordered, ordered[nearest])
    starts = torch.zeros(len(ordered), dtype=torch.int64, device=ordered.device)
    return starts.index_add_(0, first, torch.ones_like(first)).cumsum(0)


def equal_mass_index(scores: Tensor, weight: Tensor, n_bins: int, ties: Ties = "split") -> Tensor:
    """Bin that each score falls in when bins hold the same weight, as far as whole scores allow.

    Args:
        scores: (n,)
        weight: (n,), above zero; without weights ones, and then score r in order goes to bin floor(r * n_bins / n).
        n_bins: Number of bins; some stay empty where there are fewer scores.
        ties: ``"split"`` parts equal scores, the earlier into the lower bin; ``"together"`` lets bin b begin at the
            score of rank round(b * n / n_bins) and keeps equal scores in one bin.
    """
    if not len(scores):
        return torch.zeros(0, dtype=torch.int64, device=scores.device)
    ordered, order = scores.sort(stable=True)
    weights = weight.to(sum_dtype(scores.device))[order]
    mass = weights.cumsum(0)
    before = mass - weights
    if ties == "split":
        ranks = _split_ranks(before, mass[-1], n_bins)
    else:
        ranks = _together_ranks(ordered, before, mass[-1], n_bins)
    return torch.empty_like(ranks).scatter_(0, order, ranks)


def equal_mass_edges(index: Tensor, scores: Tensor, n_bins: int) -> Tensor:
    """Edges of bins of equal mass: 0, the lowest score of every bin but the first, and 1.

    Args:
        index: (n,), bin of each score.
        scores: (n,)
        n_bins: Number of bins; an empty one ends where it begins.
    """
    edges = torch.ones(n_bins + 1, dtype=sum_dtype(scores.device), device=scores.device)
    edges[:-1].scatter_reduce_(0, index, scores.to(edges.dtype), "amin")
    edges = edges.flip(0).cummin(0).values.flip(0)
    edges[0] = 0
    return edges


def cell_sums(index: Tensor, size: int, scores: Tensor, hits: Tensor, weight: Tensor, powers: int = 2) -> Tensor:
    """Sums over misses and hits in each bin, (powers, size, 2), in fp64 (fp32 on mps).

    Entry (p, b, 0) is the sum of w (1 - a) s^p over bin b, and (p, b, 1) that of w a s^p.

    Args:
        index: Bin of each score.
        size: Number of bins.
        scores: As ``index``, of any shape.
        hits: As ``index``: booleans, or chances, which make a row count as a miss and a hit by parts.
        weight: As ``index``.
        powers: Number of powers of the scores, from 0 on.
    """
    dtype = sum_dtype(scores.device)
    cells, part = 2 * index.reshape(-1), weight.to(dtype).reshape(-1)
    values, hits = scores.to(dtype).reshape(-1), hits.reshape(-1)
    sums = values.new_zeros(powers, 2 * size)
    split = hits.dtype != torch.bool
    right_cells = cells + 1 if split else cells.add_(hits)
    for power in range(powers):
        part = part * values if power else part
        right = part * hits if split else part
        if split:
            sums[power].scatter_add_(0, cells, part - right)
        sums[power].scatter_add_(0, right_cells, right)
    return sums.view(powers, size, 2)
