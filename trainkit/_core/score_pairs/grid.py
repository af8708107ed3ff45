r"""The logistic surrogate over all pairs, in time and with an error that do not depend on the range of the scores.

Scores are spread onto the nodes of a grid with local Lagrange weights, the nodes interact, and the result is read back
with the same weights. The grid is cut into blocks, of which only those that hold scores exist. A block and the next
ones interact through the function itself. Blocks further apart use

.. math:: \sigma(-x) = \sum_k (-1)^{k + 1} e^{-k x}, \quad \log(1 + e^{-x}) = \sum_k (-1)^{k + 1} e^{-k x} / k

whose exponentials factor into one number a block and a decay between blocks, and beyond that :math:`\sigma(x) =
1 - \sigma(-x)` needs weights and sums of scores alone. All these are sums of positive terms, unlike a Fourier
transform, whose rounding is relative to the largest value: small gradients keep their relative accuracy.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainkit._core.numerics import softplus
from trainkit._core.score_pairs.surrogates import Sums

__all__ = ["grid_sums"]

ORDER = 8
"""Nodes that a score is spread onto."""
SPACING = 0.25
"""Distance of the nodes; with 8 of them the interpolation is good to 2e-7 of the value, everywhere."""
CELLS = 16
"""Node distances in a block."""
WIDTH = CELLS * SPACING
"""Width of a block: blocks that are not neighbours are at least so far apart."""
TERMS = 5
"""Terms of the series: the next one is exp(-20) of the first, or less."""
GAP = 40.0
"""A distance at which exp(-x) no longer counts; wider gaps between scores are narrowed."""
HOPS = (1, 2, 4, 8)
"""Doubling steps that carry exponentials over 16 blocks, further than ``GAP``."""


class _Layout(NamedTuple):
    """Where the scores lie: occupied block of each and place in it; number on the line and true start of each block."""

    block: Tensor
    place: Tensor
    number: Tensor
    start: Tensor


class _Spread(NamedTuple):
    """Scores on the nodes: for each score its nodes and their weights; for each block totals and node sums."""

    nodes: Tensor
    share: Tensor
    grid: Tensor
    weight: Tensor
    moment: Tensor


def _layout(scores: Tensor) -> _Layout:
    low, high = scores.aminmax()
    # As many blocks as scores at most may be empty; a longer line is too long to be laid out whole.
    return _whole(scores, low) if bool((high - low) / WIDTH < len(scores)) else _clustered(scores)


def _whole(scores: Tensor, low: Tensor) -> _Layout:
    offset = scores - low
    local = (offset / WIDTH).floor()
    index = local.long()
    occupied = torch.bincount(index) > 0
    number = occupied.nonzero()[:, 0].to(scores.dtype)
    return _Layout((occupied.cumsum(0) - 1)[index], offset - WIDTH * local, number, low + WIDTH * number)


def _clustered(scores: Tensor) -> _Layout:
    ordered, order = scores.sort()
    new_cluster = F.pad(ordered.diff() > GAP, (1, 0), value=True)
    cluster = new_cluster.cumsum(0) - 1
    first = ordered[new_cluster][cluster]
    offset = ordered - first
    local = (offset / WIDTH).floor()
    # One more than the last block of a cluster, and as many empty blocks as no exponential crosses.
    extent = local[F.pad(new_cluster[1:], (0, 1), value=True)] + 1 + 2 * HOPS[-1]
    number = local + (extent.cumsum(0) - extent)[cluster]
    new_block = F.pad(number.diff() > 0, (1, 0), value=True)
    block = torch.empty_like(order).scatter_(0, order, new_block.cumsum(0) - 1)
    place = torch.empty_like(scores).scatter_(0, order, offset - WIDTH * local)
    return _Layout(block, place, number[new_block], (first + WIDTH * local)[new_block])


def _spread(block: Tensor, place: Tensor, weight: Tensor, blocks: int) -> _Spread:
    width = CELLS + ORDER - 1
    scaled = place / SPACING
    cell = scaled.floor()
    offset = scaled - cell - 0.5
    powers = [torch.ones_like(place)]
    for _ in range(ORDER - 1):
        powers.append(powers[-1] * offset)
    # Lagrange weights are polynomials: the inverse of the nodes' own powers times those of the place.
    knots = torch.arange(ORDER, device=place.device, dtype=place.dtype) - (ORDER - 1) / 2
    share = torch.linalg.inv(torch.linalg.vander(knots, N=ORDER)).T @ torch.stack(powers)
    nodes = block * width + cell.long() + torch.arange(ORDER, device=place.device)[:, None]
    totals = [
        place.new_zeros(size).index_add_(0, index, values)
        for size, index, values in (
            (blocks * width, nodes.flatten(), (share * weight).flatten()),
            (blocks, block, weight),
            (blocks, block, weight * place),
        )
    ]
    return _Spread(nodes, share, totals[0].view(blocks, width), totals[1], totals[2])


def _carried(moments: Tensor, number: Tensor, rates: Tensor) -> Tensor:
    """For each block, the exponentials of all blocks below it but the next, at the lower edge of the block."""

    def decay(blocks: Tensor) -> Tensor:
        return torch.exp(-WIDTH * blocks[:, None] * rates)

    for hop in HOPS:
        come = decay(number[hop:] - number[:-hop]) * moments[:-hop]
        moments = torch.cat([moments[:hop], moments[hop:] + come])
    below = torch.searchsorted(number, number - 2, right=True) - 1
    at = below.clamp_min(0)
    return torch.where((below >= 0)[:, None], decay(number - number[at] - 1) * moments[at], 0)


def _features(spread: _Spread, number: Tensor, far_weight: Tensor, low: Tensor, high: Tensor, rates: Tensor) -> Tensor:
    """What a block sees: its neighbours' nodes and its own, exponentials from below and above, a constant weight."""
    grid = spread.grid
    empty = torch.zeros_like(grid[:1])
    adjacent = (number.diff() == 1)[:, None]
    before = torch.cat([empty, torch.where(adjacent, grid[:-1], 0)])
    after = torch.cat([torch.where(adjacent, grid[1:], 0), empty])
    from_below = _carried(grid @ high.T, number, rates)
    from_above = _carried((grid @ low.T).flip(0), -number.flip(0), rates).flip(0)
    return torch.cat([before, grid, after, from_below, from_above, far_weight[:, None]], 1)


