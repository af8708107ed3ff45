"""Rows in the arrays of an .npz file."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .labelled import Labelled, check_labels, classes_of

__all__ = ["read_arrays", "read_rows"]

CHANNELS = (1, 3, 4)


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: is no .npz file that can be read: save arrays with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = [name for name in ("X", "y", "Xt", "yt") if name in arrays.files]
            there = ", ".join(arrays.files) or "none"
            return {name: _array(path, arrays, name) for name in names} | {"": there}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: is no .npz file that can be read: {error}") from error


def _array(path: Path, arrays: Any, name: str) -> Any:
    try:
        return arrays[name]
    except ValueError as error:
        told = "holds Python objects, which are not read: save numbers, or strings as astype(str)"
        raise DataError(f"{path}: array {name!r} {told if 'pickle' in str(error) else error}") from error


def _need(path: Path, arrays: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if name not in arrays:
            raise DataError(f"{path}: has no array {name!r}; its arrays: {arrays['']}")


def _rows(path: Path, name: str, array: Any) -> Tensor:
    """An array as images with channels first, or as vectors."""
    if array.dtype.kind not in "uifb":
        raise DataError(f"{path}: array {name!r} must hold real numbers, got dtype {array.dtype}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim != 2 and not (array.ndim == 4 and array.shape[1] in CHANNELS):
        rule = "(N, D), (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1, 3 or 4"
        raise DataError(f"{path}: array {name!r} must have shape {rule}, got {array.shape}")
    if 0 in array.shape:
        raise DataError(f"{path}: array {name!r} must not be empty, got {array.shape}")
    finite = np.isfinite(array).reshape(len(array), -1).all(1)
    if not finite.all():
        raise DataError(f"{path}: array {name!r} must hold finite numbers, got others in row {int(finite.argmin())}")
    dtype = np.uint8 if array.dtype == np.uint8 else np.float32
    return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))


def read_arrays(path: Path, names: Sequence[str] | None = None) -> Labelled:
    """The arrays X and y of an .npz file, with Xt and yt for the test if it has them; ``names`` are of the classes.

    Raises:
        DataError: For what can't be used; names file, array and fault.
    """
    arrays = _load(path)
    tested = "Xt" in arrays or "yt" in arrays
    _need(path, arrays, "X", "y", *(("Xt", "yt") if tested else ()))
    x = _rows(path, "X", arrays["X"])
    check_labels(path, "y", arrays["y"], "X", len(x))
    later = None
    if tested:
        xt = _rows(path, "Xt", arrays["Xt"])
        if xt.shape[1:] != x.shape[1:]:
            shapes = f"{tuple(x.shape[1:])}, as 'X', got {tuple(xt.shape[1:])}"
            raise DataError(f"{path}: array 'Xt' must have rows of shape {shapes}")
        later = arrays["yt"]
        check_labels(path, "yt", later, "Xt", len(xt))
        x = torch.cat([x, xt])
    classes = classes_of(path, arrays["y"], later)
    place = {label: i for i, label in enumerate(classes)}
    labels = [*arrays["y"].tolist(), *([] if later is None else later.tolist())]
    first = len(arrays["y"])
    own = {"train": list(range(first))} | ({"test": list(range(first, len(x)))} if tested else {})
    called = [f"X[{i}]" if i < first else f"Xt[{i - first}]" for i in range(len(x))]
    return Labelled(x, torch.tensor([place[label] for label in labels]), list(names or map(str, classes)), called, own)


def read_rows(path: Path) -> tuple[Tensor, list[str]]:
    """The array X of an .npz file, and what its rows are called."""
    arrays = _load(path)
    _need(path, arrays, "X")
    x = _rows(path, "X", arrays["X"])
    return x, [f"X[{i}]" for i in range(len(x))]
