"""Losses that are sums over rows of a function of the row, without the score matrix.

A strip is a few complete rows of the score matrix, or a few rows and columns for heads that allow it. The head turns
its scores in place into the derivatives of the row values, from which both gradients of the embeddings follow by a
product each: three matrix products in all, and no more memory than a strip and the gradients. Where the weights of the
rows are only known in the backward, the rows are computed first and the strips once more then.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from trainkit._core.pairs.base import LOG2E, Gradients, Pairs, no_gradients, scaled_op, wanted_of
from trainkit._core.pairs.view import CACHED, Hidden, View, block_ranges, cached_views, path_of, resolve

__all__ = ["Head", "Rows", "strip_rows", "strip_sum"]


class Head:
    """A function of the scores of a row, with its derivative in closed form.

    A subclass is stateless; an operator finds it by its import path. What it needs besides the scores comes with the
    view: ``tensors`` with one entry a row or a column, and ``options``.
    """

    log2: ClassVar[bool] = False
    """Whether scores come in units of log 2, for heads that use exp2, which is three times as fast as exp."""

    elementwise: ClassVar[bool] = False
    """Whether the value is a sum over columns, so that rows can come in blocks of columns that stay in the cache."""

    @staticmethod
    def rows(view: View, positive: Tensor) -> "Rows":
        """Values of the rows of a view and their derivatives; turns the scores into those by the scores.

        Args:
            view: Scores of some rows.
            positive: Score of the positive pair of each of these rows, in natural units, (b,).
        """
        raise NotImplementedError


class Rows(NamedTuple):
    """What a head gives for some rows; values and slopes of blocks of columns are added.

    Args:
        values: Values of the rows, (b,).
        positive: Derivatives by the positive scores, (b,).
        factor: Numbers that the scores, as the head leaves them, still have to be multiplied by to be derivatives,
            (b,); None for 1. That spares a pass over the scores.
    """

    values: Tensor
    positive: Tensor
    factor: Tensor | None = None


class _Task(NamedTuple):
    """What a sweep needs besides the tensors that carry gradients."""

    hidden: list[Tensor]
    tensors: list[Tensor]
    options: list[float]
    head: str
    block: list[int]


def _sweep(
    pairs: Pairs, weight: Tensor | None, task: _Task, gradients: bool, wanted: list[bool]
) -> tuple[Tensor, list[Tensor]]:
    """Values of the rows, and the derivatives of their weighted sum; weight None is 1."""
    head: type[Head] = resolve(task.head)
    n, m = pairs.query.shape[0], pairs.key.shape[0]
    height, width = min(task.block[0], n), min(task.block[1], m) if head.elementwise else m
    hidden = Hidden(*task.hidden)
    values = torch.zeros(n, dtype=pairs.wide, device=pairs.query.device)
    found = Gradients(pairs, wanted) if gradients else None
    buffer = torch.empty(height * width, dtype=pairs.query.dtype, device=pairs.query.device)
    spare = torch.empty(min(height * width, CACHED + width), dtype=pairs.wide, device=pairs.query.device)
    for rows in block_ranges(n, height):
        positives = pairs.positives(rows)
        slopes = torch.zeros_like(positives)
        share = torch.ones_like(positives) if weight is None else weight[rows].to(pairs.wide)
        for columns in block_ranges(m, width):
            scores = pairs.block(rows, columns, LOG2E if head.log2 else 1.0, buffer)
            shares = share.clone()
            for part, view in cached_views(scores, rows, columns, hidden, task.tensors, task.options, spare):
                done = head.rows(view, positives[part])
                values[view.rows] += done.values
                slopes[part] += done.positive
                if done.factor is not None:
                    shares[part] *= done.factor
            if found is not None:
                found.add(rows, columns, scores, shares)
        if found is not None:
            found.add_positives(rows, slopes * share)
    return values, [] if found is None else found.finish()


def _empty_gradients(pairs: Pairs, needed: bool) -> list[Tensor]:
    """Tensors of the shapes that a sweep gives, for tracing."""
    if not needed:
        return []
    shapes = (pairs.query.shape, pairs.key.shape, (), (), pairs.positive.shape)
    return [pairs.query.new_empty(shape, dtype=pairs.wide) for shape in shapes]


@torch.library.custom_op("trainkit::pair_strip_sum", mutates_args=())
def _sum_op(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    own: Tensor,
    weight: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    gradients: bool,
    wanted: list[bool],
) -> list[Tensor]:
    """The weighted sum of the values of the rows, and its derivatives."""
    pairs = Pairs(query, key, scale, bias, positive, own)
    task = _Task(hidden, tensors, options, head, block)
    values, found = _sweep(pairs, weight, task, gradients, wanted)
    return [(values.double() * weight).sum().to(pairs.wide), *found]


@_sum_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    own: Tensor,
    weight: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    gradients: bool,
    wanted: list[bool],
) -> list[Tensor]:
    pairs = Pairs(query, key, scale, bias, positive, own)
    return [query.new_empty((), dtype=pairs.wide), *_empty_gradients(pairs, gradients)]


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    # The derivatives are outputs too, and zeros for theirs would take as much memory again.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])
    ctx.dtypes = [t.dtype for t in inputs[:5]]
    ctx.rest = no_gradients(inputs[5:])


def _backward_sum(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    total = gradients[0]
    if total is None:
        return (*[None] * len(ctx.dtypes), *ctx.rest)
    like = [total.new_empty(0, dtype=dtype) for dtype in ctx.dtypes]
    return (*scaled_op(total, list(ctx.saved_tensors), like), *ctx.rest)


_sum_op.register_autograd(_backward_sum, setup_context=_save_sum)


@torch.library.custom_op("trainkit::pair_strip_rows", mutates_args=())
def _rows_op(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    own: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    wanted: list[bool],
) -> Tensor:
    """Values of the rows; the backward sweeps once more, with the incoming weights."""
    task = _Task(hidden, tensors, options, head, block)
    return _sweep(Pairs(query, key, scale, bias, positive, own), None, task, False, wanted)[0]


@_rows_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    own: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    wanted: list[bool],
) -> Tensor:
    return query.new_empty(query.shape[0], dtype=torch.promote_types(query.dtype, torch.float32))


@torch.library.custom_op("trainkit::pair_strip_rows_backward", mutates_args=())
def _rows_backward_op(
    weight: Tensor,
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    own: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    wanted: list[bool],
) -> list[Tensor]:
    """Derivatives of the weighted sum of the rows. It has no derivative of its own."""
    pairs = Pairs(query, key, scale, bias, positive, own)
    _, found = _sweep(pairs, weight, _Task(hidden, tensors, options, head, block), True, wanted)
    return [d.to(t.dtype) for d, t in zip(found, pairs[:5], strict=True)]


@_rows_backward_op.register_fake
def _(
    weight: Tensor,
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    own: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    wanted: list[bool],
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (query, key, scale, bias, positive)]


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, hidden, further, ctx.options, ctx.head, ctx.block, ctx.wanted = inputs
    ctx.counts = (len(hidden), len(further))
    ctx.rest = no_gradients(inputs[5:])
    ctx.save_for_backward(*tensors, *hidden, *further)


def _backward_rows(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    pairs, rest = list(ctx.saved_tensors[:6]), list(ctx.saved_tensors[6:])
    hidden, further = rest[: ctx.counts[0]], rest[ctx.counts[0] :]
    own = _rows_backward_op(gradient, *pairs, hidden, further, ctx.options, ctx.head, ctx.block, ctx.wanted)
    return (*own, *ctx.rest)


_rows_op.register_autograd(_backward_rows, setup_context=_save_rows)


def strip_sum(
    head: type[Head],
    pairs: Pairs,
    weight: Tensor,
    hidden: Hidden,
    *,
    tensors: Sequence[Tensor] = (),
    options: Sequence[float] = (),
    block: tuple[int, int] = (256, 1024),
) -> Tensor:
    r"""Sum over rows of ``weight`` times the head's value of the row, without the score matrix.

    .. math:: \sum_i w_i\, h(s_{i1}, \dots, s_{iM}; p_i), \qquad s_{ij} = a \langle q_i, k_j \rangle + b

    Three matrix products with gradients, one without. Differentiable once by all of ``pairs``; a second derivative
    raises.

    Args:
        head: The function of a row.
        pairs: Embeddings, scale a, bias b and positive scores p.
        weight: Weight of each row, (n,), without gradient.
        hidden: Pairs that are no candidates.
        tensors: Further tensors for the head, without gradient.
        options: Numbers for the head.
        block: Rows of a strip, and columns of a block for elementwise heads.
    """
    needed = torch.is_grad_enabled() and any(t.requires_grad for t in pairs[:5])
    rest = (hidden.tensors(), list(tensors), list(options), path_of(head), list(block))
    outputs = _sum_op(*pairs, weight.detach(), *rest, needed, wanted_of(pairs))
    total: Tensor = outputs[0]
    return total


def strip_rows(
    head: type[Head],
    pairs: Pairs,
    hidden: Hidden,
    *,
    tensors: Sequence[Tensor] = (),
    options: Sequence[float] = (),
    block: tuple[int, int] = (256, 1024),
) -> Tensor:
    """The head's value of each row, (n,), without the score matrix: one more matrix product than :func:`strip_sum`."""
    rest = (hidden.tensors(), list(tensors), list(options), path_of(head), list(block))
    rows: Tensor = _rows_op(*pairs, *rest, wanted_of(pairs))
    return rows
