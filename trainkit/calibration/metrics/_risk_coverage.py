"""What the metrics of selective prediction share: the risk-coverage curve, exact also among equal confidences."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit._core.figures import Axes, Figure, Line, numbers
from trainkit._core.numerics import sum_dtype
from trainkit._core.rasters import Plotted
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._binned import BinnedMetric, Rows, Scheme, sample_once

__all__ = ["RiskCoverage", "RiskCoverageMetric", "harmonic", "risk_coverage_once"]

POINTS = 200
"""Points of a curve in a figure, about."""

SERIES = 64.0
"""From where on the series of the digamma function is exact in fp64."""


def _scheme(task: Task, exact: bool, input_kind: InputKind, ignore_index: int) -> Scheme:
    """Confidences and hits, as for one bin of equal mass."""
    return Scheme(task, None, 1, "equal_mass", "top_label", 0.0, "left", "split", exact, input_kind, ignore_index)


def harmonic(start: Tensor, count: Tensor) -> Tensor:
    """Sum of 1/k over the ``count`` numbers k that follow ``start``, and its continuation between whole numbers.

    Differences of digamma lose digits where ``start`` is large; there its series is taken term by term.
    """
    low, high = start + 1, start + count + 1
    near = torch.digamma(high) - torch.digamma(low)
    a, b = low.clamp_min(SERIES), high.clamp_min(SERIES)
    far = torch.log1p(count / a) + (1 / a - 1 / b) / 2
    for power, divisor in ((2, 12), (4, -120), (6, 252)):
        far += (a**-power - b**-power) / divisor
    return torch.where(low < SERIES, near, far)


class RiskCoverage(NamedTuple):
    """Ties of confidence, the most confident first, each (G,).

    Args:
        weight: Weight of the rows of a tie.
        error: Weight of the errors among them.
    """

    weight: Tensor
    error: Tensor

    @property
    def before(self) -> tuple[Tensor, Tensor]:
        """Weight of rows and errors that come before each tie."""
        return self.weight.cumsum(0) - self.weight, self.error.cumsum(0) - self.error

    @property
    def totals(self) -> tuple[Tensor, Tensor]:
        """Weight of all rows and of all errors."""
        return self.weight.sum(), self.error.sum()

    def aurc(self) -> Tensor:
        """Sum over k of the mean error of the first k rows."""
        rows, errors = self.before
        rate = self.error / self.weight
        return (self.error + (errors - rows * rate) * harmonic(rows, self.weight)).sum()

    def best_aurc(self) -> Tensor:
        """The same if all errors came last."""
        total, errors = self.totals
        right = total - errors
        return errors - right * harmonic(right, errors)

    def augrc(self) -> Tensor:
        """Sum over k of the errors among the first k rows."""
        return (self.weight * self.before[1] + self.error * (self.weight + 1) / 2).sum()

    def errors_among(self, count: Tensor) -> Tensor:
        """Errors among so many of the most confident rows, (P,) for (P,)."""
        rows, errors = self.before
        tie = torch.searchsorted(rows, count).sub(1).clamp_min(0)
        share = ((count - rows[tie]) / self.weight[tie]).clamp(0, 1)
        return errors[tie] + share * self.error[tie]


def _ties(sample: Iterator[Rows]) -> RiskCoverage:
    (scores, hits, weight) = next(sample)
    dtype = sum_dtype(scores.device)
    confidences, tie = torch.unique(scores, return_inverse=True)
    w = weight.to(dtype)
    sums = w.new_zeros(2, len(confidences)).index_add_(1, tie, torch.stack([w, w * (1 - hits.to(dtype))]))
    return RiskCoverage(*sums.flip(1))


def risk_coverage_once(
    owner: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    task: Task,
    exact: bool,
    input_kind: InputKind,
    ignore_index: int,
    validate_args: bool,
) -> RiskCoverage:
    """Ties of one batch, the same to the last bit as those of a metric after one update."""
    scheme = _scheme(task, exact, input_kind, ignore_index)
    return _ties(sample_once(owner, scheme, logits, target, weight, validate_args))


class RiskCoverageMetric(Plotted, BinnedMetric):
    """A metric of errors in the order of confidence; those of the same task and input may share their states.

    Args:
        task: As in :class:`AURC`.
        exact: Whether the sample is kept.
        input_kind: As in :class:`AURC`.
        ignore_index: Target that is left out.
        validate_args: Whether values of the inputs are checked.
    """

    is_differentiable = False
    higher_is_better = False
    generalized = False

    def __init__(
        self,
        task: Task = "multiclass",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(_scheme(task, exact, input_kind, ignore_index), validate_args)

    def curve(self) -> RiskCoverage:
        """What has come so far, tie by tie."""
        return _ties(self.sample())

    def figure(self, title: str = "") -> Figure:
        """Risk over coverage so far, and if all errors came last; all ranks call it together.

        Args:
            title: Above the figure.
        """
        value = float(self.compute())
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            curve = self.curve()
        total, errors = curve.totals
        marks = []
        if len(curve.weight):
            shares = torch.linspace(0, 1, POINTS + 1, dtype=total.dtype, device=total.device)[1:]
            count = (shares * total).ceil().clamp_max(total).unique()
            over = total if self.generalized else count
            best = (count - (total - errors)).clamp_min(0)
            coverage = numbers((count / total).tolist())
            marks = [
                Line(coverage, numbers((found / over).tolist()), label=label, dashed=dashed)
                for found, label, dashed in (
                    (best, "all errors last", True),
                    (curve.errors_among(count), "most confident first", False),
                )
            ]
        axes = Axes(
            tuple(marks),
            title=f"{type(self).__name__} {value:.4f}",
            x_label="coverage",
            y_label="generalized risk" if self.generalized else "selective risk",
            x_range=(0.0, 1.0),
        )
        return Figure((axes,), title=title)
