"""Scores of predicted quantiles: the mean pinball loss, and its form for central intervals."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainkit._core.checks import check_flag, reject
from trainkit._core.crps import pinball
from trainkit._core.metric import mean_or_nan
from trainkit.calibration.metrics._regression import (
    RowScore,
    Sums,
    check_levels,
    check_quantiles,
    checked_inputs,
    crossed,
    summed,
)

__all__ = ["QuantileScore", "WeightedIntervalScore", "quantile_score", "weighted_interval_score"]

INTERVAL_PARTS = ("score", "dispersion", "underprediction", "overprediction")


def _score_sums(
    owner: str, levels: tuple[float, ...], quantiles: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> Sums:
    """Sums of the pinball losses of each level and of the rows whose quantiles cross, (Q + 1,)."""
    check_quantiles(owner, quantiles, levels)
    inputs = checked_inputs(owner, target, weight, validate_args, several={"quantiles": quantiles})
    q = inputs.given["quantiles"]
    losses = pinball(q, inputs.target, q.new_tensor(levels))
    return summed([*losses.unbind(1), crossed(q)], inputs.weight)


def _told_score(means: Tensor, totals: Tensor, return_parts: bool) -> Tensor | dict[str, Tensor]:
    score = means[:-1].mean()
    return {"score": score, "per_level": means[:-1], "crossings": totals[-1]} if return_parts else score


@torch.no_grad()
def quantile_score(
    quantiles: Tensor,
    target: Tensor,
    *,
    levels: Sequence[float],
    weight: Tensor | None = None,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`QuantileScore`."""
    owner = "quantile_score"
    check_flag(owner, return_parts=return_parts)
    sums = _score_sums(owner, check_levels(owner, levels), quantiles, target, weight, validate_args)
    return _told_score(mean_or_nan(owner, *sums), sums.totals, return_parts)


