"""Find the key that answers a query, with a dual encoder."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric

from trainkit.metrics import MeanReciprocalRank, RecallAtK

from ._match_auroc import MatchAUROC
from ._module import RecipeModule
from ._optimizer import adamw
from .data.bags import Bag
from .data.corpus import Corpus, Split

__all__ = ["RetrievalModule"]

BLOCK = 1024
"""Keys that are encoded at once."""


class RetrievalModule(RecipeModule):
    """A dual encoder that is trained on pairs and ranks all keys of a split.

    Validation and test give for every query the logits of all keys of the split, cosine / temperature, so that
    callbacks see the probability of each to be the right one.

    Args:
        encoder: Module with the towers ``query`` and ``key``.
        loss: Any loss on ``query`` and ``key``; it is also given ``ids``, equal for pairs that share a text.
        optimizer: Makes the optimizer from parameter groups; AdamW with a learning rate of 1e-3 by default.
        metrics: More metrics of ``query``, ``key``, ``logits`` or ``target``, by name.
        weight_decay: Of weight matrices.
        warmup: Share of the run in which the learning rate rises; None keeps it as it is.
        top_k: Keys that ``predict`` gives for each query.
    """

    def __init__(
        self,
        encoder: nn.Module,
        loss: nn.Module,
        optimizer: OptimizerCallable = adamw,
        metrics: dict[str, Metric] | None = None,
        weight_decay: float = 0.01,
        warmup: float | None = 0.1,
        top_k: int = 10,
    ) -> None:
        usual = {"R@1": RecallAtK(k=1), "R@10": RecallAtK(k=10), "MRR": MeanReciprocalRank(), "AUROC": MatchAUROC()}
        super().__init__(loss, optimizer, {**usual, **(metrics or {})}, weight_decay, warmup)
        self.encoder, self.top_k = encoder, top_k

    @property
    def temperature(self) -> float:
        """Divisor of the cosines: the one of the loss, as it is now; 1 if the loss has none."""
        scale = getattr(self.loss, "log_scale", None)
        if isinstance(scale, Tensor):
            return math.exp(-scale.item())
        return float(getattr(self.loss, "temperature", 1.0))

    @property
    def corpus(self) -> Corpus:
        """Where the keys of a split come from."""
        corpus: Corpus = self.trainer.datamodule.corpus  # type: ignore[attr-defined]
        return corpus

    def encode(self, side: Literal["query", "key"], bag: Bag) -> Tensor:
        """Embeddings of queries or keys."""
        embeddings: Tensor = getattr(self.encoder, side)(bag)
        return embeddings

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        query, key = self.encode("query", batch["query"]), self.encode("key", batch["key"])
        return self.train_on({"query": query, "key": key, "ids": batch["ids"]}, len(query))

    def encode_keys(self, rows: Sequence[int]) -> Tensor:
        """Embeddings of the keys of ``rows``."""
        with self.trainer.precision_plugin.forward_context(), torch.no_grad():
            bags = (self.corpus.keys(rows[i : i + BLOCK]) for i in range(0, len(rows), BLOCK))
            return torch.cat([self.encode("key", self._on_device(bag)) for bag in bags])

    def _on_device(self, bag: Bag) -> Bag:
        return Bag(*(column.to(self.device) for column in bag))

    def _take_keys(self, split: Split) -> None:
        self.rows = self.corpus.rows(split)
        self.pool = self.encode_keys(self.rows)
        self.places = torch.tensor(self.rows, device=self.device)

    def on_validation_epoch_start(self) -> None:
        self._take_keys("val")

    def on_test_epoch_start(self) -> None:
        self._take_keys("test")

    def on_predict_epoch_start(self) -> None:
        self._take_keys("predict")

    def _evaluate(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        query = self.encode("query", batch["query"])
        cosines, target = query @ self.pool.T, torch.searchsorted(self.places, batch["index"])
        self.measure({"query": query, "key": self.pool[target], "cosines": cosines, "target": target})
        return {"logits": cosines / self.temperature, "target": target, "index": batch["index"]}

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch)

    def test_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch)

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return {"logits": self.encode("query", batch["query"]) @ self.pool.T / self.temperature}
