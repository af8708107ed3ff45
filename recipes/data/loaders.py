"""Loaders of rows that are evaluated."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from trainkit.data import IndexSampler

from .errors import DataError

__all__ = ["in_order"]


def in_order(
    rows: Any, batch_size: int, trainer: Trainer | None, collate: Callable[[Any], Any], num_workers: int
) -> DataLoader[Any]:
    """Every row once, in order, in batches of ``batch_size`` rows of all ranks together.

    Raises:
        DataError: If there are fewer rows than ranks: Lightning skips an evaluation on a rank that has no batch, while
            the others wait for it.
    """
    ranks = trainer.world_size if trainer is not None else 1
    if len(rows) < ranks:
        raise DataError(f"{len(rows)} rows to evaluate can't be shared by {ranks} ranks")
    sampler = IndexSampler(rows, batch_size, shuffle=False, even=False)
    share = batch_size // ranks
    return DataLoader(rows, batch_size=share, sampler=sampler, collate_fn=collate, num_workers=num_workers)
