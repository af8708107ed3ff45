"""What the pair operators share: embeddings and their scores, and derivatives that are collected block by block."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["LOG2E", "Gradients", "Pairs", "no_gradients", "scaled_op", "wanted_of"]

LOG2E = math.log2(math.e)


class Pairs(NamedTuple):
    """Embeddings and what turns their products into scores.

    Args:
        query: (n, D); multiplied in its own dtype, accumulated in fp32 or fp64.
        key: (M, D), same dtype.
        scale: Scalar > 0.
        bias: Scalar.
        positive: Score of the positive pair of each row, (n,), in natural units; empty where ``own`` says which it is.
        own: Column of the positive of each row, (n,) int64, where it is among the keys; else empty.
    """

    query: Tensor
    key: Tensor
    scale: Tensor
    bias: Tensor
    positive: Tensor
    own: Tensor

    def positives(self, rows: slice) -> Tensor:
        """Scores of the positive pairs of some rows, in fp32 or better."""
        if not self.own.numel():
            return self.positive[rows]
        own = self.key[self.own[rows]].to(self.wide)
        found: Tensor = torch.linalg.vecdot(self.query[rows].to(self.wide), own) * self.scale + self.bias
        return found

    @property
    def wide(self) -> torch.dtype:
        """Dtype of sums."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def scores(self) -> Tensor:
        """All scores, (n, M), with the derivatives of autograd, for the plain form."""
        products = (self.scale.to(self.query.dtype) * self.query) @ self.key.T
        return products.to(self.wide) + self.bias

    def block(self, rows: slice, columns: slice, factor: float, buffer: Tensor) -> Tensor:
        """Scores of a block times ``factor``, in a buffer of the dtype of the embeddings."""
        left = self.query[rows] * (float(self.scale) * factor)
        shape = (left.shape[0], columns.stop - columns.start)
        scores = torch.mm(left, self.key[columns].T, out=buffer[: shape[0] * shape[1]].view(shape)).to(self.wide)
        shift = float(self.bias)
        return scores.add_(shift * factor) if shift else scores


class Gradients:
    """Derivatives of a weighted sum over pairs, collected block by block."""

    def __init__(self, pairs: Pairs, wanted: list[bool]) -> None:
        query, key = pairs.query, pairs.key
        self.pairs = pairs
        self.of_scale, self.of_bias = wanted
        self.query = torch.zeros(query.shape, dtype=pairs.wide, device=query.device)
        self.key = torch.zeros(key.shape, dtype=pairs.wide, device=key.device)
        self.bias = torch.zeros((), dtype=torch.float64, device=query.device)
        self.positive = torch.zeros(pairs.positive.shape, dtype=pairs.wide, device=query.device)

    def add(self, rows: slice, columns: slice, slopes: Tensor, weight: Tensor | None) -> None:
        """Add the derivatives by a block of scores.

        Args:
            rows: Rows of the block.
            columns: Columns of the block.
            slopes: Derivatives of the values of the rows by the scores.
            weight: Weights of the rows, (b,); they go into the small factors, so that the products with the block
                need no pass of their own for them.
        """
        own, low = self.pairs.query[rows], slopes.to(self.pairs.query.dtype)
        if weight is None:
            _add_product(self.query[rows], low, self.pairs.key[columns])
        else:
            part = (low @ self.pairs.key[columns]).to(self.query.dtype)
            self.query[rows].addcmul_(part, weight.unsqueeze(1))
            own = own * weight.unsqueeze(1).to(own.dtype)
        _add_product(self.key[columns], low.T, own)
        if self.of_bias:
            sums = slopes.sum(1).double()
            self.bias += (sums if weight is None else sums * weight).sum()

    def add_positives(self, rows: slice, slopes: Tensor) -> None:
        """Add the derivatives by the positive scores of some rows, (b,)."""
        pairs = self.pairs
        if not pairs.own.numel():
            self.positive[rows] += slopes
            return
        own, factor = pairs.own[rows], slopes.unsqueeze(1)
        self.query[rows].addcmul_(pairs.key[own].to(self.query.dtype), factor)
        self.key.index_add_(0, own, pairs.query[rows].to(self.key.dtype) * factor)
        if self.of_bias:
            self.bias += slopes.double().sum()

    def finish(self) -> list[Tensor]:
        """Derivatives by query, key, scale, bias and positive."""
        scale = torch.zeros_like(self.bias)
        if self.of_scale:
            scale = torch.linalg.vecdot(self.query, self.pairs.query.to(self.query.dtype)).double().sum()
        size = float(self.pairs.scale)
        return [
            self.query.mul_(size),
            self.key.mul_(size),
            scale.to(self.pairs.wide),
            self.bias.to(self.pairs.wide),
            self.positive,
        ]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right``, summed in the dtype of ``total``."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += (left @ right).to(total.dtype)


@torch.library.custom_op("trainkit::pair_strip_scaled", mutates_args=())
def scaled_op(gradient: Tensor, derivatives: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """The derivatives times the incoming number, in the dtypes of the inputs. It has no derivative of its own."""
    return [(gradient * d).to(t.dtype) for d, t in zip(derivatives, like, strict=True)]


@scaled_op.register_fake
def _(gradient: Tensor, derivatives: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(d, dtype=t.dtype) for d, t in zip(derivatives, like, strict=True)]


def no_gradients(inputs: Sequence[Any]) -> list[Any]:
    """What a backward gives back for inputs without gradients: None, and a list of them for a list of tensors."""
    lists = [isinstance(x, list) and all(isinstance(t, Tensor) for t in x) for x in inputs]
    return [[None] * len(x) if is_list else None for x, is_list in zip(inputs, lists, strict=True)]


def wanted_of(pairs: Pairs) -> list[bool]:
    """Whether derivatives by scale and bias are wanted: each takes a pass of its own."""
    return [pairs.scale.requires_grad, pairs.bias.requires_grad]
