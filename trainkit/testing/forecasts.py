"""Input kinds of predicted distributions: how each is drawn, and how it comes of a mean and a width."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

__all__ = ["FORECASTS", "Forecast"]

COMPONENTS = 3
QUANTILES = 5

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Forecast:
    """One form of a predicted distribution.

    Args:
        draw: Takes generator and rows, gives tensors by name in fp64.
        differentiable: Names of the tensors that gradients are wanted for.
        of: The same tensors for a mean and a width, both (N, 1), and the target (N,).
    """

    draw: Callable[[Generator, int], Inputs]
    differentiable: tuple[str, ...]
    of: Callable[[Tensor, Tensor, Tensor], Inputs]


def _numbers(g: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def _widths(g: Generator, *shape: int) -> Tensor:
    return 0.3 + torch.rand(*shape, generator=g, dtype=torch.float64)


def _normal(g: Generator, n: int) -> Inputs:
    return {"mean": _numbers(g, n), "std": _widths(g, n), "target": 2 * _numbers(g, n)}


def _mixture(g: Generator, n: int) -> Inputs:
    probs = _numbers(g, n, COMPONENTS).softmax(1)
    return {
        "probs": probs,
        "mean": 2 * _numbers(g, n, COMPONENTS),
        "std": _widths(g, n, COMPONENTS),
        "target": 2 * _numbers(g, n),
    }


def _ensemble(g: Generator, n: int) -> Inputs:
    return {"samples": _numbers(g, n, QUANTILES), "target": _numbers(g, n)}


def _quantiles(g: Generator, n: int) -> Inputs:
    return {"quantiles": 2 * _numbers(g, n, QUANTILES).sort(1).values, "target": _numbers(g, n)}


def _interval(g: Generator, n: int) -> Inputs:
    lower, upper = _numbers(g, n, 2).sort(1).values.unbind(1)
    return {"lower": lower, "upper": upper, "target": _numbers(g, n)}


def _pit(g: Generator, n: int) -> Inputs:
    return {"pit": torch.rand(n, generator=g, dtype=torch.float64)}


def _mixture_of(mean: Tensor, width: Tensor, target: Tensor) -> Inputs:
    means = mean + width * torch.linspace(-1, 1, COMPONENTS)
    probs = torch.full_like(means, 1 / COMPONENTS)
    return {"probs": probs, "mean": means, "std": width.expand_as(means), "target": target}


def _several(mean: Tensor, width: Tensor) -> Tensor:
    return mean + width * torch.linspace(-1, 1, QUANTILES)


def _interval_of(mean: Tensor, width: Tensor, target: Tensor) -> Inputs:
    return {"lower": (mean - width)[:, 0], "upper": (mean + width)[:, 0], "target": target}


FORECASTS: Mapping[str, Forecast] = {
    "normal": Forecast(
        _normal, ("mean", "std"), lambda m, s, target: {"mean": m[:, 0], "std": s[:, 0], "target": target}
    ),
    "mixture": Forecast(_mixture, ("probs", "mean", "std"), _mixture_of),
    "ensemble": Forecast(_ensemble, ("samples",), lambda m, s, target: {"samples": _several(m, s), "target": target}),
    "quantiles": Forecast(
        _quantiles, ("quantiles",), lambda m, s, target: {"quantiles": _several(m, s), "target": target}
    ),
    "interval": Forecast(_interval, ("lower", "upper"), _interval_of),
    "pit": Forecast(_pit, ("pit",), lambda m, s, target: {"pit": torch.special.ndtr((target - m[:, 0]) / s[:, 0])}),
}
