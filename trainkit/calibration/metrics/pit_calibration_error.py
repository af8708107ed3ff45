"""Calibration error of predicted distributions, by the probability integral transform."""

from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_choice,
    check_floating,
    check_integer,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.figures import Axes, Bars, Figure, Line, numbers
from trainkit._core.metric import RowMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype, upcast
from trainkit._core.rasters import Plotted
from trainkit.calibration.metrics._regression import check_power

__all__ = ["PITCalibrationError", "pit_calibration_error"]

Form: TypeAlias = Literal["grid", "sorted"]

BARS = 10
"""Bars of the histogram in the figure, at most."""


def _check(owner: str, p: int, n_levels: int, form: Form) -> None:
    check_power(owner, p)
    check_integer(owner, "n_levels", n_levels, minimum=1)
    check_choice(owner, "form", form, ("grid", "sorted"))


def _rows(owner: str, pit: Tensor, weight: Tensor | None, validate_args: bool) -> tuple[Tensor, Tensor]:
    """Transforms of at least fp32 and their weights, each (n,), without those that weigh nothing."""
    check_floating(owner, pit=pit)
    if pit.dim() == 0:
        reject(owner, "pit", "have shape (N, ...)", pit)
    check_same_shape(owner, "pit", pit.shape, weight=weight)
    if values_checked(validate_args):
        rules = [("pit", "be in [0, 1]", pit, (pit >= 0) & (pit <= 1))]
        if weight is not None:
            rules.append(("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))
        check_values(owner, *rules)
    values = upcast(pit).reshape(-1)
    if weight is None:
        return values, torch.ones_like(values, dtype=torch.uint8)
    kept = weight.reshape(-1) > 0
    return values[kept], weight.reshape(-1)[kept].to(sum_dtype(pit.device))


def _levels(n_levels: int, device: torch.device) -> Tensor:
    """Middles of so many cells of [0, 1]."""
    return (torch.arange(n_levels, dtype=sum_dtype(device), device=device) + 0.5) / n_levels


def _cells(pit: Tensor, weight: Tensor, n_levels: int) -> Tensor:
    """Weight between neighbouring levels, of which the upper one counts as inside, (n_levels + 1,)."""
    levels = _levels(n_levels, pit.device)
    index = torch.searchsorted(levels, pit.to(levels.dtype))
    return levels.new_zeros(n_levels + 1).index_add(0, index, weight.to(levels.dtype))


def _grid_value(owner: str, cells: Tensor, p: int, warn: bool = True) -> Tensor:
    observed = mean_or_nan(owner, cells.cumsum(0)[:-1], cells.sum(), warn=warn)
    return (observed - _levels(len(observed), cells.device)).abs().pow(p).mean()


def _sorted_value(owner: str, pit: Tensor, weight: Tensor, p: int, warn: bool = True) -> Tensor:
    """Mean over ranks of the distance to the rank; a weight of w is w rows, the last of which may be a part of one."""
    values, tie = torch.unique(pit.to(sum_dtype(pit.device)), return_inverse=True)
    w = torch.zeros_like(values).index_add(0, tie, weight.to(values.dtype))
    total = w.sum()
    place = values * (total + 1) - (w.cumsum(0) - w)
    whole = w.floor()
    if p == 1:
        below = torch.minimum(place.floor().clamp_min(0), whole)
        ranks = below * (place - (below + 1) / 2) + (whole - below) * ((whole + below + 1) / 2 - place)
    else:
        ranks = whole * ((place - (whole + 1) / 2).square() + (whole.square() - 1) / 12)
    distance = ranks + (w - whole) * (place - w).abs().pow(p)
    return mean_or_nan(owner, distance.sum() / (total + 1) ** p, total, warn=warn)


@torch.no_grad()
def pit_calibration_error(
    pit: Tensor,
    *,
    weight: Tensor | None = None,
    p: int = 1,
    n_levels: int = 100,
    form: Form = "grid",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`PITCalibrationError`."""
    owner = "pit_calibration_error"
    _check(owner, p, n_levels, form)
    values, weights = _rows(owner, pit, weight, validate_args)
    if form == "grid":
        return _grid_value(owner, _cells(values, weights, n_levels), p)
    return _sorted_value(owner, values, weights, p)


class PITCalibrationError(Plotted, RowMetric):
    r"""Distance of the probability integral transforms u = F(y) of the targets from a uniform distribution.

    Use it for models that predict distributions: for a calibrated one, a share a of the targets is at most as large as
    the predicted quantile of level a. :func:`normal_pit`, :func:`mixture_pit`, :func:`ensemble_pit` and
    :func:`distribution_pit` give the transforms. It is zero for the marginal distribution too: report a proper score
    such as :class:`NormalCRPS` beside it.

    .. math:: \mathrm{PCE} = \frac{1}{M} \sum_{m=0}^{M-1} \Big| \frac{1}{N} \sum_i [u_i \le a_m] - a_m \Big|^p, \quad
        a_m = \frac{m + 1/2}{M}

    ``form="sorted"`` compares ranks in place of levels:
    :math:`\frac{1}{N} \sum_i |u_{(i)} - \frac{i}{N + 1}|^p`.

    Args:
        p: Power of the distances, 1 or 2; no root is taken.
        n_levels: Number M of levels; for ``"sorted"`` those of the figure alone.
        form: ``"grid"``, of constant size, or ``"sorted"``, which keeps the sample.
        validate_args: Check the values of transforms and weight.

    Shape:
        - pit: (N, ...), in [0, 1]
        - weight: one number >= 0 for each transform, optional
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import PITCalibrationError, normal_pit
        >>> metric = PITCalibrationError()
        >>> mean, std = torch.zeros(4), torch.ones(4)
        >>> metric.update(normal_pit(mean, std, torch.tensor([-2.0, 0.5, 1.0, 3.0])))
        >>> metric.compute()
        tensor(0.1904, dtype=torch.float64)

    Note:
        Both forms are exact over any split into batches and ranks. ``"grid"``: M + 1 fp64 sums (fp32 on mps).
        ``"sorted"``: the whole sample, so that memory grows with it, 5 bytes for each fp32 transform, gathered over the
        ranks; a weight counts as so many rows, of which the last may be a part. :meth:`figure` gives the shares of
        transforms up to each level, and their histogram, as data; ``plot`` draws it and needs the extra ``plots``.
        Nothing to average gives nan and a warning. Without gradients.

    References:
        Dheur and Ben Taieb, "A Large-Scale Study of Probabilistic Calibration in Neural Network Regression", ICML 2023.
        arXiv:2306.02738
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    cells: Tensor
    pit: Tensor
    weights: Tensor

    def __init__(self, p: int = 1, n_levels: int = 100, form: Form = "grid", validate_args: bool = True) -> None:
        super().__init__(validate_args)
        _check("PITCalibrationError", p, n_levels, form)
        self.p = p
        self.n_levels = n_levels
        self.form: Form = form
        if form == "grid":
            self.add_sums("cells", shape=(n_levels + 1,))
            self.tell_apart(form, n_levels)
        else:
            self.add_rows("pit", "weights")
            self.tell_apart(form)

    def update(self, pit: Tensor, *, weight: Tensor | None = None) -> None:
        values, weights = _rows("PITCalibrationError", pit, weight, self.validate_args)
        if self.form == "grid":
            self.cells = self.cells + _cells(values, weights, self.n_levels)
        else:
            self.append("pit", values)
            self.append("weights", weights)

    def compute(self) -> Tensor:
        return self._value(warn=self.update_called)

    def figure(self, title: str = "") -> Figure:
        """Share of transforms up to each level, and below it their histogram; all ranks call it together.

        Args:
            title: Above the figure.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            value = float(self._value(warn=False))
            cells = self.cells if self.form == "grid" else _cells(self.pit, self.weights, self.n_levels)
        return _figure(cells.cpu(), value, title)

    def _value(self, warn: bool) -> Tensor:
        if self.form == "grid":
            return _grid_value("PITCalibrationError", self.cells, self.p, warn)
        return _sorted_value("PITCalibrationError", self.pit, self.weights, self.p, warn)


def _figure(cells: Tensor, value: float, title: str) -> Figure:
    levels, total = _levels(len(cells) - 1, cells.device), cells.sum()
    observed = cells.cumsum(0)[:-1] / total
    # Bars end at levels, so that no transform has to be divided between two of them.
    count = min(BARS, len(cells))
    ends = [round(bar * len(cells) / count) for bar in range(count + 1)]
    edges = [0.0, *levels[[end - 1 for end in ends[1:-1]]].tolist(), 1.0]
    shares = [float(cells[low:high].sum() / total) for low, high in pairwise(ends)]
    heights = [share / (right - left) for share, (left, right) in zip(shares, pairwise(edges), strict=True)]
    curve = Axes(
        (
            Line((0.0, 1.0), (0.0, 1.0), label="calibrated", dashed=True),
            Line(numbers(levels.tolist()), numbers(observed.tolist()), label="transforms"),
        ),
        title=f"PIT calibration error {value:.4f}",
        y_label="share at most as large",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        share=2.4,
    )
    histogram = Axes(
        (Bars(numbers(edges[:-1]), numbers(edges[1:]), numbers(heights)), Line((0.0, 1.0), (1.0, 1.0), dashed=True)),
        x_label="probability integral transform",
        y_label="density",
        x_range=(0.0, 1.0),
    )
    return Figure((curve, histogram), title=title)
