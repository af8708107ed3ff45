"""Base class of the metrics."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchmetrics import Metric

from trainkit._core.checks import check_flag
from trainkit._core.repr import hyper_parameters

__all__ = ["StreamingMetric", "mean_or_nan", "sum_dtype"]


def sum_dtype(device: torch.device) -> torch.dtype:
    """Precision of sums over a data set: fp64, except on mps, which has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def mean_or_nan(owner: str, total: Tensor, weight_sum: Tensor, warn: bool = True) -> Tensor:
    """``total / weight_sum``, NaN where the weight is zero; warns if all of it is.

    Args:
        owner: Class or function that the warning names.
        total: Weighted sums.
        weight_sum: Sums of the weights.
        warn: False where somebody else has warned already.
    """
    if warn and not weight_sum.any():
        message = f"{owner}: the value is nan, since no target counted: none was given, or all are ignored or weigh 0"
        warnings.warn(message, UserWarning, stacklevel=3)
    return total / weight_sum


class StreamingMetric(Metric):
    """A metric whose state is a fixed number of sums, so that any split over batches and ranks gives the same value.

    States keep their precision: a cast of the metric, or of a module that holds it, moves them and never rounds them.
    Updates run without gradients unless the class says ``is_differentiable``; forward would otherwise build a graph.

    Args:
        validate_args: Whether values of the inputs are checked, with one read from the device a call.
    """

    full_state_update: bool | None = False

    def __init__(self, validate_args: bool = True) -> None:
        # A cached value would be returned without a sync by a rank that had no update since, while the others wait.
        super().__init__(compute_with_cache=False)
        check_flag(type(self).__name__, validate_args=validate_args)
        self.validate_args = validate_args

    def add_sums(self, *names: str, shape: Sequence[int] = ()) -> None:
        """Add states that sum floating point numbers over batches and ranks, in fp64."""
        for name in names:
            self.add_state(name, torch.zeros(tuple(shape), dtype=torch.float64), dist_reduce_fx="sum")

    def add_counts(self, *names: str, shape: Sequence[int] = ()) -> None:
        """Add states that count over batches and ranks, in int64."""
        for name in names:
            self.add_state(name, torch.zeros(tuple(shape), dtype=torch.int64), dist_reduce_fx="sum")

    def tell_apart(self, *settings: object) -> None:
        """Let a MetricCollection share these states only with a metric that was told the same settings.

        torchmetrics shares states that are equal after the first update, as those of two unlike metrics are where the
        first batch has no rows. It compares shapes too, so the settings stand in the shape of a state without entries.
        """
        told = crc32(repr((type(self).__name__, *settings)).encode()) & 0x7FFFFFFF
        self.add_state("settings", torch.zeros(told, 0), dist_reduce_fx="sum")

    def mean(self, total: Tensor, weight_sum: Tensor) -> Tensor:
        """``total / weight_sum`` with one warning where nothing counted: torchmetrics warns where nothing came."""
        return mean_or_nan(type(self).__name__, total, weight_sum, warn=self.update_called)

    def extra_repr(self) -> str:
        return hyper_parameters(self)

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        # Forward turns gradients on around the update, whatever is_differentiable says.
        return super()._wrap_update(update if self.is_differentiable else torch.no_grad()(update))

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        dtype, forwarded = self._dtype, self._forward_cache
        self._forward_cache = None
        super()._apply(fn, tuple(self._defaults))
        # What is left of the call is the device: neither states nor values see fn, which may round them.
        self._dtype = dtype
        self._forward_cache = self._moved(forwarded)
        for name, default in self._defaults.items():
            self._defaults[name] = self._moved(default)
            setattr(self, name, self._moved(getattr(self, name)))
        return self

    def _moved(self, values: Any) -> Any:
        """Tensors in a structure, on the device of the metric."""

        def move(value: Tensor) -> Tensor:
            return value.to(self.device, sum_dtype(self.device) if value.dtype == torch.float64 else value.dtype)

        return tree_map_only(Tensor, move, values)