class QuantileScore(RowScore):
    r"""Mean pinball loss of predicted quantiles, in the unit of the target.

    Use it to compare models that predict quantiles: it is a proper score, least for the true ones. Twice its value
    tends to the CRPS as levels fill [0, 1] evenly; for the level 0.5 alone that is the mean absolute error.

    .. math:: \mathrm{QS} = \frac{1}{\sum_i w_i} \sum_i w_i \frac{1}{Q} \sum_q \max(\tau_q d_{iq}, (\tau_q - 1) d_{iq}),
        \quad d_{iq} = y_i - \hat{q}_{iq}

    Args:
        levels: Levels of the quantiles, ascending in (0, 1).
        return_parts: Give a dict in place of the score: ``score``; ``per_level``, the mean of each level;
            ``crossings``, the number of rows in which a quantile is below that of a lower level.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - quantiles: (N, Q, ...), one for each level in dimension 1
        - target: (N, ...)
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of ``score`` (), ``per_level`` (Q,) and ``crossings`` (); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import QuantileScore
        >>> metric = QuantileScore([0.1, 0.5, 0.9], return_parts=True)
        >>> metric.update(torch.tensor([[-1.0, 0.0, 1.0], [0.0, 2.0, 1.5]]), torch.tensor([0.5, 3.0]))
        >>> metric.compute()["per_level"]
        tensor([0.2250, 0.3750, 0.7000], dtype=torch.float64)
        >>> metric.compute()["crossings"]
        tensor(1., dtype=torch.float64)

    Note:
        Quantiles that cross are counted and scored as they are, never sorted; a weight counts as so many rows. Inputs
        are upcast to fp64 (fp32 on mps). State: Q + 2 fp64 sums; exact over any split into batches and ranks, under
        any cast and under autocast. Nothing to average gives nan and a warning. Without gradients: train on a loss.

    References:
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
        Dheur and Ben Taieb, "A Large-Scale Study of Probabilistic Calibration in Neural Network Regression", ICML 2023.
        arXiv:2306.02738
    """

    plot_lower_bound = 0.0

    def __init__(self, levels: Sequence[float], return_parts: bool = False, validate_args: bool = True) -> None:
        checked = check_levels("QuantileScore", levels)
        super().__init__(len(checked) + 1, return_parts, validate_args, checked)
        self.levels = checked

    def update(self, quantiles: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        self.add(_score_sums("QuantileScore", self.levels, quantiles, target, weight, self.validate_args))

    def compute(self) -> Tensor | dict[str, Tensor]:
        return _told_score(self.means(), self.totals, self.return_parts)


def _check_central(owner: str, levels: Sequence[float]) -> tuple[float, ...]:
    """Require levels that are the ends of central intervals, and the median."""
    checked = check_levels(owner, levels)
    pairs = zip(checked, reversed(checked), strict=True)
    if len(checked) % 2 == 0 or any(abs(low + high - 1) > 1e-9 for low, high in pairs):
        reject(owner, "levels", "hold 0.5 and, with each level, one minus it", levels)
    return checked


def _interval_sums(
    owner: str, levels: tuple[float, ...], quantiles: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> Sums:
    """Sums of the :data:`INTERVAL_PARTS` and of the rows whose quantiles cross, (5,)."""
    check_quantiles(owner, quantiles, levels)
    inputs = checked_inputs(owner, target, weight, validate_args, several={"quantiles": quantiles})
    q, y, middle = inputs.given["quantiles"], inputs.target.unsqueeze(1), len(levels) // 2
    lower, median, upper = q[:, :middle], q[:, middle : middle + 1], q[:, middle + 1 :].flip(1)
    # Half of alpha, the share outside of the interval, is the level of its lower end.
    width = (q.new_tensor(levels[:middle]) * (upper - lower)).sum(1)
    under = (y - upper).clamp_min(0).sum(1) + (y - median).clamp_min(0).sum(1) / 2
    over = (lower - y).clamp_min(0).sum(1) + (median - y).clamp_min(0).sum(1) / 2
    parts = [part / (middle + 0.5) for part in (width + under + over, width, under, over)]
    return summed([*parts, crossed(q)], inputs.weight)


def _told_intervals(means: Tensor, totals: Tensor, return_parts: bool) -> Tensor | dict[str, Tensor]:
    parts = dict(zip(INTERVAL_PARTS, means[:-1], strict=True))
    return {**parts, "crossings": totals[-1]} if return_parts else parts["score"]


@torch.no_grad()
def weighted_interval_score(
    quantiles: Tensor,
    target: Tensor,
    *,
    levels: Sequence[float],
    weight: Tensor | None = None,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`WeightedIntervalScore`."""
    owner = "weighted_interval_score"
    check_flag(owner, return_parts=return_parts)
    sums = _interval_sums(owner, _check_central(owner, levels), quantiles, target, weight, validate_args)
    return _told_intervals(mean_or_nan(owner, *sums), sums.totals, return_parts)


class WeightedIntervalScore(RowScore):
    r"""Mean of the interval scores of several central intervals and the absolute error of the median.

    Use it for forecasts that are given as a median and central intervals: it approximates the CRPS, and its parts tell
    whether intervals are wide or the target lies outside of them, and on which side.

    .. math:: \mathrm{WIS} = \frac{1}{K + 1/2} \left( \tfrac{1}{2} |y - m| + \sum_k \tfrac{\alpha_k}{2}
        \mathrm{IS}_{\alpha_k}(l_k, u_k; y) \right)

    and its weighted mean over targets, with :math:`\mathrm{IS}_\alpha` as in :class:`IntervalScore`. It is twice the
    :class:`QuantileScore` of the same quantiles.

    Args:
        levels: Levels of the quantiles, ascending in (0, 1): the median 0.5 and, for K intervals, both ends
            :math:`\alpha_k / 2` and :math:`1 - \alpha_k / 2`.
        return_parts: Give a dict in place of the score: ``score``; its parts ``dispersion`` (from the widths),
            ``underprediction`` (the target above) and ``overprediction`` (below), which add up to it; ``crossings``,
            the number of rows in which a quantile is below that of a lower level.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - quantiles: (N, 2K + 1, ...), one for each level in dimension 1
        - target: (N, ...)
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of such; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import WeightedIntervalScore
        >>> metric = WeightedIntervalScore([0.1, 0.5, 0.9])
        >>> metric.update(torch.tensor([[-1.0, 0.0, 1.0], [0.0, 1.0, 2.0]]), torch.tensor([0.5, 3.0]))
        >>> metric.compute()
        tensor(0.8833, dtype=torch.float64)

    Note:
        Quantiles that cross are counted and scored as they are, never sorted; a weight counts as so many rows. Inputs
        are upcast to fp64 (fp32 on mps). State: six fp64 sums; exact over any split into batches and ranks, under any
        cast and under autocast. Nothing to average gives nan and a warning. Without gradients: train on a loss.

    References:
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
    """

    plot_lower_bound = 0.0

    def __init__(self, levels: Sequence[float], return_parts: bool = False, validate_args: bool = True) -> None:
        checked = _check_central("WeightedIntervalScore", levels)
        super().__init__(len(INTERVAL_PARTS) + 1, return_parts, validate_args, checked)
        self.levels = checked

    def update(self, quantiles: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        self.add(_interval_sums("WeightedIntervalScore", self.levels, quantiles, target, weight, self.validate_args))

    def compute(self) -> Tensor | dict[str, Tensor]:
        return _told_intervals(self.means(), self.totals, self.return_parts)
