"""Images or vectors with classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from trainkit.data import ResumableLoader

from .augment import flip_and_shift
from .labelled_sets import read_labelled, read_unlabelled
from .loaders import in_order
from .prepared import Prepared, prepare

__all__ = ["ClassificationData"]


class ClassificationData(LightningDataModule):
    """Images or vectors with classes, kept in memory and normalised by mean and deviation of the rows to train on.

    Args:
        name: ``"digits"``, ``"mnist"`` or ``"cifar10"``, a part of it.
        path: Your own: a folder of images with one sub-folder a class, or with such folders train, val and test; or an
            .npz file with rows ``X`` and labels ``y``, and perhaps ``Xt`` and ``yt`` for the test.
        image_size: Scale the images of folders to squares of this size; None where their sizes agree.
        batch_size: Rows of the whole training batch, of all ranks together.
        val_size: Rows to validate on, where the data has no such split; None for a fifth of all, at most 5,000.
        test_size: Rows to test on, likewise.
        augment: Flip and shift the images to train on.
        limit_train: Rows to train on at most, for a quick run; None for all.
        seed: Of the split and of the order.
        num_workers: Processes that make batches.
        predict_path: What ``predict`` classifies, else the test split: a folder of images, or an .npz file with ``X``.
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
        self.set, self.path, self.image_size, self.predict_path = name, path, image_size, predict_path
        self.batch_size, self.sizes, self.limit_train = batch_size, {"test": test_size, "val": val_size}, limit_train
        self.augment, self.seed, self.num_workers = augment, seed, num_workers
        self._ready: Prepared | None = None
        self.asked: tuple[Tensor, list[str]] | None = None

    @property
    def ready(self) -> Prepared:
        """Rows, splits and statistics, read when they are first asked for."""
        if self._ready is None:
            rows, source = read_labelled(self.set, self.path, self.image_size), str(self.path or self.set)
            self._ready = prepare(rows, source, self.sizes, self.limit_train, self.batch_size, self.augment, self.seed)
        return self._ready

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return self.ready.rows.classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of a row: (C, H, W) of an image, (D,) of a vector."""
        return tuple(self.ready.rows.x.shape[1:])

    def prepare_data(self) -> None:
        """Read, on one process of a machine, before anything is written."""
        self.setup("fit")

    def setup(self, stage: str) -> None:
        shape = self.in_shape
        if self.predict_path is not None and self.asked is None:
            self.asked = read_unlabelled(self.predict_path, self.image_size, shape)

    def _train_batch(self, rows: list[int]) -> dict[str, Any]:
        batch = self.ready.batch(rows)
        return {**batch, "x": flip_and_shift(batch["x"])} if self.augment else batch

    def _asked_batch(self, rows: list[int]) -> dict[str, Any]:
        x, names = cast("tuple[Tensor, list[str]]", self.asked)
        return {"x": self.ready.normalised(x[rows]), "index": torch.tensor(rows), "name": [names[i] for i in rows]}

    def _in_order(self, rows: list[int], collate: Callable[[list[int]], Any]) -> DataLoader[Any]:
        return in_order(rows, self.batch_size, self.trainer, collate, self.num_workers)

    def train_dataloader(self) -> ResumableLoader:
        options: dict[str, Any] = {"seed": self.seed, "num_workers": self.num_workers, "collate_fn": self._train_batch}
        return ResumableLoader(self.ready.splits["train"], self.batch_size, shuffle=True, drop_last=True, **options)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._in_order(self.ready.splits["val"], self.ready.batch)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._in_order(self.ready.splits["test"], self.ready.batch)

    def predict_dataloader(self) -> DataLoader[Any]:
        if self.asked is not None:
            return self._in_order(list(range(len(self.asked[1]))), self._asked_batch)
        return self._in_order(self.ready.splits["test"], self.ready.named_batch)
