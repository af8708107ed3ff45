"""Base class of the metrics that need the whole sample."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from trainkit._core.checks import reject
from trainkit._core.metric import StreamingMetric

__all__ = ["RowMetric"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64)


class RowMetric(StreamingMetric):
    """A metric that keeps the rows it was given, so that any split over batches and ranks gives the value of one pass.

    Each state is one tensor, the filled part of a storage whose capacity doubles when it is full, so that an update
    copies no more than its batch on average. A row that was written is never written again: whoever holds a state,
    a state_dict or another metric of a collection, keeps what was there. Such a metric has no states but rows.

    Args:
        validate_args: Whether values of the inputs are checked, with one read from the device a call.
    """

    def __init__(self, validate_args: bool = True) -> None:
        super().__init__(validate_args)
        self._storages: dict[str, tuple[Tensor, int]] = {}
        self._kept: dict[str, tuple[Tensor, int]] = {}

    def add_rows(self, *names: str) -> None:
        """Add states that hold rows of one or two dimensions; the first rows that come decide on width and dtype."""
        for name in names:
            self.add_state(name, torch.zeros(0), dist_reduce_fx="cat")

    def rows(self) -> dict[str, Tensor]:
        """The states by name."""
        return {name: getattr(self, name) for name in self._defaults}

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
        return self.rows()

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        added = self.rows()
        self._storages = self._kept
        for name, rows in added.items():
            setattr(self, name, incoming_state[name])
            self.append(name, rows)

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        def gather(tensor: Tensor) -> list[Tensor]:
            return list(dist_sync_fn(tensor, group=process_group or self.process_group))

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
