"""Base classes of the metrics."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from trainkit._core.checks import check_flag, reject
from trainkit._core.numerics import sum_dtype
from trainkit._core.repr import hyper_parameters

__all__ = ["RowMetric", "StreamingMetric", "mean_or_nan"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64)


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

    def tell_apart(self, *settings: object, family: str | None = None) -> None:
        """Let a MetricCollection share these states only with a metric that was told the same settings.

        torchmetrics shares states that are equal after the first update, as those of two unlike metrics are where the
        first batch has no rows. It compares shapes too, so the settings stand in the shape of a state without entries.

        Args:
            settings: What the states depend on.
            family: Name that classes with the same states share; the class itself if None.
        """
        told = crc32(repr((family or type(self).__name__, *settings)).encode()) & 0x7FFFFFFF
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


class RowMetric(StreamingMetric):
    """A metric that keeps the rows it was given, so that any split over batches and ranks gives the value of one pass.

    Each state is one tensor, the filled part of a storage whose capacity doubles when it is full, so that an update
    copies no more than its batch on average. A row that was written is never written again: whoever holds a state,
    a state_dict or another metric of a collection, keeps what was there. Beside rows, such a metric may have sums.

    Args:
        validate_args: Whether values of the inputs are checked, with one read from the device a call.
    """

    def __init__(self, validate_args: bool = True) -> None:
        super().__init__(validate_args)
        self._storages: dict[str, tuple[Tensor, int]] = {}
        self._kept: dict[str, tuple[Tensor, int]] = {}
        self._row_names: tuple[str, ...] = ()

    def add_rows(self, *names: str) -> None:
        """Add states that hold rows of one or two dimensions; the first rows that come decide on width and dtype."""
        for name in names:
            self.add_state(name, torch.zeros(0), dist_reduce_fx="cat")
        self._row_names = (*self._row_names, *names)

    def rows(self) -> dict[str, Tensor]:
        """The states that hold rows, by name."""
        return {name: getattr(self, name) for name in self._row_names}

    def _sums(self) -> dict[str, Tensor]:
        """The states that are summed, by name."""
        return {name: getattr(self, name) for name in self._defaults if name not in self._row_names}

    def append(self, name: str, rows: Tensor) -> None:
        """Add rows to the state ``name``."""
        state: Tensor = getattr(self, name)
        count, total = len(state), len(state) + len(rows)
        if count == total:
            return
        if count and state.shape[1:] != rows.shape[1:]:
            reject(type(self).__name__, name, f"have {state.shape[1]} features, as the rows before", rows)
        dtype = torch.promote_types(state.dtype, rows.dtype) if count else rows.dtype
        storage, filled = self._storages.get(name, (state, 0))
        ours = storage.data_ptr() == state.data_ptr() and filled == count
        if not (ours and dtype == storage.dtype and total <= len(storage)):
            # A tensor made in inference mode, in which Lightning validates, could not be written outside of it.
            with torch.inference_mode(False):
                storage = torch.zeros(max(total, 2 * count), *rows.shape[1:], dtype=dtype, device=rows.device)
            if count:
                storage[:count] = state
        storage[count:total] = rows
        self._storages[name] = (storage, total)
        setattr(self, name, storage[:total])

    def reset(self) -> None:
        super().reset()
        self._storages = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # It resets the metric for the batch and merges it back; without the storages it would copy all rows for that.
        self._kept = self._storages
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._kept = {}

    def _copy_state_dict(self) -> dict[str, Any]:
        return {**self.rows(), **{name: state.clone() for name, state in self._sums().items()}}

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        added = self.rows()
        self._storages = self._kept
        for name, state in self._sums().items():
            setattr(self, name, state + incoming_state[name])
        for name, rows in added.items():
            setattr(self, name, incoming_state[name])
            self.append(name, rows)

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        def gather(tensor: Tensor) -> list[Tensor]:
            return list(dist_sync_fn(tensor, group=process_group or self.process_group))

        for name, state in self._sums().items():
            setattr(self, name, torch.stack(gather(state)).sum(0))
        if not self._row_names:
            return
        # A rank without rows learns their width and dtype from the others before it takes part.
        header = [self._header(state) for state in self.rows().values()]
        headers = torch.stack(gather(torch.tensor(header, device=self.device))).tolist()
        for position, (name, state) in enumerate(self.rows().items()):
            told = {tuple(rank[position][1:]) for rank in headers if rank[position][0]}
            if len(told) > 1:
                reject(type(self).__name__, name, "have the same width and dtype on every rank", sorted(told))
            for code, width in told:
                shape = (len(state),) if width < 0 else (len(state), width)
                setattr(self, name, torch.cat(gather(state.to(DTYPES[code]).reshape(shape))))

    @staticmethod
    def _header(state: Tensor) -> list[int]:
        """Number of rows, dtype and width, which is -1 for rows that are numbers."""
        return [len(state), DTYPES.index(state.dtype), state.shape[1] if state.dim() > 1 else -1]

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        self._storages = {}
        return super()._apply(fn, exclude_state)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_storages": {}}
