"""Stable elementary functions and the fp32 region that every loss computes in."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["at_most", "fp32_region", "log1m_softmax", "log_floor", "safe_normalize", "softplus", "sum_dtype", "upcast"]

P = ParamSpec("P")
R = TypeVar("R")


def upcast(value: Any) -> Any:
    """Raise a half-precision tensor to fp32; everything else, fp64 included, passes through."""
    if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


def fp32_region(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` with autocast off and its half-precision tensor arguments raised to fp32.

    Autocast's own lists do not do this: on the CPU ``logsumexp`` and ``softplus`` stay in bf16, and a matrix product
    is rounded to bf16 before any promotion can happen. Gradients come back in the dtype of the inputs.
    """

    @wraps(function)
    def region(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next((v.device.type for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), "cpu")
        with torch.autocast(device_type=device, enabled=False):
            return function(*[upcast(v) for v in args], **{k: upcast(v) for k, v in kwargs.items()})

    return region


def log_floor(dtype: torch.dtype) -> float:
    """Smallest log-probability that is kept: exp of it is a normal number, and its square is zero."""
    return -700.0 if dtype == torch.float64 else -80.0


def log1m_softmax(logits: Tensor, dim: int = 1) -> Tensor:
    """log(1 - softmax(logits)) along ``dim``, accurate also where a probability rounds to one.

    For the largest class, 1 - p is the sum of the other probabilities and is taken as their log-sum-exp; every other
    probability is at most one half, where log1p loses nothing. Entries below :func:`log_floor` are held there with
    gradient zero: 1 - p has underflowed.
    """
    floor = log_floor(logits.dtype)
    log_p = logits.log_softmax(dim)
    top = logits.argmax(dim, keepdim=True)
    is_top = torch.zeros_like(logits, dtype=torch.bool).scatter(dim, top, True)
    # A finite stand-in for minus infinity: with one class, log-sum-exp over nothing would have a NaN gradient.
    others = log_p.masked_fill(is_top, 2 * floor).logsumexp(dim, keepdim=True)
    half = torch.where(is_top, -1.0, log_p)
    return torch.where(is_top, others, torch.log1p(-torch.exp(half))).clamp_min(floor)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without the threshold of torch's own, which is off by 2e-9 beyond it."""
    return -F.logsigmoid(-x)


def safe_normalize(x: Tensor, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """``x / max(|x|, eps)``, also where the square of an entry overflows or underflows."""
    peak = x.detach().abs().amax(dim, keepdim=True) if x.shape[dim] else x.detach().sum(dim, keepdim=True)
    # Powers of two leave every digit as it is; rows of zeros, infinities and NaN keep theirs.
    unit = torch.where((peak > 0) & peak.isfinite(), torch.exp2(peak.log2().floor()), 1.0)
    scaled = x / unit
    return scaled / torch.maximum(torch.linalg.vector_norm(scaled, dim=dim, keepdim=True), eps / unit)


def sum_dtype(device: torch.device) -> torch.dtype:
    """Precision of sums over a data set: fp64, except on mps, which has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def at_most(count: int, limit: int) -> bool:
    """Whether ``count`` is at most ``limit``; False where a tracer does not know, as for rows gathered from ranks."""
    if not torch.compiler.is_compiling():
        return count <= limit
    # Takes longer to load than all of trainkit's core, and only a tracer needs it.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(count <= limit)
