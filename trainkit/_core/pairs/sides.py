"""What knows the positives in a sum over all positives and all negatives: takes scores, gives value and derivatives."""

import math
from typing import Any

import torch
from torch import Tensor

from trainkit._core.pairs.view import block_ranges

__all__ = ["Direct", "Hinge", "Logistic", "Square", "side_of"]

REACH = 40.0
"""Beyond this distance the logistic surrogate is linear or zero to 4e-18."""

CELLS = 64
"""Cells of the table in a unit of score."""

MOST_CELLS = 2**18
"""Cells beyond which the positives are taken one block after the other instead of by a table."""

# Derivatives of the sigmoid s as polynomials in s: row k holds the coefficients of s, s^2, ... of the k-th.
SIGMOID = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0],
        [1.0, -1.0, 0.0, 0.0],
        [1.0, -3.0, 2.0, 0.0],
        [1.0, -7.0, 12.0, -6.0],
    ],
    dtype=torch.float64,
)
FACTORIALS = torch.tensor([1.0, 1.0, 2.0, 6.0], dtype=torch.float64)


class Logistic:
    """Table of the sum over positives of softplus, by Taylor expansion in uniform cells.

    Cell 0 is below the table, where no positive is reached; from the end of the table on the function is linear. The
    table is made once the scores are known, in the cells that they fall into.
    """

    factor = float(CELLS)
    """Scores come multiplied by this."""

    neutral = 0.5
    """What a hidden score is set to, once :meth:`place` has run: a place in cell 0."""

    def __init__(self, positive: Tensor, weight: Tensor, terms: int) -> None:
        self.positive, self.weight, self.terms = positive.double(), weight.double(), terms
        self.dtype = weight.dtype
        self.low = float(self.positive.min()) - REACH
        self.cells = int((float(self.positive.max()) + REACH - self.low) * CELLS) + 2
        self.moments = torch.zeros(terms, self.cells, dtype=torch.float64, device=positive.device)
        self.beyond = torch.zeros(2, dtype=torch.float64, device=positive.device)

    def _close(self) -> None:
        """Make the table in the cells that hold scores, which are few of those that could."""
        terms, device = self.terms, self.moments.device
        self.moments[:, 0] = 0
        self.used = self.moments[0].nonzero().squeeze(1)
        self.centre = self.low + (self.used.double() - 0.5) / CELLS
        powers = torch.zeros(4, len(self.used), dtype=torch.float64, device=device)
        value = torch.zeros(len(self.used), dtype=torch.float64, device=device)
        for part in self._parts():
            gap = self.centre[part].unsqueeze(1) - self.positive
            power = s = gap.sigmoid()
            value[part] = (gap.clamp_min(0) + torch.log1p((-gap.abs()).exp())) @ self.weight
            for row in powers:
                row[part] = power @ self.weight
                power = power * s
        # Derivatives of the value by the place in the cell, from the first on.
        steps = CELLS ** -torch.arange(1.0, 5.0, dtype=torch.float64, device=device)
        derivatives = (SIGMOID.to(device) @ powers) * steps.unsqueeze(1)
        factorials = FACTORIALS.to(device).unsqueeze(1)
        self.value_terms = torch.cat([value.unsqueeze(0), derivatives[: terms - 1] / factorials[1:terms]])
        slopes = torch.zeros(terms, self.cells, dtype=torch.float64, device=device)
        slopes[:, self.used] = derivatives[:terms] * CELLS / factorials[:terms]
        self.slope_terms = slopes.to(self.dtype)

    def _parts(self) -> list[slice]:
        return block_ranges(len(self.used), max(2**20 // len(self.positive), 1))

    def place(self, scores: Tensor) -> None:
        """Turn scores, times ``factor``, into places along the cells, in place."""
        scores.sub_(self.low * CELLS - 1)

    def _outside(self, places: Tensor) -> Tensor | None:
        """Which places lie beyond the table, after those below it have been moved into cell 0; None for none."""
        low, high = places.aminmax()
        if low >= 0 and high < self.cells:
            return None
        beyond = places >= self.cells
        places.nan_to_num_().clamp_min_(0).masked_fill_(beyond, self.neutral)
        return beyond

    def add(self, places: Tensor) -> None:
        """Take the places of negative scores, (m,), into the moments; they may be overwritten."""
        kept = places.clone()
        beyond = self._outside(places)
        if beyond is not None:
            far = kept[beyond].double()
            self.beyond += torch.stack([torch.ones_like(far).sum(), ((far - 1) / CELLS + self.low).sum()])
        cell = places.to(torch.int32)
        offset = places.sub_(cell).sub_(0.5)
        weights: Tensor | None = None
        for moment in self.moments:
            moment += torch.bincount(cell, weights, minlength=self.cells)
            weights = offset if weights is None else weights * offset

    def total(self) -> Tensor:
        """Sum over all pairs, once all scores are in the moments."""
        self._close()
        count, scores = self.beyond
        far = scores * self.weight - count * self.weight * self.positive
        total: Tensor = (self.value_terms * self.moments[:, self.used]).sum() + far.sum()
        return total

    def positive_slopes(self) -> Tensor:
        """Derivatives by the positive scores."""
        moments = self.moments[:, self.used]
        steps = CELLS ** -torch.arange(0.0, self.terms, dtype=torch.float64, device=moments.device)
        scaled = moments * (steps / FACTORIALS[: self.terms].to(moments.device)).unsqueeze(1)
        # sum_k M_k sigma^(k) / k! as a polynomial in sigma
        terms = SIGMOID[: self.terms].to(moments.device).T @ scaled
        found = self.beyond[0].expand(len(self.positive)).clone()
        for part in self._parts():
            s = (self.centre[part].unsqueeze(1) - self.positive).sigmoid()
            power = s
            for term in terms:
                found += term[part] @ power
                power = power * s
        return -found * self.weight

    def slopes(self, places: Tensor, out: Tensor) -> None:
        """Put the derivatives by negative scores, (m,), into ``out``; their places may be overwritten."""
        beyond = self._outside(places)
        cell = places.to(torch.int32)
        offset = places.sub_(cell).sub_(0.5)
        first, *rest = self.slope_terms.flip(0)
        torch.index_select(first, 0, cell, out=out)
        for term in rest:
            out.mul_(offset).add_(term.index_select(0, cell))
        if beyond is not None:
            out.masked_fill_(beyond, float(self.weight.sum()))


class Hinge:
    """Sorted positives with prefix sums: exact for the hinge and its square."""

    factor = 1.0

    def __init__(self, positive: Tensor, weight: Tensor, margin: float, squared: bool) -> None:
        ordered, self.order = positive.double().sort()
        self.edges = ordered - margin
        self.margin, self.squared = margin, squared
        self.weight = weight.double()[self.order]
        zero = ordered.new_zeros(1)
        self.prefix = [torch.cat([zero, (self.weight * self.edges**k).cumsum(0)]) for k in range(3 if squared else 2)]
        self.sums = torch.zeros(2, len(positive) + 1, dtype=torch.float64, device=positive.device)
        self._total = torch.zeros((), dtype=torch.float64, device=positive.device)
        self.neutral = float(self.edges[0]) - 1.0

    def place(self, scores: Tensor) -> None:
        """Scores are taken as they are."""

    def add(self, scores: Tensor) -> None:
        """Take negative scores, (m,), into the sums."""
        wide = scores.double()
        reached = torch.searchsorted(self.edges, wide)
        terms = [prefix[reached] for prefix in self.prefix]
        if self.squared:
            self._total += (wide * wide * terms[0] - 2 * wide * terms[1] + terms[2]).sum()
        else:
            self._total += (wide * terms[0] - terms[1]).sum()
        self.sums[0] += torch.bincount(reached, minlength=self.sums.shape[1])
        self.sums[1] += torch.bincount(reached, wide, minlength=self.sums.shape[1])

    def total(self) -> Tensor:
        """Sum over all pairs."""
        return self._total

    def positive_slopes(self) -> Tensor:
        """Derivatives by the positive scores."""
        # A negative that reaches k positives is active for the first k.
        count, total = self.sums.flip(1).cumsum(1).flip(1)[:, 1:]
        slope = 2 * (total - count * self.edges) if self.squared else count
        return torch.empty_like(slope).scatter(0, self.order, -slope * self.weight)

    def slopes(self, scores: Tensor, out: Tensor) -> None:
        """Put the derivatives by negative scores, (m,), into ``out``."""
        wide = scores.double()
        reached = torch.searchsorted(self.edges, wide)
        slope = self.prefix[0][reached]
        if self.squared:
            slope = 2 * (wide * slope - self.prefix[1][reached])
        out.copy_(slope)


class Square:
    """Moments of both sides: exact for the square."""

    factor = 1.0
    neutral = 0.0

    def __init__(self, positive: Tensor, weight: Tensor, margin: float, count: float) -> None:
        self.edges, self.weight = positive.double() - margin, weight.double()
        self.count = count
        self.sums = torch.zeros(2, dtype=torch.float64, device=positive.device)

    def place(self, scores: Tensor) -> None:
        """Scores are taken as they are."""

    def add(self, scores: Tensor) -> None:
        """Take negative scores, (m,), into the sums; hidden ones are zero and left out of the count."""
        wide = scores.double()
        self.sums += torch.stack([wide.sum(), wide.square().sum()])

    def total(self) -> Tensor:
        """Sum over all pairs."""
        first, second = self.sums
        edges, weight = self.edges, self.weight
        total: Tensor = (weight * (second - 2 * first * edges + self.count * edges**2)).sum()
        return total

    def positive_slopes(self) -> Tensor:
        """Derivatives by the positive scores."""
        return -2 * self.weight * (self.sums[0] - self.count * self.edges)

    def slopes(self, scores: Tensor, out: Tensor) -> None:
        """Put the derivatives by negative scores, (m,), into ``out``."""
        out.copy_(2 * (scores.double() * self.weight.sum() - (self.weight * self.edges).sum()))


class Direct:
    """Every pair in turn, for logistic positives too far apart for a table."""

    factor = 1.0

    def __init__(self, positive: Tensor, weight: Tensor) -> None:
        self.positive, self.weight = positive.double(), weight.double()
        self._total = torch.zeros((), dtype=torch.float64, device=positive.device)
        self.found = torch.zeros_like(self.positive)
        self.neutral = float(self.positive.min()) - 1e3

    def place(self, scores: Tensor) -> None:
        """Scores are taken as they are."""

    def add(self, scores: Tensor) -> None:
        """Take negative scores, (m,), into the sums."""
        for part in scores.double().split(max(2**20 // len(self.positive), 1)):
            gap = part.unsqueeze(1) - self.positive
            self._total += ((gap.clamp_min(0) + torch.log1p((-gap.abs()).exp())) @ self.weight).sum()
            self.found -= gap.sigmoid().sum(0) * self.weight

    def total(self) -> Tensor:
        """Sum over all pairs."""
        return self._total

    def positive_slopes(self) -> Tensor:
        """Derivatives by the positive scores."""
        return self.found

    def slopes(self, scores: Tensor, out: Tensor) -> None:
        """Put the derivatives by negative scores, (m,), into ``out``."""
        parts = scores.double().split(max(2**20 // len(self.positive), 1))
        out.copy_(torch.cat([(p.unsqueeze(1) - self.positive).sigmoid() @ self.weight for p in parts]))


def side_of(kind: int, margin: float, positive: Tensor, weight: Tensor, count: float) -> Any:
    """What knows the positives: 0 logistic, 1 hinge, 2 squared hinge, 3 square."""
    if kind in (1, 2):
        return Hinge(positive, weight, margin, squared=kind == 2)
    if kind == 3:
        return Square(positive, weight, margin, count)
    spread = float(positive.max()) - float(positive.min())
    if not math.isfinite(spread) or (spread + 2 * REACH) * CELLS > MOST_CELLS:
        return Direct(positive, weight)
    # Three terms are good to 1e-8 a pair, four to 1e-11.
    return Logistic(positive, weight, 4 if positive.dtype == torch.float64 else 3)
