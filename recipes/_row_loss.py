"""The loss of an evaluation: the mean over its rows, whatever the batches and ranks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from trainkit.binding import bind
from trainkit.calibration.metrics import NegativeLogLikelihood

__all__ = ["MeanLoss", "row_losses"]

ALONE = {"reduction": "none", "sync": False}
"""Settings under which a loss gives one number a row and talks to no other rank."""


class MeanLoss(NegativeLogLikelihood):
    """Mean of the losses of rows, with the exact sums over batches and ranks of the class above."""

    def update(self, row_losses: Tensor) -> None:  # type: ignore[override]
        self.total = self.total + row_losses.double().sum().to(self.total)
        self.weight_sum = self.weight_sum + row_losses.numel()


@contextmanager
def _alone(loss: nn.Module) -> Iterator[None]:
    before = [(part, name, getattr(part, name)) for part in loss.modules() for name in ALONE if hasattr(part, name)]
    try:
        for part, name, _ in before:
            setattr(part, name, ALONE[name])
        yield
    finally:
        for part, name, value in before:
            setattr(part, name, value)


def row_losses(loss: nn.Module, tensors: Mapping[str, Any], rows: int) -> Tensor:
    """The loss of each row, (N,), without a word to other ranks; that of the batch where a loss has none a row."""
    with _alone(loss):
        value: Tensor = loss(**bind(loss, tensors)).detach()
    return value if value.shape == (rows,) else value.mean().expand(rows)
