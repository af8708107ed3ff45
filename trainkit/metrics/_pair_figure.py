"""Figure of scores over positive and negative pairs: their distributions, and the ROC curve."""

import torch
from torch import Tensor

from trainkit._core.figures import Axes, Bars, Figure, Line, numbers
from trainkit._core.numerics import sum_dtype

__all__ = ["BARS", "pair_figure"]

BARS = 48
POINTS = 200
"""Points of the ROC curve, about."""


def _bars(counts: Tensor, edges: Tensor, total: Tensor, label: str) -> Bars:
    """Densities of what is between the edges."""
    width = edges[1:] - edges[:-1]
    left, right, height = (numbers(v.tolist()) for v in (edges[:-1], edges[1:], counts / (total * width)))
    return Bars(left, right, height, label=label)


def _histogram(positives: Tensor, negatives: Tensor, low: float, high: float) -> Axes:
    """Densities of the scores of both kinds, over the range that holds any."""
    both = torch.stack([positives, negatives]).to("cpu", torch.float64)
    totals, inner = both.sum(1), both[:, 1:-1]
    outside = int(totals.sum() - inner.sum())
    cells = inner.shape[1]
    filled = inner.sum(0).nonzero()[:, 0].tolist() or [0, cells - 1]
    first, end = filled[0], filled[-1] + 1
    bars = min(BARS, end - first)
    cuts = first + (torch.arange(bars + 1) * (end - first)) // bars
    sums = torch.nn.functional.pad(inner.cumsum(1), (1, 0))[:, cuts]
    edges = low + cuts.to(torch.float64) * ((high - low) / cells)
    counts = sums[:, 1:] - sums[:, :-1]
    names = [f"{int(n):,} {kind} pairs" for n, kind in zip(totals, ("positive", "negative"), strict=True)]
    marks = [_bars(n, edges, total, name) for n, total, name in zip(counts, totals, names, strict=True)]
    title = f"Scores ({outside:,} outside of [{low:g}, {high:g}])" if outside else "Scores"
    return Axes((marks[1], marks[0]), title=title, x_label="score", y_label="density")


def _curve(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of negative and of positive pairs above each threshold, from none to all, thinned along the curve."""
    counts = torch.stack([negatives, positives]).flip(1).cumsum(1).to(sum_dtype(positives.device)).cpu()
    rates = torch.nn.functional.pad(counts / counts[:, -1:], (1, 0))
    last = rates.shape[1] - 1
    if last < POINTS:
        return rates[0], rates[1]
    # Stretches of equal length, since nearly all thresholds may lie in one corner. Of each the middle threshold: the
    # first ones lie just after a positive pair too often, and the area would be too large.
    stretch = (rates.sum(0) * (POINTS / 2)).nan_to_num().floor()
    begins = torch.nn.functional.pad(stretch.diff().nonzero()[:, 0] + 1, (1, 1))
    begins[-1] = last + 1
    kept = torch.cat([begins.new_tensor([0, last]), (begins[:-1] + begins[1:] - 1) // 2]).unique()
    return rates[0, kept], rates[1, kept]


def pair_figure(
    histogram: tuple[Tensor, Tensor], low: float, high: float, cells: tuple[Tensor, Tensor], auroc: Tensor, title: str
) -> Figure:
    """Histograms of the scores above, and the ROC curve below.

    Args:
        histogram: Positive and negative pairs in cells of equal width, with one more at each end for what is outside.
        low: Lower end of the range.
        high: Upper end of the range.
        cells: Positive and negative pairs in each cell of tied scores, in ascending order.
        auroc: Area under the curve.
        title: Above the figure.
    """
    above = _histogram(*histogram, low, high)
    wrong, right = _curve(*cells) if len(cells[0]) else (torch.zeros(0), torch.zeros(0))
    below = Axes(
        (
            Line(numbers(wrong.tolist()), numbers(right.tolist())),
            Line((0.0, 1.0), (0.0, 1.0), label="chance", dashed=True),
        ),
        title=f"ROC curve (AUROC {float(auroc):.4f})",
        x_label="share of negative pairs above the threshold",
        y_label="share of positive pairs",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        legend=False,
        share=1.6,
    )
    return Figure((above, below), title=title, height=560)
