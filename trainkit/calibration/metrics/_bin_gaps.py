"""What is read from bins: how far accuracy and confidence lie apart, as one number and as a reliability diagram."""

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trainkit._core.binning import BinSums
from trainkit._core.checks import check_choice, check_flag, reject
from trainkit._core.figures import Axes, Bars, Figure, Line, Points
from trainkit._core.metric import mean_or_nan
from trainkit.calibration.metrics._binned import BinnedScores, Reduce

__all__ = ["Measure", "Norm", "Weighting", "reliability", "reliability_figure"]

Norm: TypeAlias = Literal["l1", "l2", "max"]
Weighting: TypeAlias = Literal["count", "uniform"]

Z = 1.96


class Measure(NamedTuple):
    """How the gaps of the bins become one number."""

    norm: Norm
    weighting: Weighting
    debias: bool
    squared: bool
    per_class: bool

    def check(self, owner: str, reduce: Reduce | None) -> None:
        check_choice(owner, "norm", self.norm, ("l1", "l2", "max"))
        check_choice(owner, "weighting", self.weighting, ("count", "uniform"))
        check_flag(owner, debias=self.debias, squared=self.squared, per_class=self.per_class)
        for argument in ("debias", "squared"):
            if getattr(self, argument) and self.norm != "l2":
                reject(owner, argument, f"be False for norm={self.norm!r}, since it is defined for 'l2'", True)
        if self.per_class and reduce != "classwise":
            reject(owner, "per_class", f"be False for reduce={reduce!r}, which has no value a class", True)

    def value(self, owner: str, sums: BinSums, warn: bool = True) -> Tensor:
        """The error, nan and a warning if nothing is in the bins."""
        errors = self._of_classes(sums)
        if errors.dim() and not self.per_class:
            errors = errors.mean()
        if self.norm == "l2" and not self.squared:
            errors = errors.clamp_min(0).sqrt()
        some = sums.weight.any()
        return mean_or_nan(owner, torch.where(some, errors, 0), some.to(errors.dtype), warn=warn)

    def _of_classes(self, sums: BinSums) -> Tensor:
        """Error of every row of bins, its square for l2; zero for a row without scores."""
        weight, score, hit = sums
        filled, total = weight > 0, weight.sum(-1, keepdim=True)
        apart = (hit - score).abs()
        if self.norm == "l1" and self.weighting == "count":
            # Without a division by the weight of the bin, which would have to be undone.
            return torch.where(filled, apart / total, 0).sum(-1)
        gaps = torch.where(filled, apart / weight, 0)
        if self.norm == "max":
            return gaps.amax(-1)
        if self.norm == "l2":
            gaps = self._squares(gaps, weight, hit)
        if self.weighting == "uniform":
            weight = filled.to(weight.dtype)
            total = weight.sum(-1, keepdim=True)
        shares = weight / total
        return torch.where(filled, shares * gaps, 0).sum(-1)

    def _squares(self, gaps: Tensor, weight: Tensor, hit: Tensor) -> Tensor:
        if not self.debias:
            return gaps.square()
        rate = hit / weight
        return torch.where(weight < 2, 0, gaps.square() - rate * (1 - rate) / (weight - 1))


def reliability(bins: BinnedScores) -> dict[str, Tensor]:
    """What the diagram shows of the bins; nan where one is empty."""
    n, score, hit = bins.sums
    conf, acc = score / n, hit / n
    centre = (hit + Z**2 / 2) / (n + Z**2)
    half = Z / (n + Z**2) * ((hit * (n - hit) / n).clamp_min(0) + Z**2 / 4).sqrt()
    return {
        "edges": bins.edges.clone(),
        "count": n,
        "conf": conf,
        "acc": acc,
        "gap": acc - conf,
        "wilson_lo": (centre - half).clamp_min(0),
        "wilson_hi": (centre + half).clamp_max(1),
    }


def reliability_figure(values: dict[str, Tensor], title: str) -> Figure:
    """The diagram of one row of bins, and below it how much there is in each."""
    told = {name: tuple(value.tolist()) for name, value in values.items()}
    left, right = told["edges"][:-1], told["edges"][1:]
    total = sum(told["count"])
    above = Axes(
        marks=(
            Bars(left, right, told["acc"], label="accuracy"),
            Line((0.0, 1.0), (0.0, 1.0), label="calibrated", dashed=True),
            Points(told["conf"], told["acc"], told["wilson_lo"], told["wilson_hi"], label="95% interval"),
        ),
        title=f"Reliability ({total:g} scores)",
        y_label="accuracy",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        share=2.4,
    )
    below = Axes(
        marks=(Bars(left, right, told["count"], label=""),), x_label="confidence", y_label="count", x_range=(0.0, 1.0)
    )
    return Figure((above, below), title=title)
