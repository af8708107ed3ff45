"""Pairs of texts with what is computed from them: splits, ids of equal texts, bags of n-grams."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch

from .bags import Bag
from .ngrams import hashed_ngrams
from .pairs import Pair
from .splits import duplicate_ids, split_groups

__all__ = ["Corpus", "Split"]

Split: TypeAlias = Literal["train", "val", "test", "predict"]
MOST_HELD_OUT = 2000


class Corpus:
    """Pairs, split and hashed.

    Args:
        pairs: All pairs.
        val_size: Rows to validate on, about; None for a seventh, at most 2,000.
        test_size: Rows to test on, about; None for as many.
        seed: Of the split.

    Attributes:
        splits: Rows of each split.
        ids: Equal for pairs that share a text.
    """

    def __init__(self, pairs: Sequence[Pair], val_size: int | None, test_size: int | None, seed: int) -> None:
        queries, keys = [pair.query for pair in pairs], [pair.key for pair in pairs]
        usual = min(MOST_HELD_OUT, len(pairs) // 7)
        val, test = (usual if size is None else size for size in (val_size, test_size))
        self.pairs = pairs
        self.ids = duplicate_ids([queries, keys])
        self.splits = split_groups([pair.group for pair in pairs], self.ids, val, test, seed)
        self._queries, self._keys = hashed_ngrams(queries, "hashing queries"), hashed_ngrams(keys, "hashing keys")

    def rows(self, split: Split) -> list[int]:
        """Rows of a split, whose keys are its candidates; ``predict`` has all there are."""
        return list(range(len(self.pairs))) if split == "predict" else self.splits._asdict()[split]

    def keys(self, rows: Sequence[int]) -> Bag:
        """Bags of the keys of ``rows``."""
        return self._keys.pick(rows)

    def bags(self, rows: Sequence[int]) -> tuple[Bag, Bag]:
        """Bags of queries and keys of ``rows``."""
        return self._queries.pick(rows), self._keys.pick(rows)

    def batch(self, rows: Sequence[int]) -> dict[str, Any]:
        """Everything a step may want to know of ``rows``."""
        query, key = self.bags(rows)
        ids = torch.tensor([self.ids[row] for row in rows])
        text = [self.pairs[row].query for row in rows]
        return {"query": query, "key": key, "ids": ids, "index": torch.tensor(rows), "text": text}
