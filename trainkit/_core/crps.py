"""Continuous ranked probability score: E|X - y| - E|X - X'| / 2 of a predicted distribution, and its pinball form.

All of it is differentiable and keeps the dtype; nothing is checked. The last dimension runs over components, members
or levels.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["CRPSTerms", "crps_ensemble", "crps_mixture", "crps_normal", "crps_quantiles", "pinball"]

FAR = 40.0
"""Standard deviations beyond which the normal density is zero in fp64."""


class CRPSTerms(NamedTuple):
    """What the score is made of.

    Args:
        error: E|X - y|, mean distance of the distribution to the target.
        spread: E|X - X'| / 2, half the mean distance of two draws.
    """

    error: Tensor
    spread: Tensor

    @property
    def crps(self) -> Tensor:
        """The score."""
        return self.error - self.spread


def _distance(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of a normal distribution, with finite gradients where ``mean / std`` overflows."""
    near = mean.abs() <= FAR * std
    z = torch.where(near, mean, 0) / torch.where(near, std, 1)
    z = torch.where(near, z, FAR * mean.sign())
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return mean * torch.erf(z / math.sqrt(2)) + 2 * std * density


def crps_normal(mean: Tensor, std: Tensor, target: Tensor) -> CRPSTerms:
    """Terms for a normal distribution, of the shape of each argument."""
    return CRPSTerms(_distance(target - mean, std), std / math.sqrt(math.pi))


def crps_mixture(probs: Tensor, mean: Tensor, std: Tensor, target: Tensor) -> CRPSTerms:
    """Terms for a mixture of K normal distributions, (...) for components (..., K); time K^2, memory K without graph.

    Args:
        probs: Probabilities of the components.
        mean: Their means.
        std: Their standard deviations.
        target: One number a mixture.
    """
    error = (probs * _distance(target.unsqueeze(-1) - mean, std)).sum(-1)
    spread = (probs.square() * std).sum(-1) / math.sqrt(math.pi)
    for k in range(mean.shape[-1] - 1):
        one, others = slice(k, k + 1), slice(k + 1, None)
        between = _distance(mean[..., one] - mean[..., others], torch.hypot(std[..., one], std[..., others]))
        spread = spread + (probs[..., one] * probs[..., others] * between).sum(-1)
    return CRPSTerms(error, spread)


def crps_ensemble(samples: Tensor, target: Tensor, fairness: float) -> CRPSTerms:
    """Terms for an ensemble of M members, (...) for members (..., M).

    Args:
        samples: The members.
        target: One number an ensemble.
        fairness: 0 for the score of the members themselves, 1 for the unbiased one of the distribution that they are
            drawn from, which takes two members at least; between these, part of both.
    """
    count = samples.shape[-1]
    error = (samples - target.unsqueeze(-1)).abs().mean(-1)
    ordered = samples.sort(-1).values
    # Each gap lies between so many pairs; sums of gaps lose nothing where all members are far from zero.
    below = torch.arange(1, count, dtype=samples.dtype, device=samples.device)
    pairs = (below * (count - below) * ordered.diff(dim=-1)).sum(-1)
    return CRPSTerms(error, pairs * (1 + fairness / max(count - 1, 1)) / count**2)


def pinball(quantiles: Tensor, target: Tensor, levels: Tensor) -> Tensor:
    """Pinball losses of predicted quantiles, (..., Q) for quantiles (..., Q) and levels (Q,)."""
    above = target.unsqueeze(-1) - quantiles
    return torch.maximum(levels * above, (levels - 1) * above)


def crps_quantiles(quantiles: Tensor, target: Tensor, levels: Tensor) -> Tensor:
    """Twice the mean pinball loss, which tends to the score as levels fill [0, 1] evenly."""
    return 2 * pinball(quantiles, target, levels).mean(-1)
