"""Reduction of per-target losses, and the zero that keeps a graph alive."""

import torch
from torch import Tensor

from trainkit._core.checks import check_choice
from trainkit._core.typing import Reduction

__all__ = ["check_reduction", "graph_zero", "reduce", "safe_divide", "target_weights"]


def check_reduction(owner: str, reduction: str) -> None:
    """Require one of the three reductions."""
    check_choice(owner, "reduction", reduction, ("mean", "sum", "none"))


def safe_divide(total: Tensor, count: Tensor) -> Tensor:
    """``total / count``, and ``total`` itself (a zero with a live graph) where ``count`` is zero."""
    return total / torch.where(count > 0, count, 1)


def reduce(rows: Tensor, weights: Tensor, reduction: Reduction) -> Tensor:
    """Reduce weighted rows: ``"none"`` gives them back, ``"sum"`` adds, ``"mean"`` divides by the sum of weights.

    Args:
        rows: Losses, each already multiplied by its weight; zero where the weight is zero.
        weights: Weights of the rows, same shape.
        reduction: How to reduce.
    """
    if reduction == "none":
        return rows
    if reduction == "sum":
        return rows.sum()
    return safe_divide(rows.sum(), weights.sum())


def graph_zero(*tensors: Tensor | None) -> Tensor:
    """A scalar zero attached to every tensor, with zero gradient even where one holds inf or NaN."""
    pieces = [t.reshape(-1)[:0].sum() for t in tensors if t is not None]
    if not pieces:
        raise ValueError("graph_zero: tensors must hold at least one tensor, got none")
    zero = pieces[0]
    for piece in pieces[1:]:
        zero = zero + piece
    return zero


def target_weights(like: Tensor, valid: Tensor | None, weight: Tensor | None, mask: Tensor | None) -> Tensor:
    """Weight of each target: the product of what is given, one where nothing is.

    Args:
        like: Tensor that gives shape and dtype of the result.
        valid: Boolean, False where the target is ignored.
        weight: Non-negative weight of each target.
        mask: Boolean, True where the target counts.
    """
    weights = torch.ones_like(like) if weight is None else weight.to(like.dtype)
    for keep in (valid, mask):
        if keep is not None:
            weights = torch.where(keep, weights, 0)
    return weights
