"""All positives against all negatives of a score matrix that never exists: N x N^2 pairs in two sweeps of tiles.

The sum over positives of a surrogate is a function of one number, the negative score. A table of that function turns
the N^2 negative scores into values and derivatives at a cost per score that does not depend on the number of positives:
the first sweep collects moments of the negative scores in the cells of the table, from which the value and the
derivatives by the positives follow; the second looks up the derivative by each negative score.
"""

import math
from typing import Any

import torch
from torch import Tensor

from trainkit._core.pairs.base import Gradients, Pairs, no_gradients, scaled_op, wanted_of
from trainkit._core.pairs.sides import side_of
from trainkit._core.pairs.view import Hidden, block_ranges, like_block

__all__ = ["global_pair_sum"]


@torch.library.custom_op("trainkit::pair_global", mutates_args=())
def _global_op(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    weight: Tensor,
    hidden: list[Tensor],
    options: list[float],
    block: list[int],
    gradients: bool,
    wanted: list[bool],
) -> list[Tensor]:
    """Sum over all pairs, and its derivatives by query, key, scale, bias and positive."""
    pairs = Pairs(query, key, scale, bias, positive, positive.new_empty(0, dtype=torch.int64))
    kind, margin = options
    mask = Hidden(*hidden)
    n, m = query.shape[0], key.shape[0]
    if not (n and m and len(positive)):
        zeros = [torch.zeros_like(t, dtype=pairs.wide) for t in pairs[:5]] if gradients else []
        return [query.new_zeros((), dtype=pairs.wide), *zeros]
    visible = float(mask.visible_counts(m).sum())
    side = side_of(int(kind), margin, positive, weight, visible)
    height, width = min(block[0], n), min(block[1], m)
    buffer = torch.empty(height * width, dtype=query.dtype, device=query.device)
    tiles = [(rows, columns) for rows in block_ranges(n, height) for columns in block_ranges(m, width)]
    spare = torch.empty(height * width, dtype=pairs.wide, device=query.device)
    # A table cannot be entered with NaN, which must come out all the same.
    poison = torch.zeros((), dtype=pairs.wide, device=query.device)
    for rows, columns in tiles:
        scores = pairs.block(rows, columns, side.factor, buffer)
        side.place(scores)
        mask.fill(scores, rows, columns, side.neutral)
        poison += torch.where(scores.sum().isnan(), math.nan, 0.0)
        side.add(scores.view(-1))
    total = side.total().to(pairs.wide) + poison
    if not gradients:
        return [total]
    found = Gradients(pairs, wanted)
    for rows, columns in tiles:
        scores = pairs.block(rows, columns, side.factor, buffer)
        side.place(scores)
        mask.fill(scores, rows, columns, side.neutral)
        slopes = like_block(spare, scores)
        side.slopes(scores.view(-1), slopes.view(-1))
        mask.fill(slopes, rows, columns, 0.0)
        found.add(rows, columns, slopes, None)
    derivatives = found.finish()
    derivatives[4] = side.positive_slopes().to(pairs.wide)
    return [total, *(d + poison for d in derivatives)]


@_global_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    weight: Tensor,
    hidden: list[Tensor],
    options: list[float],
    block: list[int],
    gradients: bool,
    wanted: list[bool],
) -> list[Tensor]:
    wide = torch.promote_types(query.dtype, torch.float32)
    shapes = [t.shape for t in (query, key, scale, bias, positive)] if gradients else []
    return [query.new_empty(shape, dtype=wide) for shape in ((), *shapes)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])
    ctx.dtypes = [t.dtype for t in inputs[:5]]
    ctx.rest = no_gradients(inputs[5:])


def _backward(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    total = gradients[0]
    if total is None:
        return (*[None] * len(ctx.dtypes), *ctx.rest)
    like = [total.new_empty(0, dtype=dtype) for dtype in ctx.dtypes]
    return (*scaled_op(total, list(ctx.saved_tensors), like), *ctx.rest)


_global_op.register_autograd(_backward, setup_context=_save)


def global_pair_sum(
    pairs: Pairs,
    weight: Tensor,
    hidden: Hidden,
    *,
    kind: int,
    margin: float,
    block: tuple[int, int] = (256, 512),
) -> Tensor:
    r"""Sum over all positives and all visible scores of a surrogate of their difference.

    .. math:: \sum_p w_p \sum_{ij\ \text{visible}} \phi(s_{ij} - p), \qquad s_{ij} = a \langle q_i, k_j \rangle + b

    Four matrix products with gradients, one without. Differentiable once; a second derivative raises.

    Args:
        pairs: Embeddings, scale a and bias b; ``positive`` holds all positives, (P,), not one a row.
        weight: Weight of each positive, (P,), without gradient.
        hidden: Pairs that are no negatives.
        kind: 0 logistic, 1 hinge, 2 squared hinge, 3 square.
        margin: Margin of the last three.
        block: Rows and columns of a tile.
    """
    needed = torch.is_grad_enabled() and any(t.requires_grad for t in pairs[:5])
    options = [float(kind), margin]
    outputs = _global_op(*pairs[:5], weight.detach(), hidden.tensors(), options, list(block), needed, wanted_of(pairs))
    total: Tensor = outputs[0]
    return total
