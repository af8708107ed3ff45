"""Rows with classes, from named sets, folders and arrays."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from .arrays import read_arrays, read_rows
from .errors import DataError
from .images import images_below, read_folder, read_images
from .labelled import Labelled
from .sets import locate

__all__ = ["read_labelled", "read_unlabelled"]

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _digits() -> Labelled:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("data set 'digits' needs scikit-learn: pip install 'trainkit[data]'") from error
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).reshape(-1, 1, 8, 8).float()
    rows = list(range(len(x)))
    names = [f"digits[{i}]" for i in rows]
    return Labelled(x, torch.from_numpy(labels).long(), [str(i) for i in range(10)], names, {"train": rows})


def read_labelled(name: Literal["digits", "mnist", "cifar10"], path: Path | None, image_size: int | None) -> Labelled:
    """Rows of the user's own data, else of a named set.

    Raises:
        DataError: For what is missing or can't be used.
    """
    if path is not None and path.is_dir():
        return read_folder(path, image_size)
    if image_size is not None:
        raise DataError(f"image_size={image_size} is for folders of images, got {path or name}")
    if path is not None:
        return read_arrays(_npz(path, "a folder with one sub-folder a class"))
    return _digits() if name == "digits" else read_arrays(locate(name), CIFAR10 if name == "cifar10" else None)


def read_unlabelled(path: Path, image_size: int | None, in_shape: tuple[int, ...]) -> tuple[Tensor, list[str]]:
    """Rows to be classified, and what they are called.

    Raises:
        DataError: For what can't be used, or has another shape than the rows that were trained on.
    """
    if path.is_dir():
        if len(in_shape) != 3:
            raise DataError(f"{path}: is a folder of images, but the model takes rows of shape {in_shape}")
        files = images_below(path)
        if not files:
            raise DataError(f"{path}: has no images")
        x, names = read_images(files, image_size, in_shape[0]), [str(file.relative_to(path)) for file in files]
    else:
        x, names = read_rows(_npz(path, "a folder of images"))
    if tuple(x.shape[1:]) != in_shape:
        raise DataError(f"{path}: has rows of shape {tuple(x.shape[1:])}, but the model takes {in_shape}")
    return x, names


def _npz(path: Path, otherwise: str) -> Path:
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.suffix.lower() != ".npz":
        raise DataError(f"{path}: must be {otherwise}, or an .npz file")
    return path
