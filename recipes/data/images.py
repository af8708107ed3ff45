"""Images in folders, one folder a class."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .errors import DataError
from .labelled import Labelled

__all__ = ["images_below", "read_folder", "read_images"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
GREY = ("1", "L")
COLOURED = ("LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")
SPLITS = ("train", "val", "test")


def images_below(folder: Path) -> list[Path]:
    """Files with the suffix of an image, in order, in a folder and those inside it."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def _pixels(file: Path, image_size: int | None) -> Any:
    """(H, W) of a grey image, (H, W, 3) of one in colours."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode not in GREY + COLOURED:
                raise DataError(f"{file}: has pixels of mode {image.mode!r}; save it with 8 bits a channel")
            image = image.convert("L" if image.mode in GREY else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: is no image that can be read: {error}") from error
    if image_size is not None:
        image = ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(image)


def read_images(files: Sequence[Path], image_size: int | None, channels: int | None = None) -> Tensor:
    """Images as (N, C, H, W), uint8; in colours if any of them is, unless ``channels`` says 1 or 3.

    Args:
        files: At least one.
        image_size: Scale to squares of this size, cutting off what is longer; None where all sizes agree.
        channels: 1 or 3; None for what the images need.

    Raises:
        DataError: For a file that is no image or has another size than the first; if pillow is missing.
    """
    if importlib.util.find_spec("PIL") is None:
        raise DataError("reading images needs pillow: pip install 'trainkit[data]'")
    arrays = []
    for file in tqdm(files, desc="reading images", unit="image", leave=False, disable=len(files) < 1000):
        arrays.append(_pixels(file, image_size))
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            (h, w), (height, width) = arrays[-1].shape[:2], arrays[0].shape[:2]
            first = f"{width} x {height} as {files[0].name}"
            raise DataError(f"{file}: is {w} x {h} pixels, not {first}; set image_size to scale all images")
    coloured = any(a.ndim == 3 for a in arrays) if channels is None else channels == 3
    if coloured:
        whole = np.stack([a if a.ndim == 3 else np.repeat(a[:, :, None], 3, 2) for a in arrays])
    else:
        whole = np.stack([a if a.ndim == 2 else a.mean(2).round().astype(np.uint8) for a in arrays])[..., None]
    return torch.from_numpy(np.ascontiguousarray(whole.transpose(0, 3, 1, 2)))


def _class_folders(folder: Path) -> list[Path]:
    found = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not found:
        raise DataError(f"{folder}: has no sub-folders; it needs one for each class, with its images")
    return found


def read_folder(path: Path, image_size: int | None) -> Labelled:
    """Images of a folder with one sub-folder a class, or with folders train and perhaps val and test of such.

    Raises:
        DataError: For what can't be used; names folder or file.
    """
    tops = {name: path / name for name in SPLITS if (path / name).is_dir()} if (path / "train").is_dir() else {}
    tops = tops or {"train": path}
    classes = [folder.name for folder in _class_folders(tops["train"])]
    files: list[Path] = []
    labels: list[int] = []
    own: dict[str, list[int]] = {}
    for split, top in tops.items():
        start = len(files)
        for folder in _class_folders(top):
            if folder.name not in classes:
                raise DataError(f"{folder}: is a class that {tops['train']} does not have")
            inside = images_below(folder)
            if not inside:
                raise DataError(f"{folder}: has no images ({', '.join(SUFFIXES)})")
            files += inside
            labels += [classes.index(folder.name)] * len(inside)
        own[split] = list(range(start, len(files)))
    names = [str(file.relative_to(path)) for file in files]
    return Labelled(read_images(files, image_size), torch.tensor(labels), classes, names, own)
