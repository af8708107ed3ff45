"""Continuous ranked probability score of ensembles."""

import torch
from torch import Tensor

from trainkit._core.checks import check_flag, reject
from trainkit._core.crps import crps_ensemble
from trainkit._core.metric import mean_or_nan
from trainkit.calibration.metrics._regression import RowScore, Sums, checked_inputs, summed, told

__all__ = ["EnsembleCRPS", "ensemble_crps"]

PARTS = ("crps", "error", "spread", "sharpness")


def _sums(owner: str, samples: Tensor, target: Tensor, weight: Tensor | None, fair: bool, validate_args: bool) -> Sums:
    inputs = checked_inputs(owner, target, weight, validate_args, several={"samples": samples})
    members = inputs.given["samples"]
    if fair and members.shape[1] < 2:
        reject(owner, "samples", "have two members at least for fair=True", samples)
    terms = crps_ensemble(members, inputs.target, float(fair))
    squares = (members - members.mean(1, keepdim=True)).square().sum(1)
    sharpness = (squares / (members.shape[1] - int(fair))).sqrt()
    return summed([terms.crps, *terms, sharpness], inputs.weight)


@torch.no_grad()
def ensemble_crps(
    samples: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    fair: bool = False,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`EnsembleCRPS`."""
    check_flag("ensemble_crps", fair=fair, return_parts=return_parts)
    sums = _sums("ensemble_crps", samples, target, weight, fair, validate_args)
    return told(PARTS, mean_or_nan("ensemble_crps", *sums), return_parts)


class EnsembleCRPS(RowScore):
    r"""Continuous ranked probability score of ensembles and of samples of a distribution, in the unit of the target.

    Use it for ensembles, dropout samples and generative models, of which no density is known.

    .. math:: \mathrm{CRPS} = \frac{1}{M} \sum_i |x_i - y| - \frac{1}{2 M^2} \sum_{i,j} |x_i - x_j|

    and its weighted mean over targets. ``fair=True`` divides by :math:`2 M (M - 1)` in the second term.

    Args:
        fair: Estimate without bias the score of the distribution that the members are drawn from, so that ensembles of
            different sizes can be compared. False is the score of the members as they are, which is larger.
        return_parts: Give a dict of means in place of the score: ``crps``; ``error`` and ``spread``, the two terms
            whose difference it is; ``sharpness``, the standard deviation over members, with M - 1 if fair.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - samples: (N, M, ...), members in dimension 1
        - target: (N, ...)
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of such; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import EnsembleCRPS
        >>> metric = EnsembleCRPS(fair=True)
        >>> metric.update(torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 4.0]]), torch.tensor([1.5, 0.0]))
        >>> metric.compute()
        tensor(0.5833, dtype=torch.float64)

    Note:
        Sorted, in time M log M, as a sum of gaps, which loses nothing where all members are far from zero. One member
        has its absolute error and spread 0, and is an error for ``fair``; a fair score can be below zero. Batches may
        have different numbers of members. Otherwise as :class:`NormalCRPS`: fp64 (fp32 on mps), five sums, exact over
        any split into batches and ranks; nothing to average gives nan and a warning. Without gradients.

    References:
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
        Lang et al., "AIFS-CRPS: Ensemble forecasting using a model trained with a loss function based on the
        Continuous Ranked Probability Score", 2024. arXiv:2412.15832
    """

    def __init__(self, fair: bool = False, return_parts: bool = False, validate_args: bool = True) -> None:
        super().__init__(len(PARTS), return_parts, validate_args, fair)
        check_flag("EnsembleCRPS", fair=fair)
        self.fair = fair

    def update(self, samples: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        self.add(_sums("EnsembleCRPS", samples, target, weight, self.fair, self.validate_args))

    def compute(self) -> Tensor | dict[str, Tensor]:
        return told(PARTS, self.means(), self.return_parts)
