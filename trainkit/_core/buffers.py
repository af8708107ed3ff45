"""Buffers that keep their precision."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ExactBuffers"]


class ExactBuffers(nn.Module):
    """A module with buffers that move with it but never lose precision to a cast."""

    def __init__(self) -> None:
        super().__init__()
        self._exact: tuple[str, ...] = ()

    def register_exact(self, name: str, values: Tensor | None, *, persistent: bool) -> None:
        """Keep a tensor as a buffer that casts pass by.

        Args:
            name: Name of the buffer.
            values: Its first value.
            persistent: Whether ``state_dict`` holds it.
        """
        self.register_buffer(name, values, persistent=persistent)
        self._exact = (*self._exact, name)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {name: self._buffers[name] for name in self._exact}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, values in kept.items():
            if values is not None:
                device = fn(torch.empty(0, device=values.device)).device
                # The mps device has no fp64.
                narrow = device.type == "mps" and values.dtype == torch.float64
                self._buffers[name] = values.to(device, torch.float32 if narrow else values.dtype)
        return self
