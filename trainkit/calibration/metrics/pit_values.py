"""Probability integral transforms: the predicted distribution function at the target."""

from typing import Protocol

import torch
from torch import Tensor

from trainkit._core.checks import check_floating, check_same_shape, check_values, reject, values_checked
from trainkit._core.numerics import fp32_region, sum_dtype
from trainkit.calibration.metrics._regression import checked_inputs

__all__ = ["distribution_pit", "ensemble_pit", "mixture_pit", "normal_pit"]

CDF_SLACK = 1e-5
"""How far outside of [0, 1] a distribution function may lie: what sums in fp32 can do."""


class _HasCDF(Protocol):
    def cdf(self, value: Tensor) -> Tensor: ...


def _cdf(target: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    probability: Tensor = torch.special.ndtr((target - mean) / std)
    return probability


@torch.no_grad()
def normal_pit(mean: Tensor, std: Tensor, target: Tensor, *, validate_args: bool = True) -> Tensor:
    """Values for :class:`PITCalibrationError` of predicted normal distributions, in fp64 (fp32 on mps).

    Args:
        mean: (N, ...).
        std: Standard deviations above zero, (N, ...).
        target: (N, ...).
        validate_args: Check the values of the inputs.
    """
    inputs = checked_inputs("normal_pit", target, None, validate_args, single={"mean": mean, "std": std})
    return _cdf(inputs.target, inputs.given["mean"], inputs.given["std"]).reshape(target.shape)


@torch.no_grad()
def mixture_pit(probs: Tensor, mean: Tensor, std: Tensor, target: Tensor, *, validate_args: bool = True) -> Tensor:
    """Values for :class:`PITCalibrationError` of predicted mixtures of normal distributions, in fp64 (fp32 on mps).

    Args:
        probs: Probabilities of the components, (N, K, ...), summing to 1 over dimension 1.
        mean: (N, K, ...).
        std: Standard deviations above zero, (N, K, ...).
        target: (N, ...).
        validate_args: Check the values of the inputs.
    """
    components = {"probs": probs, "mean": mean, "std": std}
    inputs = checked_inputs("mixture_pit", target, None, validate_args, several=components)
    p, m, s = (inputs.given[name] for name in components)
    return (p * _cdf(inputs.target.unsqueeze(1), m, s)).sum(1).clamp(0, 1).reshape(target.shape)


@torch.no_grad()
def ensemble_pit(
    samples: Tensor, target: Tensor, *, generator: torch.Generator | None = None, validate_args: bool = True
) -> Tensor:
    """Values for :class:`PITCalibrationError` of ensembles, in fp64 (fp32 on mps): the rank of the target, in [0, 1].

    Of M members the target has one of M + 1 ranks, or several where members equal it. With a generator the value is
    drawn evenly from its share of [0, 1], so that it is uniform if members and target come from the same distribution.
    Without one it is the middle of the share: values then lie on a grid, and even a calibrated ensemble keeps an error
    of about 1 / (4 (M + 1)).

    Args:
        samples: Members in dimension 1, (N, M, ...).
        target: (N, ...).
        generator: Draws the place inside of a rank and among ties; None for the middle.
        validate_args: Check the values of the inputs.
    """
    inputs = checked_inputs("ensemble_pit", target, None, validate_args, several={"samples": samples})
    members, y = inputs.given["samples"], inputs.target.unsqueeze(1)
    below, equal = (members < y).sum(1), (members == y).sum(1)
    place = torch.full_like(inputs.target, 0.5)
    if generator is not None:
        place = torch.rand(place.shape, generator=generator, device=generator.device, dtype=place.dtype)
    share = place.to(below.device) * (equal + 1)
    return ((below + share) / (members.shape[1] + 1)).reshape(target.shape)


@torch.no_grad()
def distribution_pit(distribution: _HasCDF, target: Tensor, *, validate_args: bool = True) -> Tensor:
    """Values for :class:`PITCalibrationError` of any distribution that has a ``cdf``, in fp64 (fp32 on mps).

    Args:
        distribution: A batch of distributions of numbers, such as those of ``torch.distributions``.
        target: (N, ...), the batch shape of the distribution.
        validate_args: Check the values of target and transform.
    """
    owner = "distribution_pit"
    check_floating(owner, target=target)
    if values_checked(validate_args):
        check_values(owner, ("target", "be finite", target, target.isfinite()))
    try:
        values = fp32_region(distribution.cdf)(target)
    except (AttributeError, NotImplementedError):
        reject(owner, "distribution", "have a cdf", distribution, TypeError)
    check_same_shape(owner, "target", target.shape, **{"distribution.cdf(target)": values})
    if values_checked(validate_args):
        inside = (values >= -CDF_SLACK) & (values <= 1 + CDF_SLACK)
        check_values(owner, ("distribution.cdf(target)", "be in [0, 1]", values, inside))
    return values.to(sum_dtype(values.device)).clamp(0, 1)
