"""Losses that are sums over rows of a function of the row, without the score matrix.

A strip is a few complete rows of the score matrix, or a few rows and columns for heads that allow it. The head turns
its scores in place into the derivatives of the row values, from which both gradients of the embeddings follow by a
product each: three matrix products in all, and no more memory than a strip and the gradients. Where the weights of the
rows are only known in the backward, the rows are computed first and the strips once more then.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from trainkit._core.pairs.view import Hidden, View, block_ranges, cached_ranges, resolve

__all__ = [
    "LOG2E",
    "Gradients",
    "Head",
    "Pairs",
    "Rows",
    "no_gradients",
    "scaled_op",
    "strip_rows",
    "strip_sum",
    "wanted_of",
]

LOG2E = math.log2(math.e)


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


class Pairs(NamedTuple):
    """Embeddings and what turns their products into scores.

    Args:
        query: (n, D); multiplied in its own dtype, accumulated in fp32 or fp64.
        key: (M, D), same dtype.
        scale: Scalar > 0.
        bias: Scalar.
        positive: Score of the positive pair of each row, (n,), in natural units.
    """

    query: Tensor
    key: Tensor
    scale: Tensor
    bias: Tensor
    positive: Tensor

    @property
    def wide(self) -> torch.dtype:
        """Dtype of sums."""
        return torch.promote_types(self.query.dtype, torch.float32)

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

    def finish(self) -> list[Tensor]:
        """Derivatives by query, key, scale, bias and positive."""
        scale = torch.zeros_like(self.bias)
        if self.of_scale:
            scale = torch.einsum("nd,nd->n", self.query, self.pairs.query.to(self.query.dtype)).double().sum()
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
    for rows in block_ranges(n, height):
        for columns in block_ranges(m, width):
            scores = pairs.block(rows, columns, LOG2E if head.log2 else 1.0, buffer)
            shares = torch.ones(scores.shape[0], dtype=pairs.wide, device=scores.device)
            if weight is not None:
                shares *= weight[rows]
            for part in cached_ranges(scores):
                at = slice(rows.start + part.start, rows.start + part.stop)
                view = View(scores[part], at, columns, hidden, task.tensors, task.options, buffer[:0])
                done = head.rows(view, pairs.positive[at])
                values[at] += done.values
                if found is not None:
                    found.positive[at] += done.positive * shares[part]
                if done.factor is not None:
                    shares[part] *= done.factor
            if found is not None:
                found.add(rows, columns, scores, shares)
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
    pairs = Pairs(query, key, scale, bias, positive)
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
    weight: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    gradients: bool,
    wanted: list[bool],
) -> list[Tensor]:
    pairs = Pairs(query, key, scale, bias, positive)
    return [query.new_empty((), dtype=pairs.wide), *_empty_gradients(pairs, gradients)]


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


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.dtypes = [t.dtype for t in inputs[:5]]
    ctx.rest = no_gradients(inputs[5:])


def _backward_sum(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    like = [gradients[0].new_empty(0, dtype=dtype) for dtype in ctx.dtypes]
    return (*scaled_op(gradients[0], list(ctx.saved_tensors), like), *ctx.rest)


_sum_op.register_autograd(_backward_sum, setup_context=_save_sum)


@torch.library.custom_op("trainkit::pair_strip_rows", mutates_args=())
def _rows_op(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    wanted: list[bool],
) -> Tensor:
    """Values of the rows; the backward sweeps once more, with the incoming weights."""
    task = _Task(hidden, tensors, options, head, block)
    return _sweep(Pairs(query, key, scale, bias, positive), None, task, False, wanted)[0]


@_rows_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    wanted: list[bool],
) -> Tensor:
    return torch.empty_like(positive, dtype=torch.promote_types(query.dtype, torch.float32))


@torch.library.custom_op("trainkit::pair_strip_rows_backward", mutates_args=())
def _rows_backward_op(
    weight: Tensor,
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    head: str,
    block: list[int],
    wanted: list[bool],
) -> list[Tensor]:
    """Derivatives of the weighted sum of the rows. It has no derivative of its own."""
    pairs = Pairs(query, key, scale, bias, positive)
    _, found = _sweep(pairs, weight, _Task(hidden, tensors, options, head, block), True, wanted)
    return [d.to(t.dtype) for d, t in zip(found, pairs, strict=True)]


@_rows_backward_op.register_fake
def _(
    weight: Tensor,
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    positive: Tensor,
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
    pairs, rest = list(ctx.saved_tensors[:5]), list(ctx.saved_tensors[5:])
    hidden, further = rest[: ctx.counts[0]], rest[ctx.counts[0] :]
    own = _rows_backward_op(gradient, *pairs, hidden, further, ctx.options, ctx.head, ctx.block, ctx.wanted)
    return (*own, *ctx.rest)


_rows_op.register_autograd(_backward_rows, setup_context=_save_rows)


def wanted_of(pairs: Pairs) -> list[bool]:
    """Whether derivatives by scale and bias are wanted: each takes a pass of its own."""
    return [pairs.scale.requires_grad, pairs.bias.requires_grad]


def _name(head: type[Head]) -> str:
    return f"{head.__module__}:{head.__qualname__}"


def strip_sum(
    head: type[Head],
    pairs: Pairs,
    weight: Tensor,
    hidden: Hidden,
    *,
    tensors: Sequence[Tensor] = (),
    options: Sequence[float] = (),
    block: tuple[int, int] = (256, 512),
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
    needed = torch.is_grad_enabled() and any(t.requires_grad for t in pairs)
    rest = (hidden.tensors(), list(tensors), list(options), _name(head), list(block))
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
    block: tuple[int, int] = (256, 512),
) -> Tensor:
    """The head's value of each row, (n,), without the score matrix: one more matrix product than :func:`strip_sum`."""
    rest = (hidden.tensors(), list(tensors), list(options), _name(head), list(block))
    rows: Tensor = _rows_op(*pairs, *rest, wanted_of(pairs))
    return rows
