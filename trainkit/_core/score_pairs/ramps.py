"""Hinge and squared hinge over all pairs, exact by one sort."""

import torch
from torch import Tensor

from trainkit._core.score_pairs.surrogates import Sums

__all__ = ["sorted_sums"]


def _from_above(x: Tensor) -> Tensor:
    """Sum of each entry and all that follow it."""
    return x.flip(0).cumsum(0).flip(0)


def sorted_sums(
    positive: Tensor,
    negative: Tensor,
    positive_weight: Tensor,
    negative_weight: Tensor,
    surrogate: str,
    margin: float,
) -> Sums:
    r"""Sums of ramps over the negatives above each positive and the positives below each negative.

    With everything in one sorted list z, the ramp sum :math:`A_j = \sum_{i > j} u_i (z_i - z_j)` grows from one entry
    to the next below it by the gap times the weight above. Every term is positive, so that nothing cancels at any
    range, which differences of plain prefix sums of scores would.
    """
    # Stable with the negatives first: at the kink, where both are equal, a pair is inactive.
    z, order = torch.cat([negative, positive - margin]).sort(stable=True)
    u = torch.cat([negative_weight, torch.zeros_like(positive_weight)])[order]
    w = torch.cat([torch.zeros_like(negative_weight), positive_weight])[order]
    gap = z.diff()
    end = z.new_zeros(1)
    weight_above, weight_below = _from_above(u), w.cumsum(0)
    ramp_above = torch.cat([_from_above(gap * weight_above[1:]), end])
    if surrogate == "hinge":
        per_positive, slope_above, slope_below = ramp_above, weight_above, weight_below
    else:
        steps = gap * (2 * ramp_above[1:] + gap * weight_above[1:])
        per_positive = torch.cat([_from_above(steps), end])
        slope_above = 2 * ramp_above
        slope_below = 2 * torch.cat([end, (gap * weight_below[:-1]).cumsum(0)])
    gradient = torch.empty_like(z).scatter_(0, order, u * slope_below - w * slope_above)
    negative_gradient, positive_gradient = gradient.split([len(negative), len(positive)])
    return w @ per_positive, positive_gradient, negative_gradient
