"""Calibration error of predicted quantiles."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainkit._core.checks import check_flag
from trainkit._core.figures import Axes, Figure, Line, Points, numbers
from trainkit._core.metric import mean_or_nan
from trainkit._core.rasters import Plotted
from trainkit.calibration.metrics._regression import (
    RowScore,
    Sums,
    check_levels,
    check_power,
    check_quantiles,
    checked_inputs,
    crossed,
    summed,
)

__all__ = ["QuantileCalibrationError", "quantile_calibration_error"]


def _sums(
    owner: str, levels: tuple[float, ...], quantiles: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> Sums:
    """Sums of the rows whose target is at most the quantile of each level, and of those that cross, (Q + 1,)."""
    check_quantiles(owner, quantiles, levels)
    inputs = checked_inputs(owner, target, weight, validate_args, several={"quantiles": quantiles})
    q = inputs.given["quantiles"]
    return summed([*(inputs.target.unsqueeze(1) <= q).unbind(1), crossed(q)], inputs.weight)


def _error(levels: Sequence[float], p: int, observed: Tensor) -> Tensor:
    return (observed - observed.new_tensor(levels)).abs().pow(p).mean()


def _told(error: Tensor, observed: Tensor, crossings: Tensor, return_parts: bool) -> Tensor | dict[str, Tensor]:
    return {"error": error, "observed": observed, "crossings": crossings} if return_parts else error


@torch.no_grad()
def quantile_calibration_error(
    quantiles: Tensor,
    target: Tensor,
    *,
    levels: Sequence[float],
    weight: Tensor | None = None,
    p: int = 1,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`QuantileCalibrationError`."""
    owner = "quantile_calibration_error"
    check_power(owner, p)
    check_flag(owner, return_parts=return_parts)
    checked = check_levels(owner, levels)
    sums = _sums(owner, checked, quantiles, target, weight, validate_args)
    observed = mean_or_nan(owner, *sums)[:-1]
    return _told(_error(checked, p, observed), observed, sums.totals[-1], return_parts)


class QuantileCalibrationError(Plotted, RowScore):
    r"""Mean distance between the level of predicted quantiles and the share of targets that are at most as large.

    Use it for models that predict quantiles; :class:`PITCalibrationError` is its form for whole distributions. It is
    zero for quantiles of the marginal distribution too, which say nothing of the single target: report
    :class:`QuantileScore` beside it.

    .. math:: \frac{1}{Q} \sum_q \left| \frac{1}{\sum_i w_i} \sum_i w_i [y_i \le \hat{q}_{iq}] - \tau_q \right|^p

    Args:
        levels: Levels of the quantiles, ascending in (0, 1).
        p: Power of the distances, 1 or 2; no root is taken.
        return_parts: Give a dict in place of the error: ``error``; ``observed``, the share of each level;
            ``crossings``, the number of rows in which a quantile is below that of a lower level.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - quantiles: (N, Q, ...), one for each level in dimension 1
        - target: (N, ...)
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of ``error`` (), ``observed`` (Q,) and ``crossings`` (); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import QuantileCalibrationError
        >>> metric = QuantileCalibrationError([0.25, 0.75])
        >>> metric.update(torch.tensor([[-1.0, 1.0], [0.0, 2.0]]), torch.tensor([0.5, 3.0]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)

    Note:
        A target equal to a quantile counts as below it. Quantiles that cross are counted and taken as they are, never
        sorted. Inputs are upcast to fp64 (fp32 on mps). State: Q + 2 fp64 sums; exact over any split into batches and
        ranks, under any cast and under autocast. :meth:`figure` gives observed shares over levels as data; ``plot``
        draws it and needs the extra ``plots``. Nothing to average gives nan and a warning. Without gradients.

    References:
        Dheur and Ben Taieb, "A Large-Scale Study of Probabilistic Calibration in Neural Network Regression", ICML 2023.
        arXiv:2306.02738
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self, levels: Sequence[float], p: int = 1, return_parts: bool = False, validate_args: bool = True
    ) -> None:
        checked = check_levels("QuantileCalibrationError", levels)
        check_power("QuantileCalibrationError", p)
        super().__init__(len(checked) + 1, return_parts, validate_args, checked)
        self.levels = checked
        self.p = p

    def update(self, quantiles: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        self.add(_sums("QuantileCalibrationError", self.levels, quantiles, target, weight, self.validate_args))

    def compute(self) -> Tensor | dict[str, Tensor]:
        observed = self.means()[:-1]
        return _told(_error(self.levels, self.p, observed), observed, self.totals[-1], self.return_parts)

    def figure(self, title: str = "") -> Figure:
        """Share of targets at most as large as the quantile of each level; all ranks call it together.

        Args:
            title: Above the figure.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            observed = (self.totals[:-1] / self.weight_sum).cpu()
        shares = numbers(observed.tolist())
        axes = Axes(
            (
                Line((0.0, 1.0), (0.0, 1.0), label="calibrated", dashed=True),
                Points(self.levels, shares, label="quantiles"),
            ),
            title=f"Quantile calibration error {float(_error(self.levels, self.p, observed)):.4f}",
            x_label="level",
            y_label="share of targets at most as large",
            x_range=(0.0, 1.0),
            y_range=(0.0, 1.0),
        )
        return Figure((axes,), title=title)
