"""Bins of scores in [0, 1]: their edges, which bin each score falls in, and sums over bins."""

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trainkit._core.numerics import sum_dtype

__all__ = [
    "BinSums",
    "Binning",
    "Closed",
    "Ties",
    "bin_sums",
    "equal_mass_edges",
    "equal_mass_index",
    "equal_width_edges",
    "equal_width_index",
]

Binning: TypeAlias = Literal["equal_width", "equal_mass"]
Closed: TypeAlias = Literal["left", "right"]
Ties: TypeAlias = Literal["split", "together"]

RANK_SLACK = 1e-9
"""What rounding may take from a rank in bins, where weights are no integers; ranks themselves are 1/n apart."""


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
    edges = equal_width_edges(n_bins, scores.device)
    values = scores.to(edges.dtype).reshape(-1)
    # A guess that rounding puts at most one bin off, set right by its edges; a search would take three times as long.
    index = (values * n_bins).long().clamp_(0, n_bins - 1)
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


def bin_sums(index: Tensor, size: int, scores: Tensor, hits: Tensor, weight: Tensor) -> BinSums:
    """Weighted sums over bins, (size,), in fp64 (fp32 on mps).

    Args:
        index: Bin of each score.
        size: Number of bins.
        scores: As ``index``, of any shape.
        hits: As ``index``: booleans, or chances.
        weight: As ``index``.
    """
    dtype = sum_dtype(scores.device)
    cells, weights = index.reshape(-1), weight.to(dtype).reshape(-1)
    sums = weights.new_zeros(3, size)
    sums[0].scatter_add_(0, cells, weights)
    sums[1].scatter_add_(0, cells, weights * scores.to(dtype).reshape(-1))
    sums[2].scatter_add_(0, cells, weights * hits.to(dtype).reshape(-1))
    return BinSums(*sums)
