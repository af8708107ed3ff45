"""Splits of rows into training, validation and test that share no group and no text."""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import torch

from .errors import DataError

__all__ = ["Splits", "duplicate_ids", "split_groups"]


class Splits(NamedTuple):
    """Rows of each split, and the ids by which equal texts are known.

    Args:
        train: Rows to train on.
        val: Rows to validate on.
        test: Rows to test on.
    """

    train: list[int]
    val: list[int]
    test: list[int]


def duplicate_ids(columns: Sequence[Sequence[Hashable]]) -> list[int]:
    """One number a row, equal for rows that agree in any of the columns, directly or through other rows."""
    parent = list(range(len(columns[0])))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for column in columns:
        first: dict[Hashable, int] = {}
        for row, value in enumerate(column):
            parent[root(row)] = root(first.setdefault(value, row))
    return [root(row) for row in range(len(parent))]


def split_groups(groups: Sequence[str], ids: Sequence[int], val_size: int, test_size: int, seed: int) -> Splits:
    """Whole groups, in an order drawn from ``seed``, fill test, then validation; the others are for training.

    A group that would overfill a split by more than half of its size goes to training. Held-out splits hold one row of
    each id, and no training row has the id of one that is held out.

    Raises:
        DataError: If a split ends empty.
    """
    members: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    names = sorted(members)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    held: tuple[list[int], list[int]] = ([], [])
    taken: set[int] = set()
    left: list[int] = []
    for name in (names[i] for i in order):
        rows = _first_of_each(members[name], ids, taken)
        for part, size in zip(held, (test_size, val_size), strict=True):
            if len(part) < size and len(part) + len(rows) <= size + size // 2:
                part += rows
                taken.update(ids[row] for row in rows)
                break
        else:
            left += members[name]
    test, val = (sorted(part) for part in held)
    splits = Splits(sorted(row for row in left if ids[row] not in taken), val, test)
    for split, rows in splits._asdict().items():
        if not rows:
            counts = f"{len(groups)} rows in {len(names)} groups"
            raise DataError(f"the {split} split is empty: {counts}, val_size={val_size}, test_size={test_size}")
    return splits


def _first_of_each(rows: Iterable[int], ids: Sequence[int], taken: set[int]) -> list[int]:
    kept: dict[int, int] = {}
    for row in rows:
        if ids[row] not in taken:
            kept.setdefault(ids[row], row)
    return list(kept.values())
