"""Rows with classes, and what labels must be like."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from .errors import DataError

__all__ = ["Labelled", "check_labels", "classes_of"]


class Labelled(NamedTuple):
    """Rows with classes.

    Args:
        x: Images (N, C, H, W) or vectors (N, D), uint8 or float32.
        y: Class of each row, int64.
        classes: Names of the classes.
        names: What each row is called.
        own: Rows of the splits that the source itself has; ``train`` is always there.
    """

    x: Tensor
    y: Tensor
    classes: list[str]
    names: list[str]
    own: Mapping[str, list[int]]


def check_labels(path: Path, name: str, labels: Any, of: str, rows: int) -> None:
    """Require a label for each row of the array ``of``."""
    if labels.shape != (rows,):
        rule = f"a label for each of the {rows} rows of {of!r}, shape ({rows},)"
        raise DataError(f"{path}: array {name!r} must hold {rule}, got {labels.shape}")
    if labels.dtype.kind not in "uiU":
        rule = "integers from 0, or strings"
        raise DataError(f"{path}: array {name!r} must hold {rule}, got dtype {labels.dtype}")
    if labels.dtype.kind == "i" and labels.min() < 0:
        row = int(labels.argmin())
        raise DataError(f"{path}: array {name!r} must hold integers from 0, got {labels[row]} in row {row}")


def classes_of(path: Path, labels: Any, later: Any | None) -> list[Any]:
    """Every label there is, in order; an integer that no row has is a class too."""
    known = np.unique(labels)
    classes = known.tolist() if labels.dtype.kind == "U" else list(range(int(known.max()) + 1))
    if later is not None and later.dtype.kind != labels.dtype.kind and "U" in later.dtype.kind + labels.dtype.kind:
        raise DataError(f"{path}: array 'yt' must hold labels as 'y', of dtype {labels.dtype}, got {later.dtype}")
    foreign = [] if later is None else later[~np.isin(later, known)].tolist()
    if foreign:
        raise DataError(f"{path}: array 'yt' holds {foreign[0]!r}, which 'y' does not")
    return classes
