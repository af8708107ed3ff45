"""Continuous ranked probability score of normal distributions."""

import torch
from torch import Tensor

from trainkit._core.checks import check_flag
from trainkit._core.crps import crps_normal
from trainkit._core.metric import mean_or_nan
from trainkit.calibration.metrics._regression import RowScore, Sums, checked_inputs, summed, told

__all__ = ["NormalCRPS", "normal_crps"]

PARTS = ("crps", "error", "spread", "sharpness")


def _sums(owner: str, mean: Tensor, std: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool) -> Sums:
    inputs = checked_inputs(owner, target, weight, validate_args, single={"mean": mean, "std": std})
    terms = crps_normal(inputs.given["mean"], inputs.given["std"], inputs.target)
    return summed([terms.crps, *terms, inputs.given["std"]], inputs.weight)


@torch.no_grad()
def normal_crps(
    mean: Tensor,
    std: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`NormalCRPS`."""
    check_flag("normal_crps", return_parts=return_parts)
    sums = _sums("normal_crps", mean, std, target, weight, validate_args)
    return told(PARTS, mean_or_nan("normal_crps", *sums), return_parts)


class NormalCRPS(RowScore):
    r"""Continuous ranked probability score of predicted normal distributions, in the unit of the target.

    Use it to compare models that predict a mean and a standard deviation: it is a proper score, least for the true
    distribution, equals the absolute error for a distribution without width, and unlike the log score it grows only
    linearly with the distance of a surprise.

    .. math:: \mathrm{CRPS} = E|X - y| - \tfrac{1}{2} E|X - X'|
        = \sigma \left[ z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi} \right], \quad z = (y - \mu) / \sigma

    and its weighted mean over targets, with X and X' drawn from the prediction.

    Args:
        return_parts: Give a dict of means in place of the score: ``crps``; ``error`` and ``spread``, the two terms
            whose difference it is; ``sharpness``, the standard deviation.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - mean: (N, ...)
        - std: (N, ...), above zero
        - target: (N, ...)
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of such; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import NormalCRPS
        >>> metric = NormalCRPS()
        >>> metric.update(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0]))
        >>> metric.compute()
        tensor(0.7681, dtype=torch.float64)

    Note:
        ``std`` is a standard deviation, not a variance nor its logarithm. Inputs are upcast to fp64 (fp32 on mps), in
        which tiny and huge deviations lose nothing. A target with nan is an error; give those without a value the
        weight zero and any number. State: five fp64 sums; exact over any split into batches and ranks, under any cast
        and under autocast. Nothing to average gives nan and a warning. Without gradients: train on a loss.

    References:
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
        Dheur and Ben Taieb, "A Large-Scale Study of Probabilistic Calibration in Neural Network Regression", ICML 2023.
        arXiv:2306.02738
    """

    plot_lower_bound = 0.0

    def __init__(self, return_parts: bool = False, validate_args: bool = True) -> None:
        super().__init__(len(PARTS), return_parts, validate_args)

    def update(self, mean: Tensor, std: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        self.add(_sums("NormalCRPS", mean, std, target, weight, self.validate_args))

    def compute(self) -> Tensor | dict[str, Tensor]:
        return told(PARTS, self.means(), self.return_parts)
