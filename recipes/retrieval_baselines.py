"""What the retrieval recipe is compared with."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn import functional as F

from .data.bags import Bag

__all__ = ["RetrievalBaselines"]

BLOCK = 256
"""Keys whose counts are laid out at once."""


def ngram_cosines(query: Bag, key: Bag) -> Tensor:
    """Cosine of the token counts of every query with every key, (N, M)."""
    tokens, place = torch.cat([query.tokens, key.tokens]).unique(return_inverse=True)
    query_place, key_place = place.split([len(query.tokens), len(key.tokens)])
    query_value, key_value = _normalised(query), _normalised(key)
    row = _rows(key)
    scores = torch.empty(len(query.offsets), len(key.offsets))
    for start in range(0, len(key.offsets), BLOCK):
        inside = (row >= start) & (row < start + BLOCK)
        block = torch.zeros(len(tokens), min(BLOCK, len(key.offsets) - start))
        block[key_place[inside], row[inside] - start] = key_value[inside]
        scores[:, start : start + BLOCK] = F.embedding_bag(
            query_place, block, query.offsets, mode="sum", per_sample_weights=query_value
        )
    return scores


def _rows(bag: Bag) -> Tensor:
    """Row of each token."""
    lengths = torch.diff(bag.offsets, append=torch.tensor([len(bag.tokens)]))
    return torch.arange(len(lengths)).repeat_interleave(lengths)


def _normalised(bag: Bag) -> Tensor:
    """Counts, scaled so that the squares of each bag sum to one."""
    counts, row = bag.counts.float(), _rows(bag)
    norm = torch.zeros(len(bag.offsets)).index_add(0, row, counts.square()).sqrt()
    return counts / norm[row]


def recalls(scores: Tensor) -> dict[str, float]:
    """R@1 and R@10 where the right key of row i is i; tied keys come in any order."""
    right = scores.diagonal().unsqueeze(1)
    above, tied = (scores > right).sum(1), (scores == right).sum(1)
    return {f"R@{k}": float(((k - above) / tied).clamp(0, 1).mean()) for k in (1, 10)}


class RetrievalBaselines(Callback):
    """Logs at the test what needs no training: the encoder as it was before, and the cosine of n-gram counts."""

    def __init__(self) -> None:
        self.untrained: dict[str, float] = {}

    def state_dict(self) -> dict[str, float]:
        return self.untrained

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self.untrained = dict(state_dict)

    @torch.no_grad()
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is not None:
            return
        module: Any = pl_module
        pl_module.eval()
        bags = module.corpus.bags(module.corpus.splits.test)
        query, key = (
            tower(Bag(*(column.to(module.device) for column in bag)))
            for tower, bag in zip((module.encoder.query, module.encoder.key), bags, strict=True)
        )
        self.untrained = recalls(query @ key.T)
        pl_module.train()

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        found = {"n-grams": recalls(ngram_cosines(*module.corpus.bags(module.corpus.splits.test)))}
        for name, values in {**found, **({"untrained": self.untrained} if self.untrained else {})}.items():
            pl_module.log_dict({f"test/{metric} {name}": value for metric, value in values.items()}, sync_dist=True)