def _linear(positive: _Spread, negative: _Spread, layout: _Layout, weight_above: Tensor, above: Tensor) -> Tensor:
    """Sum of w u (n - p) over the pairs whose negative lies two blocks above its positive, or more."""
    start = layout.start
    end = start.new_zeros(1)
    # Sum of u (n - start of the block) over a block and all above it, from gaps: positive terms, nothing cancels.
    steps = negative.moment + torch.cat([start.diff() * weight_above[1:-1], end])
    ramp = torch.cat([steps.flip(0).cumsum(0).flip(0), end])
    rise = torch.cat([start, start[-1:]])[above] - start
    return weight_above[above] @ (positive.weight * rise - positive.moment) + positive.weight @ ramp[above]


def _read(spread: _Spread, values: Tensor) -> Tensor:
    flat, first = values.flatten(), spread.nodes[0]
    # The nodes of a score lie beside each other: one index for all is faster than a table of them.
    found = torch.zeros_like(spread.share[0])
    for k, share in enumerate(spread.share):
        found.addcmul_(flat[k:].index_select(0, first), share)
    return found


def grid_sums(
    positive: Tensor,
    negative: Tensor,
    positive_weight: Tensor,
    negative_weight: Tensor,
    surrogate: str,
    margin: float,
) -> Sums:
    """Sum of softplus(negative - positive) over all pairs, and its gradients."""
    layout = _layout(torch.cat([negative, positive]))
    number, blocks = layout.number, len(layout.number)
    sizes = [len(negative), len(positive)]
    (n_block, p_block), (n_place, p_place) = layout.block.split(sizes), layout.place.split(sizes)
    n = _spread(n_block, n_place, negative_weight, blocks)
    p = _spread(p_block, p_place, positive_weight, blocks)

    nodes = SPACING * (torch.arange(CELLS + ORDER - 1, device=number.device, dtype=number.dtype) - (ORDER // 2 - 1))
    rates = torch.arange(1, TERMS + 1, device=number.device, dtype=number.dtype)
    low, high = torch.exp(-rates[:, None] * nodes), torch.exp(-rates[:, None] * (WIDTH - nodes))
    signs = (2 * (rates % 2) - 1)[:, None]
    apart = torch.cat([nodes + shift for shift in (-WIDTH, 0, WIDTH)])[:, None] - nodes
    one, zero = torch.ones_like(nodes)[None], torch.zeros_like(nodes)[None]

    above = torch.searchsorted(number, number + 2)
    below = torch.searchsorted(number, number - 2, right=True)
    n_above = F.pad(n.weight.flip(0).cumsum(0).flip(0), (0, 1))
    p_below = F.pad(p.weight.cumsum(0), (1, 0))
    to_positive = _features(n, number, n_above[above], low, high, rates)
    to_negative = _features(p, number, p_below[below], low, high, rates)

    slopes = to_positive @ torch.cat([torch.sigmoid(apart), signs * low, -signs * high, one])
    slopes_back = to_negative @ torch.cat([torch.sigmoid(-apart), -signs * low, signs * high, one])
    series = signs / rates[:, None]
    values = to_positive @ torch.cat([softplus(apart), series * low, series * high, zero])
    value = (values * p.grid).sum() + _linear(p, n, layout, n_above, above)
    return value, -positive_weight * _read(p, slopes), negative_weight * _read(n, slopes_back)
