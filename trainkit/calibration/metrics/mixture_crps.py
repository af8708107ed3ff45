"""Continuous ranked probability score of mixtures of normal distributions."""

import torch
from torch import Tensor

from trainkit._core.checks import check_flag
from trainkit._core.crps import crps_mixture
from trainkit._core.metric import mean_or_nan
from trainkit.calibration.metrics._regression import RowScore, Sums, checked_inputs, summed, told

__all__ = ["MixtureCRPS", "mixture_crps"]

PARTS = ("crps", "error", "spread", "sharpness")


def _sums(
    owner: str, probs: Tensor, mean: Tensor, std: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> Sums:
    components = {"probs": probs, "mean": mean, "std": std}
    inputs = checked_inputs(owner, target, weight, validate_args, several=components)
    p, m, s = (inputs.given[name] for name in components)
    terms = crps_mixture(p, m, s, inputs.target)
    centred = m - (p * m).sum(1, keepdim=True)
    sharpness = (p * (s.square() + centred.square())).sum(1).sqrt()
    return summed([terms.crps, *terms, sharpness], inputs.weight)


@torch.no_grad()
def mixture_crps(
    probs: Tensor,
    mean: Tensor,
    std: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`MixtureCRPS`."""
    check_flag("mixture_crps", return_parts=return_parts)
    sums = _sums("mixture_crps", probs, mean, std, target, weight, validate_args)
    return told(PARTS, mean_or_nan("mixture_crps", *sums), return_parts)


class MixtureCRPS(RowScore):
    r"""Continuous ranked probability score of predicted mixtures of normal distributions, in the unit of the target.

    Use it for mixture density networks and for ensembles whose members each predict a normal distribution; see
    :class:`NormalCRPS` for one component.

    .. math:: \mathrm{CRPS} = \sum_k p_k A(y - \mu_k, \sigma_k)
        - \tfrac{1}{2} \sum_{k,l} p_k p_l A(\mu_k - \mu_l, \sqrt{\sigma_k^2 + \sigma_l^2}), \quad
        A(m, s) = m (2 \Phi(m / s) - 1) + 2 s \varphi(m / s)

    and its weighted mean over targets.

    Args:
        return_parts: Give a dict of means in place of the score: ``crps``; ``error`` and ``spread``, the two terms
            whose difference it is; ``sharpness``, the standard deviation of the mixture.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - probs: (N, K, ...), probabilities of the components, summing to 1 over dimension 1
        - mean: (N, K, ...)
        - std: (N, K, ...), above zero
        - target: (N, ...)
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of such; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import MixtureCRPS
        >>> metric = MixtureCRPS()
        >>> probs, mean, std = torch.tensor([[0.3, 0.7]]), torch.tensor([[-1.0, 0.5]]), torch.tensor([[0.5, 1.2]])
        >>> metric.update(probs, mean, std, torch.tensor([0.25]))
        >>> metric.compute()
        tensor(0.3545, dtype=torch.float64)

    Note:
        Time grows with the square of the number of components, memory with the number. Probabilities are divided by
        their sum, which rounding puts off one. Otherwise as :class:`NormalCRPS`: fp64 (fp32 on mps), five sums, exact
        over any split into batches and ranks; nothing to average gives nan and a warning. Without gradients.

    References:
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
        Dheur and Ben Taieb, "A Large-Scale Study of Probabilistic Calibration in Neural Network Regression", ICML 2023.
        arXiv:2306.02738
    """

    plot_lower_bound = 0.0

    def __init__(self, return_parts: bool = False, validate_args: bool = True) -> None:
        super().__init__(len(PARTS), return_parts, validate_args)

    def update(self, probs: Tensor, mean: Tensor, std: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        self.add(_sums("MixtureCRPS", probs, mean, std, target, weight, self.validate_args))

    def compute(self) -> Tensor | dict[str, Tensor]:
        return told(PARTS, self.means(), self.return_parts)
