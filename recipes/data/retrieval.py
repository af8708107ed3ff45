"""Pairs of texts for a dual encoder."""

from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from trainkit.data import IndexSampler, ResumableLoader

from .corpus import Corpus
from .errors import DataError
from .loaders import in_order
from .ngrams import hashed_ngrams
from .pairs import read_pairs, read_wordnet
from .sets import locate
from .stdlib import read_stdlib

__all__ = ["RetrievalData"]


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
        self._corpus: Corpus | None = None

    @property
    def corpus(self) -> Corpus:
        """Read, split and hashed the first time."""
        if self._corpus is None:
            if self.path is not None:
                pairs = read_pairs(self.path, *self.fields)
            else:
                pairs = read_stdlib() if self.name == "stdlib" else read_wordnet(locate("wordnet"))
            corpus = Corpus(pairs, *self.sizes, self.seed)
            counts = {split: len(rows) for split, rows in corpus.splits._asdict().items()}
            if counts["train"] < self.batch_size:
                raise DataError(f"batch_size={self.batch_size} is more than the {counts['train']} rows to train on")
            shown = ", ".join(f"{count:,} {split}" for split, count in counts.items())
            rank_zero_info(f"{self.path or self.name}: {len(pairs):,} pairs; {shown}")
            self._corpus = corpus
        return self._corpus

    def prepare_data(self) -> None:
        """Read on one process of a machine, before anything is written and before the others read."""
        _ = self.corpus

    def _asked(self, texts: list[str]) -> dict[str, Any]:
        return {"query": hashed_ngrams(texts).pick(range(len(texts))), "text": texts}

    def _held_out(self, rows: list[int]) -> DataLoader[Any]:
        return in_order(rows, self.batch_size, self.trainer, self.corpus.batch, self.num_workers)

    def train_dataloader(self) -> ResumableLoader:
        return ResumableLoader(
            self.corpus.splits.train,
            self.batch_size,
            shuffle=True,
            seed=self.seed,
            drop_last=True,
            collate_fn=self.corpus.batch,
            num_workers=self.num_workers,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return self._held_out(self.corpus.splits.val)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._held_out(self.corpus.splits.test)

    def predict_dataloader(self) -> DataLoader[Any]:
        if self.queries is None:
            return self._held_out(self.corpus.splits.test)
        # Every rank answers all of them: there may be fewer queries than ranks.
        asked: Any = self.queries
        sampler = IndexSampler(asked, self.batch_size, num_replicas=1, rank=0, shuffle=False)
        return DataLoader(asked, batch_size=self.batch_size, sampler=sampler, collate_fn=self._asked)
