"""Rows with classes, split and ready to be made into batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from .errors import DataError
from .labelled import Labelled
from .stratified import split_labelled

__all__ = ["Prepared", "prepare"]

BLOCK = 4096
"""Rows that are summed up at once."""


class Prepared(NamedTuple):
    """Rows, and what batches of them need.

    Args:
        rows: All rows.
        splits: Rows of train, val and test.
        mean: Mean of each channel or entry over the rows to train on.
        std: Deviation likewise.
    """

    rows: Labelled
    splits: Mapping[str, list[int]]
    mean: Tensor
    std: Tensor

    def normalised(self, x: Tensor) -> Tensor:
        """Rows as a network takes them."""
        return (x.float() - self.mean) / self.std

    def batch(self, rows: list[int]) -> dict[str, Any]:
        """The batch of some rows."""
        return {"x": self.normalised(self.rows.x[rows]), "target": self.rows.y[rows], "index": torch.tensor(rows)}

    def named_batch(self, rows: list[int]) -> dict[str, Any]:
        """The same, with what the rows are called."""
        return {**self.batch(rows), "name": [self.rows.names[row] for row in rows]}


def prepare(
    rows: Labelled,
    source: str,
    sizes: Mapping[str, int | None],
    limit_train: int | None,
    batch_size: int,
    augment: bool,
    seed: int,
) -> Prepared:
    """Split the rows and take the statistics; says how many there are.

    Raises:
        DataError: If they can't be used so; names ``source``.
    """
    if augment and rows.x.dim() != 4:
        raise DataError(f"{source}: augment is for images, but a row has the shape {tuple(rows.x.shape[1:])}")
    splits = split_labelled(rows, sizes, limit_train, seed, source)
    train = len(splits["train"])
    if train < batch_size:
        raise DataError(f"{source}: batch_size={batch_size} is more than the {train} rows to train on")
    counts = ", ".join(f"{len(part):,} {split}" for split, part in splits.items())
    limit = "" if limit_train is None else f" (limit_train={limit_train})"
    rank_zero_info(f"{source}: {len(rows.y):,} rows in {len(rows.classes)} classes; {counts}{limit}")
    return Prepared(rows, splits, *_statistics(rows.x, splits["train"]))


def _statistics(x: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and deviation over ``rows`` of each channel of images or entry of vectors, in a shape to go with a batch.

    The deviation is 1 where all values are alike.
    """
    over = [0, 2, 3] if x.dim() == 4 else [0]

    def blocks() -> Iterator[Tensor]:
        return (x[list(rows[i : i + BLOCK])].double() for i in range(0, len(rows), BLOCK))

    count = len(rows) * x[0, 0].numel()
    mean = torch.stack([block.sum(over, keepdim=True) for block in blocks()]).sum(0) / count
    variance = torch.stack([(block - mean).square().sum(over, keepdim=True) for block in blocks()]).sum(0) / count
    # Equal values differ from their mean by rounding.
    std = torch.where(variance > 1e-24 * (1 + mean.square()), variance.sqrt(), 1)
    return mean.float(), std.float()
