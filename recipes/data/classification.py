"""Images or vectors with classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader

from trainkit.data import IndexSampler, ResumableLoader

from .augment import flip_and_shift, statistics
from .errors import DataError
from .labelled import Labelled
from .labelled_sets import read_labelled, read_unlabelled
from .stratified import split_labelled

__all__ = ["ClassificationData"]


class ClassificationData(LightningDataModule):
    """Images or vectors with classes, kept in memory and normalised by mean and deviation of the rows to train on.

    Batches hold ``x``, ``target`` and ``index``; those of ``predict`` also ``name``, the file or row of an array.

    Args:
        name: ``"digits"``, ``"mnist"`` or ``"cifar10"``, a part of it.
        path: Your own data in place of a named set: a folder of images with one sub-folder a class, or with such
            folders train, val and test; or an .npz file with rows ``X`` and labels ``y``, and perhaps ``Xt`` and ``yt``
            for the test.
        image_size: Scale the images of folders to squares of this size; None where their sizes agree.
        batch_size: Rows of the whole training batch, of all ranks together.
        val_size: Rows to validate on, where the data has no such split; None for a fifth of all, at most 5,000.
        test_size: Rows to test on, likewise.
        augment: Flip and shift the images to train on.
        limit_train: Rows to train on at most, for a quick run; None for all.
        seed: Of the split and of the order.
        num_workers: Processes that make batches.
        predict_path: What ``predict`` classifies in place of the test split: a folder of images, or an .npz file with
            rows ``X``.
    """

    def __init__(
        self,
        name: Literal["digits", "mnist", "cifar10"] = "digits",
        path: Path | None = None,
        image_size: int | None = None,
        batch_size: int = 64,
        val_size: int | None = None,
        test_size: int | None = None,
        augment: bool = False,
        limit_train: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
        predict_path: Path | None = None,
    ) -> None:
        super().__init__()
        self.name, self.path, self.image_size, self.predict_path = name, path, image_size, predict_path
        self.batch_size, self.sizes, self.limit_train = batch_size, {"test": test_size, "val": val_size}, limit_train
        self.augment, self.seed, self.num_workers = augment, seed, num_workers
        self._rows: Labelled | None = None
        self.asked: tuple[Tensor, list[str]] | None = None

    @property
    def rows(self) -> Labelled:
        """All rows, read when they are first asked for."""
        if self._rows is None:
            source = str(self.path or self.name)
            rows = read_labelled(self.name, self.path, self.image_size)
            if self.augment and rows.x.dim() != 4:
                raise DataError(f"{source}: augment is for images, but a row has shape {tuple(rows.x.shape[1:])}")
            self.splits = split_labelled(rows, self.sizes, self.limit_train, self.seed, source)
            train = len(self.splits["train"])
            if train < self.batch_size:
                raise DataError(f"batch_size={self.batch_size} is more than the {train} rows to train on")
            self.mean, self.std = statistics(rows.x, self.splits["train"])
            self._rows = rows
            counts = ", ".join(f"{len(part):,} {split}" for split, part in self.splits.items())
            limit = "" if self.limit_train is None else f" (limit_train={self.limit_train})"
            rank_zero_info(f"{source}: {len(rows.y):,} rows in {len(rows.classes)} classes; {counts}{limit}")
        return self._rows

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return self.rows.classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of a row: (C, H, W) of an image, (D,) of a vector."""
        return tuple(self.rows.x.shape[1:])

    def prepare_data(self) -> None:
        """Read, on one process of a machine, before anything is written and the others read."""
        self.setup("fit")

    def setup(self, stage: str) -> None:
        """Read and split, once."""
        shape = self.in_shape
        if self.predict_path is not None and self.asked is None:
            self.asked = read_unlabelled(self.predict_path, self.image_size, shape)

    def _normalised(self, x: Tensor) -> Tensor:
        return (x.float() - self.mean) / self.std

    def _batch(self, rows: list[int]) -> dict[str, Any]:
        x = self._normalised(self.rows.x[rows])
        return {"x": x, "target": self.rows.y[rows], "index": torch.tensor(rows)}

    def _train_batch(self, rows: list[int]) -> dict[str, Any]:
        batch = self._batch(rows)
        return {**batch, "x": flip_and_shift(batch["x"])} if self.augment else batch

    def _test_batch(self, rows: list[int]) -> dict[str, Any]:
        return {**self._batch(rows), "name": [self.rows.names[row] for row in rows]}

    def _asked_batch(self, rows: list[int]) -> dict[str, Any]:
        x, names = cast(tuple[Tensor, list[str]], self.asked)
        named = [names[row] for row in rows]
        return {"x": self._normalised(x[rows]), "index": torch.tensor(rows), "name": named}

    def _in_order(self, rows: list[int], collate: Callable[[list[int]], Any]) -> DataLoader[Any]:
        sampler = IndexSampler(rows, self.batch_size, shuffle=False, even=False)
        share = self.batch_size // (self.trainer.world_size if self.trainer else 1)
        loaded: Any = rows
        return DataLoader(loaded, share, sampler=sampler, collate_fn=collate, num_workers=self.num_workers)

    def train_dataloader(self) -> ResumableLoader:
        return ResumableLoader(
            self.splits["train"],
            self.batch_size,
            shuffle=True,
            seed=self.seed,
            drop_last=True,
            collate_fn=self._train_batch,
            num_workers=self.num_workers,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return self._in_order(self.splits["val"], self._batch)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._in_order(self.splits["test"], self._batch)

    def predict_dataloader(self) -> DataLoader[Any]:
        if self.asked is not None:
            return self._in_order(list(range(len(self.asked[1]))), self._asked_batch)
        return self._in_order(self.splits["test"], self._test_batch)
