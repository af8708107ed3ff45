"""Arithmetic in fp32 or better on parameters of any real dtype, and what is written back."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

__all__ = ["Rounding", "real", "round_stochastically", "state_dtype_for", "write_back"]

Rounding: TypeAlias = Literal["nearest", "stochastic"]


def real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers, by view; others as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def state_dtype_for(parameter: Tensor, wanted: torch.dtype | None) -> torch.dtype:
    """Dtype of the state of a real parameter: its own for None, float64 for float64, else the one that is wanted."""
    if wanted is None or parameter.dtype == torch.float64:
        return parameter.dtype
    return wanted


def round_stochastically(values: Tensor, generator: torch.Generator) -> Tensor:
    """Round fp32 to bf16, up or down with the probability that makes the mean exact; NaN and infinities pass."""
    noise = torch.randint(0, 2**16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    bits = values.contiguous().view(torch.int32)
    # The lower half of the bits is what bf16 leaves out: noise carries into the upper half by its size.
    rounded = ((bits + noise) & -(2**16)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def write_back(target: Tensor, values: Tensor, generator: torch.Generator | None) -> None:
    """Write what was computed to a tensor of another dtype; bf16 stochastically if there is a generator."""
    if generator is not None and target.dtype == torch.bfloat16:
        values = round_stochastically(values, generator)
    target.copy_(values)
