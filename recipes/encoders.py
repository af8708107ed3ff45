"""Encoders of texts."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data.bags import Bag

__all__ = ["DualEncoder", "TextTower"]

PACE = 20.0
"""How much faster weights of tokens and positions move than other parameters under one learning rate."""
OCTAVES = 2
"""Positions between a word and the one twice as far that have a weight of their own."""


def _residual(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """What is added to the input; nothing at first."""
    last = nn.Linear(hidden, dim)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), last)


class TextTower(nn.Module):
    r"""Weighted mean of the vectors of a bag, then residual layers, normalised to length one.

    A token weighs :math:`(1 + \ln n) \exp(w_t + p_i)` for the n times it occurs, with a learned weight of the token
    and one of the position i where it comes first. Before training all weights are alike and the residual layers do
    nothing, so that cosines are those of a random projection of the bags.

    Args:
        table: Vectors of the tokens, shared by the towers.
        hidden: Width of the residual layers.
        depth: Number of residual layers.
        dropout: Of the residual layers.
        token_dropout: Share of the tokens left out in training.
    """

    def __init__(self, table: nn.EmbeddingBag, hidden: int, depth: int, dropout: float, token_dropout: float) -> None:
        super().__init__()
        dim = table.embedding_dim
        self.table = table
        self.token_weight = nn.Parameter(torch.zeros(table.num_embeddings))
        self.position_weight = nn.Parameter(torch.zeros(8 * OCTAVES + 1))
        self.layers = nn.ModuleList(_residual(dim, hidden, dropout) for _ in range(depth))
        self.token_dropout = token_dropout

    def forward(self, bag: Bag) -> Tensor:
        tokens = bag.tokens.long() % self.table.num_embeddings
        place = (bag.positions.float() + 1).log2().mul(OCTAVES).floor().long()
        weight = (PACE * (self.token_weight[tokens] + self.position_weight[place])).exp() * (1 + bag.counts.log())
        weight = F.dropout(weight, self.token_dropout, self.training).to(self.table.weight.dtype)
        x = self.table(tokens, bag.offsets, per_sample_weights=weight)
        x = F.layer_norm(x, x.shape[1:])
        for layer in self.layers:
            x = x + layer(x)
        return F.normalize(x.float(), dim=1)


class DualEncoder(nn.Module):
    """A tower for queries and one for keys, over one table of token vectors.

    Args:
        buckets: Vectors in the table; tokens share them by their hash.
        dim: Width of the embeddings.
        hidden: Width of the residual layers.
        depth: Number of residual layers.
        dropout: Of the residual layers.
        token_dropout: Share of the tokens left out in training.
    """

    def __init__(
        self,
        buckets: int = 2**15,
        dim: int = 256,
        hidden: int = 256,
        depth: int = 2,
        dropout: float = 0.0,
        token_dropout: float = 0.1,
    ) -> None:
        super().__init__()
        table = nn.EmbeddingBag(buckets, dim, mode="sum")
        nn.init.normal_(table.weight, std=1 / PACE)
        self.query, self.key = (TextTower(table, hidden, depth, dropout, token_dropout) for _ in range(2))
