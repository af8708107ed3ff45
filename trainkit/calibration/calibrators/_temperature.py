"""The temperature of the least negative log-likelihood, by a safeguarded Newton search."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit.calibration.calibrators._rows import Block, FitRows, Solution

__all__ = ["solve_temperature"]

REACH = 1e3
"""The default bounds are this factor below and above the spread of the logits."""

LONGEST_STEP = 3.0
"""Largest change of the logarithm of the temperature at once."""

MOST_ITERATIONS = 100


def _below_top(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Logits less the largest of their row, their mean under the target, and the mass of the target; by row."""
    z = block.logits - block.logits.amax(1, keepdim=True)
    if block.target.is_floating_point():
        return z, (z * block.target).sum(1), block.target.sum(1)
    return z, z.gather(1, block.target.unsqueeze(1)).squeeze(1), torch.ones_like(block.weight)


def _survey(block: Block) -> Tensor:
    """Sums of weights, targets, squared spread, logits of the targets, and the slope at an infinite temperature."""
    z, hit, mass = _below_top(block)
    mean = z.mean(1, keepdim=True)
    w = block.weight
    spread = w @ (z - mean).square().mean(1)
    return torch.stack([w.sum(), (w > 0).sum().to(w.dtype), spread, w @ hit, w @ (mass * mean.squeeze(1) - hit)])


def _derivatives(block: Block, u: float) -> Tensor:
    """Negative log-likelihood of softmax(u z) and its first two derivatives in u, summed over the rows."""
    z, hit, mass = _below_top(block)
    p = (u * z).exp_()
    total = p.sum(1)
    mean = p.mul_(z).sum(1) / total
    variance = (torch.linalg.vecdot(p, z) / total - mean.square()).clamp_min(0)
    w = block.weight
    return torch.stack([w @ (mass * total.log() - u * hit), w @ (mass * mean - hit), w @ (mass * variance)])


class _Found(NamedTuple):
    """The optimum, and why it is to be doubted, if it is."""

    temperature: float
    nll: float
    iterations: int = 1
    doubt: str = ""


def _search(
    derivatives: Callable[[float], Sequence[float]], start: float, low: float, high: float, precision: float
) -> _Found:
    """Least value of a convex function of u = 1/T for a temperature from ``low`` to ``high``.

    Newton steps in log u, of limited length, inside the bracket that the signs of the slope give; bisection where they
    leave it.
    """
    first, last = -math.log(high), -math.log(low)
    left, right = -math.inf, math.inf
    s = min(max(-math.log(start), first), last)
    for iteration in range(1, MOST_ITERATIONS + 1):
        u = math.exp(s)
        value, slope, curvature = derivatives(u)
        gradient = u * slope
        hessian = u * u * curvature + gradient
        left, right = (left, s) if gradient > 0 else (s, right)
        if gradient > 0 and s <= first:
            return _Found(high, value, iteration, f"the bound t_max={high:g} was reached")
        if gradient < 0 and s >= last:
            return _Found(low, value, iteration, f"the bound t_min={low:g} was reached")
        step = -gradient / hessian if hessian > 0 else math.copysign(math.inf, -gradient)
        step = min(max(step, -LONGEST_STEP), LONGEST_STEP)
        ahead = min(max(s + step, first), last)
        if abs(step) <= precision or right - left <= precision:
            # The error of this step is the square of its length, and it changes the value by half of gradient x step.
            return _Found(math.exp(-ahead), value + gradient * step / 2, iteration)
        s = ahead if left < ahead < right else (left + right) / 2
    return _Found(math.exp(-s), value, MOST_ITERATIONS, f"it did not converge in {MOST_ITERATIONS} iterations")


def solve_temperature(rows: FitRows, t_min: float | None = None, t_max: float | None = None) -> Solution:
    """Least mean negative log-likelihood of softmax(logits / T) over T.

    Args:
        rows: What it is fitted to.
        t_min: Lowest temperature; None for a thousandth of the spread of the logits.
        t_max: Highest temperature; None for a thousand times that.

    Raises:
        ValueError: No row counts.
    """
    figures = rows.total(_survey)
    weight, count, spread, hit, slope = figures.tolist()
    if not weight > 0:
        raise ValueError(f"{rows.owner}: target must hold an entry that counts, on some rank at least, got none")

    def derivatives(u: float) -> list[float]:
        means: list[float] = (rows.total(lambda block: _derivatives(block, u)) / weight).tolist()
        return means

    def settled(temperature: float, doubt: str) -> _Found:
        return _Found(temperature, derivatives(1 / temperature)[0], doubt=doubt)

    scale = math.sqrt(spread / weight)
    low = min((scale or 1) / REACH, t_max or math.inf) if t_min is None else t_min
    high = max((scale or 1) * REACH, low) if t_max is None else t_max
    if scale == 0:
        found = settled(min(max(1.0, low), high), "the logits of every row are equal, which no temperature changes")
    elif hit == 0:
        # Further out the slope underflows to zero, which a search would take for an optimum.
        found = settled(low, f"every target has the largest logit of its row; the bound t_min={low:g} was reached")
    elif slope >= 0:
        found = settled(high, f"the logits speak against the targets; the bound t_max={high:g} was reached")
    else:
        found = _search(derivatives, scale, low, high, math.sqrt(torch.finfo(figures.dtype).eps))
    doubt = f"{found.doubt}; the temperature is {found.temperature:g}" if found.doubt else ""
    fitted = {"temperature": figures.new_tensor(found.temperature)}
    return Solution(fitted, int(count), figures.new_tensor(found.nll), found.iterations, doubt)
