"""Splits that hold the classes in the shares they have in the whole."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .errors import DataError
from .labelled import Labelled

__all__ = ["split_labelled", "stratified"]


def stratified(y: Tensor, rows: Sequence[int], sizes: Sequence[int], seed: int) -> list[list[int]]:
    """Parts of ``rows`` of the given sizes, and what is left; each has its share of every class, within one row.

    The rows of a class, in an order drawn from ``seed``, are spread evenly over one line, which is then cut.
    """
    places = torch.tensor(rows, dtype=torch.int64)
    order = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))]
    on_line = torch.zeros(len(order), dtype=torch.float64)
    for label in y[order].unique():
        own = (y[order] == label).nonzero()[:, 0]
        on_line[own] = (torch.arange(len(own), dtype=torch.float64) + 0.5) / len(own)
    ordered = order[on_line.argsort(stable=True)].tolist()
    cuts = [0]
    for size in sizes:
        cuts.append(cuts[-1] + max(0, size))
    return [sorted(ordered[a:b]) for a, b in zip(cuts, [*cuts[1:], len(ordered)], strict=True)]


def split_labelled(
    data: Labelled, sizes: Mapping[str, int | None], limit_train: int | None, seed: int, source: str
) -> dict[str, list[int]]:
    """Rows of train, val and test: the splits that the data has, and what it lacks drawn from its rows to train on.

    Raises:
        DataError: If a split has no rows, or a class none to train on; names ``source``.
    """
    usual = min(5000, len(data.y) // 5)
    drawn = {split: usual if size is None else size for split, size in sizes.items() if split not in data.own}
    told = ", ".join([f"{len(data.y)} rows", *(f"{split}_size={size}" for split, size in drawn.items())])
    *parts, train = stratified(data.y, data.own["train"], list(drawn.values()), seed)
    if limit_train is not None:
        told += f", limit_train={limit_train}"
        train = stratified(data.y, train, [limit_train], seed)[0]
    found = {**data.own, **dict(zip(drawn, parts, strict=True)), "train": train}
    splits = {split: found[split] for split in ("train", "val", "test")}
    for split, rows in splits.items():
        if not rows:
            raise DataError(f"{source}: the {split} split is empty: {told}")
    if len(data.classes) < 2:
        raise DataError(f"{source}: has one class, {data.classes[0]!r}, where at least two are needed")
    counts = data.y[train].bincount(minlength=len(data.classes)).tolist()
    missing = [name for name, count in zip(data.classes, counts, strict=True) if not count]
    if missing:
        raise DataError(f"{source}: no row to train on is of class {', '.join(map(repr, missing[:5]))}: {told}")
    return splits
