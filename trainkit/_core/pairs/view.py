"""What the pair operators show of the score matrix, and what they hide of it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

__all__ = ["CACHED", "Hidden", "View", "block_ranges", "cached_views", "like_block", "path_of", "resolve"]

CACHED = 2**20
"""Scores that stay in the cache: 4 MB of fp32."""


@dataclass(frozen=True)
class Hidden:
    """Pairs that are no candidates: single columns of each row, equal ids, and a mask.

    Args:
        columns: Columns hidden from each row, (n, h) int64, -1 for none: its positive, itself.
        row_ids: Ids of the rows, (n,); columns with the id of the row are hidden. Empty for none.
        column_ids: Ids of the columns, (M,). Empty for none.
        exclude: Further pairs to hide, (n, M) boolean. Empty for none.
    """

    columns: Tensor
    row_ids: Tensor
    column_ids: Tensor
    exclude: Tensor

    @classmethod
    def of(
        cls,
        columns: Tensor,
        row_ids: Tensor | None = None,
        column_ids: Tensor | None = None,
        exclude: Tensor | None = None,
    ) -> "Hidden":
        """Hidden pairs with what is not given left empty."""
        none = columns.new_empty(0)
        return cls(
            columns,
            none if row_ids is None else row_ids,
            none if column_ids is None else column_ids,
            columns.new_empty(0, 0, dtype=torch.bool) if exclude is None else exclude,
        )

    def tensors(self) -> list[Tensor]:
        """The parts, for an operator that takes tensors."""
        return [self.columns, self.row_ids, self.column_ids, self.exclude]

    def fill(self, scores: Tensor, rows: slice, columns: slice, value: float = -math.inf) -> None:
        """Set the hidden pairs of a block to ``value``, in place."""
        width = columns.stop - columns.start
        for column in self.columns[rows].unbind(1):
            local = column - columns.start
            inside = (local >= 0) & (local < width)
            if width == scores.shape[1] and bool(inside.all()):
                scores.scatter_(1, local.unsqueeze(1), value)
            else:
                hit = inside.nonzero().squeeze(1)
                scores[hit, local[hit]] = value
        if self.row_ids.numel():
            scores.masked_fill_(self.row_ids[rows].unsqueeze(1) == self.column_ids[columns], value)
        if self.exclude.numel():
            scores.masked_fill_(self.exclude[rows, columns], value)

    def visible_counts(self, m: int) -> Tensor:
        """Number of columns that are not hidden from each row, (n,)."""
        if self.exclude.numel():
            return (~self.mask(self.columns.shape[0], m)).sum(1)
        if not self.row_ids.numel():
            return m - (self.columns >= 0).sum(1)
        ordered, ids = self.column_ids.sort().values, self.row_ids.contiguous()
        same = torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)
        # Columns hidden one by one may be of another id.
        other = self.column_ids[self.columns.clamp_min(0)] != self.row_ids.unsqueeze(1)
        return m - same - ((self.columns >= 0) & other).sum(1)

    def mask(self, n: int, m: int) -> Tensor:
        """All hidden pairs as a mask, for the plain form."""
        mask = torch.zeros(n, m, dtype=torch.bool, device=self.columns.device)
        every = torch.arange(m, device=self.columns.device)
        for column in self.columns.unbind(1):
            mask = mask | (column.unsqueeze(1) == every)
        if self.row_ids.numel():
            mask = mask | (self.row_ids.unsqueeze(1) == self.column_ids)
        return mask | self.exclude if self.exclude.numel() else mask


@dataclass(frozen=True)
class View:
    """One block of the scores and the data that belongs to it.

    Args:
        scores: Block of scores, (b, m), scale and bias applied; in units of log 2 if the head says ``log2``. A buffer
            that is used again: heads and programs change it in place.
        rows: Which rows.
        columns: Which columns.
        hidden: Pairs that are no candidates.
        tensors: Further tensors of the head, whole.
        options: Numbers of the head.
        spare: A second buffer of the shape of the scores.
    """

    scores: Tensor
    rows: slice
    columns: slice
    hidden: Hidden
    tensors: Sequence[Tensor]
    options: Sequence[float]
    spare: Tensor

    def hide(self, value: float = -math.inf) -> None:
        """Set the scores of the hidden pairs."""
        self.hidden.fill(self.scores, self.rows, self.columns, value)


def block_ranges(size: int, block: int) -> list[slice]:
    """Consecutive slices of at most ``block`` that cover ``size``."""
    return [slice(start, min(start + block, size)) for start in range(0, size, max(block, 1))]


def like_block(spare: Tensor, scores: Tensor) -> Tensor:
    """The part of a flat buffer that has the shape of ``scores``."""
    return spare[: scores.numel()].view(scores.shape)


def cached_views(
    scores: Tensor,
    rows: slice,
    columns: slice,
    hidden: Hidden,
    tensors: Sequence[Tensor],
    options: Sequence[float],
    spare: Tensor,
) -> Iterator[tuple[slice, View]]:
    """Parts of a block of about 4 MB, which stay in the cache over the passes that are made over them.

    Args:
        scores: The block, (b, m).
        rows: Which rows.
        columns: Which columns.
        hidden: Pairs that are no candidates.
        tensors: Further tensors.
        options: Numbers.
        spare: A flat buffer of at least the size of a part.

    Yields:
        Which rows of the block, and the view of them.
    """
    for part in block_ranges(scores.shape[0], max(CACHED // max(scores.shape[1], 1), 1)):
        at = slice(rows.start + part.start, rows.start + part.stop)
        own = scores[part]
        yield part, View(own, at, columns, hidden, tensors, options, like_block(spare, own))


def path_of(kind: type) -> str:
    """The ``module:name`` by which an operator finds a head or a program; operators take no Python objects."""
    return f"{kind.__module__}:{kind.__qualname__}"


def resolve(name: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
