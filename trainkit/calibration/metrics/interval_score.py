"""Score of a predicted interval."""

import torch
from torch import Tensor

from trainkit._core.checks import check_flag, check_number
from trainkit._core.metric import mean_or_nan
from trainkit.calibration.metrics._regression import RowScore, Sums, checked_inputs, summed

__all__ = ["IntervalScore", "interval_score"]

PARTS = ("score", "coverage", "width")


def _check(owner: str, alpha: float) -> None:
    check_number(owner, "alpha", alpha, minimum=0, open_minimum=True, maximum=1, open_maximum=True)


def _sums(
    owner: str, lower: Tensor, upper: Tensor, target: Tensor, weight: Tensor | None, alpha: float, validate_args: bool
) -> Sums:
    """Sums of the :data:`PARTS` and of the rows whose ends cross, (4,)."""
    inputs = checked_inputs(owner, target, weight, validate_args, single={"lower": lower, "upper": upper})
    y, low, high = inputs.target, inputs.given["lower"], inputs.given["upper"]
    width = high - low
    score = width + 2 / alpha * ((low - y).clamp_min(0) + (y - high).clamp_min(0))
    return summed([score, (low <= y) & (y <= high), width, low > high], inputs.weight)


def _told(means: Tensor, totals: Tensor, return_parts: bool) -> Tensor | dict[str, Tensor]:
    if not return_parts:
        return means[0]
    return {**dict(zip(PARTS, means[:-1], strict=True)), "crossings": totals[-1]}


@torch.no_grad()
def interval_score(
    lower: Tensor,
    upper: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    alpha: float = 0.1,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`IntervalScore`."""
    owner = "interval_score"
    _check(owner, alpha)
    check_flag(owner, return_parts=return_parts)
    sums = _sums(owner, lower, upper, target, weight, alpha, validate_args)
    return _told(mean_or_nan(owner, *sums), sums.totals, return_parts)


class IntervalScore(RowScore):
    r"""Score of a predicted interval: its width, and how far outside of it the target lies, times 2 / alpha.

    Use it to compare intervals of the same nominal coverage, of which neither coverage nor width alone says enough: it
    is least for the quantiles alpha / 2 and 1 - alpha / 2 of the true distribution.

    .. math:: \mathrm{IS}_\alpha = (u - l) + \frac{2}{\alpha} (l - y)_+ + \frac{2}{\alpha} (y - u)_+

    and its weighted mean over targets.

    Args:
        alpha: Share of targets that the interval leaves out, in (0, 1).
        return_parts: Give a dict in place of the score: the means ``score``, ``coverage`` (ends count as inside) and
            ``width``; ``crossings``, the number of rows whose lower end is above the upper one.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - lower: (N, ...)
        - upper: (N, ...)
        - target: (N, ...)
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of such; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import IntervalScore
        >>> metric = IntervalScore(alpha=0.5, return_parts=True)
        >>> metric.update(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        >>> metric.compute()["score"], metric.compute()["coverage"]
        (tensor(5., dtype=torch.float64), tensor(0.5000, dtype=torch.float64))

    Note:
        Departs from the study's code, whose coverage leaves out the ends. Ends that cross are counted and scored as
        they are, with a width below zero, and cover nothing; a weight counts as so many rows. Infinite ends are an
        error: their score says nothing. Inputs are upcast to fp64 (fp32 on mps). State: five fp64 sums; exact over any
        split into batches and ranks, under any cast and under autocast. Nothing to average gives nan and a warning.
        Without gradients.

    References:
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
        Dheur and Ben Taieb, "A Large-Scale Study of Probabilistic Calibration in Neural Network Regression", ICML 2023.
        arXiv:2306.02738
    """

    def __init__(self, alpha: float = 0.1, return_parts: bool = False, validate_args: bool = True) -> None:
        _check("IntervalScore", alpha)
        super().__init__(len(PARTS) + 1, return_parts, validate_args, alpha)
        self.alpha = alpha

    def update(self, lower: Tensor, upper: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        self.add(_sums("IntervalScore", lower, upper, target, weight, self.alpha, self.validate_args))

    def compute(self) -> Tensor | dict[str, Tensor]:
        return _told(self.means(), self.totals, self.return_parts)
