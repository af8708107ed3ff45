"""Pairs of texts for a dual encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from trainkit.data import IndexSampler, ResumableLoader

from .errors import DataError
from .ngrams import Bag, Bags, hashed_ngrams
from .pairs import Pair, read_pairs, read_wordnet
from .sets import locate
from .splits import duplicate_ids, split_groups
from .stdlib import read_stdlib

__all__ = ["RetrievalData", "Split"]

Split: TypeAlias = Literal["val", "test", "predict"]


class RetrievalData(LightningDataModule):
    """Pairs of query and key as bags of hashed n-grams.

    Args:
        name: ``"stdlib"``, docstrings and functions of Python's standard library, or ``"wordnet"``, definitions and
            lemmas.
        path: Your own JSONL, CSV or TSV file, in place of a named set.
        query_field: Its field with the query.
        key_field: Its field with the key.
        group_field: Its field whose equal values stay in one split; None if rows are independent.
        batch_size: Rows of the whole training batch, of all ranks together.
        val_size: Rows to validate on, about; None for a seventh of the rows, at most 2,000.
        test_size: Rows to test on, about; None for as many.
        seed: Of the split and of the order.
        num_workers: Processes that make batches.
        query: For ``predict``: texts to find keys for; by default the queries of the test split.
    """

    def __init__(
        self,
        name: Literal["stdlib", "wordnet"] = "stdlib",
        path: Path | None = None,
        query_field: str = "query",
        key_field: str = "key",
        group_field: str | None = None,
        batch_size: int = 256,
        val_size: int | None = None,
        test_size: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
        query: str | list[str] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.path, self.batch_size, self.seed, self.num_workers = name, path, batch_size, seed, num_workers
        self.fields = (query_field, key_field, group_field)
        self.sizes = (val_size, test_size)
        self.queries = [query] if isinstance(query, str) else query
        self.pairs: list[Pair] = []

    def _read(self) -> list[Pair]:
        if self.path is not None:
            return read_pairs(self.path, *self.fields)
        return read_stdlib() if self.name == "stdlib" else read_wordnet(locate("wordnet"))

    def prepare_data(self) -> None:
        """Read, on one process of a machine, before anything is written and the others read."""
        self._load()

    def setup(self, stage: str) -> None:
        """Read, split and hash, once."""
        self._load()

    def _load(self) -> None:
        if self.pairs:
            return
        pairs = self._read()
        self.ids = duplicate_ids([[pair.query for pair in pairs], [pair.key for pair in pairs]])
        usual = min(2000, len(pairs) // 7)
        val, test = (usual if size is None else size for size in self.sizes)
        self.splits = split_groups([pair.group for pair in pairs], self.ids, val, test, self.seed)
        if len(self.splits.train) < self.batch_size:
            rows = len(self.splits.train)
            raise DataError(f"batch_size={self.batch_size} is more than the {rows} rows to train on")
        self._queries = hashed_ngrams([pair.query for pair in pairs], "hashing queries")
        self._keys = hashed_ngrams([pair.key for pair in pairs], "hashing keys")
        self.pairs = pairs
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in self.splits._asdict().items())
        rank_zero_info(f"{self.path or self.name}: {len(pairs):,} pairs; {counts}")

    def rows(self, split: Split) -> list[int]:
        """Rows whose keys are the candidates of a split: its own; all there are for ``predict``."""
        return {"val": self.splits.val, "test": self.splits.test, "predict": list(range(len(self.pairs)))}[split]

    def keys(self, rows: Sequence[int]) -> Bag:
        """Bags of the keys of ``rows``."""
        return self._keys.pick(rows)

    def bags(self, rows: Sequence[int]) -> tuple[Bag, Bag]:
        """Bags of queries and keys of ``rows``."""
        return self._queries.pick(rows), self._keys.pick(rows)

    def _batch(self, rows: Sequence[int]) -> dict[str, Any]:
        query, key = self.bags(rows)
        ids = torch.tensor([self.ids[row] for row in rows])
        text = [self.pairs[row].query for row in rows]
        return {"query": query, "key": key, "ids": ids, "index": torch.tensor(rows), "text": text}

    def _asked(self, texts: list[str]) -> dict[str, Any]:
        return {"query": hashed_ngrams(texts).pick(range(len(texts))), "text": texts}

    def _held_out(self, rows: list[int]) -> DataLoader[Any]:
        sampler = IndexSampler(rows, self.batch_size, shuffle=False, even=False)
        share = self.batch_size // (self.trainer.world_size if self.trainer else 1)
        loaded: Any = rows
        return DataLoader(
            loaded, batch_size=share, sampler=sampler, collate_fn=self._batch, num_workers=self.num_workers
        )

    def train_dataloader(self) -> ResumableLoader:
        return ResumableLoader(
            self.splits.train,
            self.batch_size,
            shuffle=True,
            seed=self.seed,
            drop_last=True,
            collate_fn=self._batch,
            num_workers=self.num_workers,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return self._held_out(self.splits.val)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._held_out(self.splits.test)

    def predict_dataloader(self) -> DataLoader[Any]:
        if self.queries is None:
            return self._held_out(self.splits.test)
        # Every rank answers all of them: there may be fewer queries than ranks.
        asked: Any = self.queries
        sampler = IndexSampler(asked, self.batch_size, num_replicas=1, rank=0, shuffle=False)
        return DataLoader(asked, batch_size=self.batch_size, sampler=sampler, collate_fn=self._asked)
