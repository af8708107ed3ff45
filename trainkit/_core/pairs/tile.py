"""Statistics of the rows and columns of a score matrix that never exists: tiles, computed again in the backward.

A loss that needs more than one row at a time (two-sided, class-wise, uniformity) is ordinary autograd on statistics of
rows, columns or classes. The operator sweeps once forward to make them and once backward, where each tile of scores is
computed again and turned into derivatives: four matrix products in all.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from trainkit._core.pairs.base import LOG2E, Gradients, Pairs, no_gradients, wanted_of
from trainkit._core.pairs.view import CACHED, Hidden, View, block_ranges, cached_views, path_of, resolve

__all__ = ["Program", "Softmax", "tile_statistics"]


class Program:
    """Statistics of a score matrix, made tile by tile. A subclass is stateless and found by its import path."""

    log2: ClassVar[bool] = False
    """Whether scores come in units of log 2."""

    @staticmethod
    def shapes(n: int, m: int) -> list[int]:
        """Number of entries of each statistic."""
        raise NotImplementedError

    @staticmethod
    def begin(statistics: list[Tensor]) -> list[Tensor]:
        """Accumulators, from statistics that are to be filled."""
        raise NotImplementedError

    @staticmethod
    def forward(view: View, state: list[Tensor]) -> None:
        """Add a tile to the accumulators, in place; the scores may be overwritten."""
        raise NotImplementedError

    @staticmethod
    def finish(state: list[Tensor]) -> list[Tensor]:
        """Statistics from the accumulators."""
        raise NotImplementedError

    @staticmethod
    def backward(view: View, statistics: list[Tensor], gradients: list[Tensor]) -> None:
        """Turn the scores of a tile into the derivatives by them, from those by the statistics."""
        raise NotImplementedError


def _online(scores: Tensor, peak: Tensor, mass: Tensor, dim: int, out: Tensor) -> None:
    """Take the scores of a tile into a running log-sum-exp along ``dim``, kept as peak and mass in units of log 2."""
    top = torch.maximum(peak, scores.amax(dim))
    # Where all is hidden so far, the peak is minus infinity and any finite number does as the reference.
    reference = torch.where(top.isneginf(), 0.0, top)
    mass.mul_((peak - reference).exp2_())
    mass.add_(torch.sub(scores, reference.unsqueeze(dim), out=out).exp2_().sum(dim))
    peak.copy_(top)


def _offset(statistic: Tensor, gradient: Tensor) -> Tensor:
    """What to take from scores so that exp2 gives the softmax times ``gradient`` >= 0, in units of log 2."""
    # A row or column without visible scores has the statistic minus infinity and no derivative.
    return torch.where(statistic.isneginf(), math.inf, statistic * LOG2E - gradient.log2())


class Softmax(Program):
    """Log-sum-exp of the visible scores of each row and column, and sums of the scores of rows, in natural units.

    ``tensors``: ids of rows and of columns, or none; then statistics 2 and 4 are zero. ``options``: whether columns
    are wanted, and whether sums.

    Statistics: 0 log-sum-exp of rows (n,), 1 of columns (M,), 2 sums of a row's scores with columns of its id (n,),
    3 sums of all visible scores of a row (n,), 4 and 5 those sums for columns (M,); 6 to 9 how many scores the sums 2
    to 5 hold.
    """

    log2 = True

    @staticmethod
    def shapes(n: int, m: int) -> list[int]:
        return [n, m, n, n, m, m, n, n, m, m]

    @staticmethod
    def begin(statistics: list[Tensor]) -> list[Tensor]:
        rows, columns, *sums = statistics
        peaks = [torch.full_like(rows, -math.inf), torch.full_like(columns, -math.inf)]
        return [*peaks, *(torch.zeros_like(t) for t in (rows, columns)), *(torch.zeros_like(s) for s in sums)]

    @staticmethod
    def forward(view: View, state: list[Tensor]) -> None:
        with_columns, with_sums = view.options
        row_peak, column_peak, row_mass, column_mass, *sums = state
        if with_sums:
            Softmax._add_sums(view, sums)
        view.hide()
        rows, columns = view.rows, view.columns
        _online(view.scores, row_peak[rows], row_mass[rows], 1, view.spare)
        if with_columns:
            _online(view.scores, column_peak[columns], column_mass[columns], 0, view.scores)

    @staticmethod
    def _add_sums(view: View, sums: list[Tensor]) -> None:
        visible = torch.ones_like(view.scores)
        view.hidden.fill(visible, view.rows, view.columns, 0.0)
        masks = [Softmax._same(view) * visible if view.tensors else torch.zeros_like(visible), visible]
        for i, mask in enumerate(masks):
            # Hidden scores count nothing, not even as a product of zero with infinity.
            scores = torch.where(mask > 0, view.scores, 0.0) / LOG2E
            for offset, dim, at in ((0, 1, view.rows), (2, 0, view.columns)):
                sums[i + offset][at] += scores.sum(dim)
                sums[i + offset + 4][at] += mask.sum(dim)

    @staticmethod
    def _same(view: View) -> Tensor:
        row_ids, column_ids = view.tensors
        return row_ids[view.rows].unsqueeze(1) == column_ids[view.columns]

    @staticmethod
    def finish(state: list[Tensor]) -> list[Tensor]:
        row_peak, column_peak, row_mass, column_mass, *sums = state
        masses = ((row_peak, row_mass), (column_peak, column_mass))
        return [*((peak + mass.log2()) / LOG2E for peak, mass in masses), *sums]

    @staticmethod
    def backward(view: View, statistics: list[Tensor], gradients: list[Tensor]) -> None:
        with_columns, with_sums = view.options
        scores, rows, columns = view.scores, view.rows, view.columns
        view.hide()
        row, column = gradients[0][rows], gradients[1][columns]
        offset = _offset(statistics[0][rows], row.abs()).unsqueeze(1)
        slopes = torch.sub(scores, offset, out=view.spare).exp2_() if with_columns else scores.sub_(offset).exp2_()
        if bool((row < 0).any()):
            slopes.mul_(row.sign().unsqueeze(1))
        if with_columns:
            scores.sub_(_offset(statistics[1][columns], column.abs())).exp2_()
            if bool((column < 0).any()):
                scores.mul_(column.sign())
            scores.add_(slopes)
        if with_sums:
            Softmax._add_slopes(view, gradients)

    @staticmethod
    def _add_slopes(view: View, gradients: list[Tensor]) -> None:
        _, _, row_same, row_all, column_same, column_all, *_ = gradients
        rows, columns = view.rows, view.columns
        extra = row_all[rows].unsqueeze(1) + column_all[columns]
        if view.tensors:
            extra = extra + (row_same[rows].unsqueeze(1) + column_same[columns]) * Softmax._same(view)
        view.hidden.fill(extra, rows, columns, 0.0)
        view.scores.add_(extra)


def _run_forward(
    pairs: Pairs, hidden: Hidden, tensors: list[Tensor], options: list[float], name: str, block: list[int]
) -> list[Tensor]:
    program: type[Program] = resolve(name)
    n, m = pairs.query.shape[0], pairs.key.shape[0]
    height, width = min(block[0], n), min(block[1], m)
    device = pairs.query.device
    state = program.begin([torch.zeros(size, dtype=pairs.wide, device=device) for size in program.shapes(n, m)])
    buffer = torch.empty(height * width, dtype=pairs.query.dtype, device=device)
    spare = torch.empty(min(height * width, CACHED + width), dtype=pairs.wide, device=device)
    for rows in block_ranges(n, height):
        for columns in block_ranges(m, width):
            scores = pairs.block(rows, columns, LOG2E if program.log2 else 1.0, buffer)
            for _, view in cached_views(scores, rows, columns, hidden, tensors, options, spare):
                program.forward(view, state)
    positives = [pairs.positives(rows) for rows in block_ranges(n, height)] if pairs.own.numel() else []
    return [*program.finish(state), torch.cat([pairs.query.new_empty(0, dtype=pairs.wide), *positives])]


@torch.library.custom_op("trainkit::pair_tile", mutates_args=())
def _tile_op(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    own: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    program: str,
    block: list[int],
    wanted: list[bool],
) -> list[Tensor]:
    """Statistics of the score matrix."""
    pairs = Pairs(query, key, scale, bias, query.new_empty(0), own)
    return _run_forward(pairs, Hidden(*hidden), tensors, options, program, block)


@_tile_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    own: Tensor,
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    program: str,
    block: list[int],
    wanted: list[bool],
) -> list[Tensor]:
    wide = torch.promote_types(query.dtype, torch.float32)
    found: type[Program] = resolve(program)
    sizes = [*found.shapes(query.shape[0], key.shape[0]), own.shape[0]]
    return [query.new_empty(size, dtype=wide) for size in sizes]


@torch.library.custom_op("trainkit::pair_tile_backward", mutates_args=())
def _tile_backward_op(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    own: Tensor,
    statistics: list[Tensor],
    gradients: list[Tensor],
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    program: str,
    block: list[int],
    wanted: list[bool],
) -> list[Tensor]:
    """Derivatives by query, key, scale and bias. It has no derivative of its own."""
    pairs = Pairs(query, key, scale, bias, query.new_empty(0), own)
    found = Gradients(pairs, wanted)
    function: type[Program] = resolve(program)
    n, m = query.shape[0], key.shape[0]
    height, width = min(block[0], n), min(block[1], m)
    buffer = torch.empty(height * width, dtype=query.dtype, device=query.device)
    spare = torch.empty(min(height * width, CACHED + width), dtype=pairs.wide, device=query.device)
    mask = Hidden(*hidden)
    for rows in block_ranges(n, height):
        for columns in block_ranges(m, width):
            scores = pairs.block(rows, columns, LOG2E if function.log2 else 1.0, buffer)
            for _, view in cached_views(scores, rows, columns, mask, tensors, options, spare):
                function.backward(view, statistics, gradients)
            found.add(rows, columns, scores, None)
        if own.numel():
            found.add_positives(rows, gradients[-1][rows])
    return [d.to(t.dtype) for d, t in zip(found.finish()[:4], (query, key, scale, bias), strict=True)]


@_tile_backward_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    scale: Tensor,
    bias: Tensor,
    own: Tensor,
    statistics: list[Tensor],
    gradients: list[Tensor],
    hidden: list[Tensor],
    tensors: list[Tensor],
    options: list[float],
    program: str,
    block: list[int],
    wanted: list[bool],
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (query, key, scale, bias)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)
    *pairs, hidden, tensors, ctx.options, ctx.program, ctx.block, ctx.wanted = inputs
    ctx.counts = (len(output), len(hidden))
    ctx.rest = no_gradients(inputs[4:])
    ctx.save_for_backward(*pairs, *output, *hidden, *tensors)


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    pairs, rest = ctx.saved_tensors[:5], list(ctx.saved_tensors[5:])
    outputs, hidden = ctx.counts
    # A statistic that the loss does not use has no derivative.
    gradients = [torch.zeros_like(s) if g is None else g for s, g in zip(rest, gradients, strict=False)]
    statistics, masks, tensors = rest[:outputs], rest[outputs : outputs + hidden], rest[outputs + hidden :]
    own = _tile_backward_op(
        *pairs, statistics, gradients, masks, tensors, ctx.options, ctx.program, ctx.block, ctx.wanted
    )
    return (*own, *ctx.rest)


_tile_op.register_autograd(_backward, setup_context=_save)


def tile_statistics(
    program: type[Program],
    pairs: Pairs,
    hidden: Hidden,
    *,
    tensors: Sequence[Tensor] = (),
    options: Sequence[float] = (),
    block: tuple[int, int] = (256, 2**31),
) -> list[Tensor]:
    """Statistics of the score matrix of ``pairs``, and last the scores of its own positives; differentiable once.

    Args:
        program: Which statistics.
        pairs: Embeddings, scale and bias.
        hidden: Pairs that don't count.
        tensors: Further tensors for the program, without gradient.
        options: Numbers for the program.
        block: Rows and columns of a tile.
    """
    rest = (hidden.tensors(), list(tensors), list(options), path_of(program), list(block))
    found: list[Tensor] = _tile_op(*pairs[:4], pairs.own, *rest, wanted_of(pairs))
    return found
