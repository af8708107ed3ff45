"""The surrogates of a wrongly ordered pair, as functions of x = negative - positive (+ margin)."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trainkit._core.numerics import softplus

__all__ = ["SURROGATES", "Sums", "Surrogate", "SurrogateName", "tiled"]

SurrogateName: TypeAlias = Literal["logistic", "hinge", "squared_hinge", "square", "exponential"]

Sums: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""The weighted sum over all pairs and its gradients for the positives and for the negatives."""

TILE = 1 << 20
"""Pairs that are held at once."""


class Surrogate(NamedTuple):
    """A surrogate, its slope, and whether the margin moves it."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    takes_margin: bool


SURROGATES: Mapping[str, Surrogate] = {
    "logistic": Surrogate(softplus, torch.sigmoid, False),
    "hinge": Surrogate(torch.relu, lambda x: (x > 0).to(x.dtype), True),
    "squared_hinge": Surrogate(lambda x: torch.relu(x).square(), lambda x: 2 * torch.relu(x), True),
    "square": Surrogate(torch.square, lambda x: 2 * x, True),
    "exponential": Surrogate(torch.exp, torch.exp, False),
}


def tiled(
    positive: Tensor,
    negative: Tensor,
    positive_weight: Tensor,
    negative_weight: Tensor,
    surrogate: str,
    margin: float,
) -> Sums:
    """Every pair, a tile of rows at a time: the yardstick of the other algorithms."""
    function = SURROGATES[surrogate]
    rows = max(1, TILE // len(negative))
    value = positive.new_zeros(())
    slopes = []
    negative_gradient = torch.zeros_like(negative)
    for p, w in zip(positive.split(rows), positive_weight.split(rows), strict=True):
        x = negative - p[:, None] + margin
        value += w @ (function.value(x) @ negative_weight)
        slope = function.slope(x)
        slopes.append(-w * (slope @ negative_weight))
        negative_gradient += w @ slope
    return value, torch.cat(slopes), negative_gradient * negative_weight
