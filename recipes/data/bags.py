"""Bags of tokens of many texts."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Array", "Bag", "Bags", "Block"]

Array: TypeAlias = NDArray[np.int64]
Block: TypeAlias = tuple[Array, Array, Array, Array]
"""Tokens, counts and positions of some texts, and the lengths of their bags."""


class Bag(NamedTuple):
    """Bags of a batch of texts; each token stands once in the bag of its text.

    Args:
        tokens: Hashes of all bags behind one another, in [0, 2**31), (T,) int32.
        offsets: Start of each bag, (N,) int64.
        counts: How often each token came, (T,) int32.
        positions: Word at which it came first, at most 255, (T,) uint8.
    """

    tokens: Tensor
    offsets: Tensor
    counts: Tensor
    positions: Tensor


class Bags:
    """Bags of many texts; rows are picked by index.

    Args:
        parts: Blocks of texts, in order.
    """

    def __init__(self, parts: Sequence[Block]) -> None:
        tokens, counts, positions, lengths = (
            np.concatenate([part[i] for part in parts]) if parts else np.zeros(0, np.int64) for i in range(4)
        )
        self._columns = (tokens.astype(np.int32), counts.astype(np.int32), positions.astype(np.uint8))
        self._starts = np.concatenate([[0], lengths.cumsum()])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def pick(self, rows: Sequence[int] | Array) -> Bag:
        """The bags of ``rows``."""
        index = np.asarray(rows, np.int64)
        starts, lengths = self._starts[index], self._starts[index + 1] - self._starts[index]
        offsets = lengths.cumsum() - lengths
        places = np.arange(lengths.sum()) + np.repeat(starts - offsets, lengths)
        tokens, counts, positions = (torch.from_numpy(column[places]) for column in self._columns)
        return Bag(tokens, torch.from_numpy(offsets), counts, positions)
