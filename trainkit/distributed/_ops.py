"""The collectives as opaque operators, so that they trace into one graph under ``torch.compile``.

Each exchange begins with a header of fixed size: a checksum of the call and of what may not differ between ranks, and
the number of rows. Ranks that came here from different calls, or with tensors that do not fit, therefore all raise the
same error instead of hanging or mixing up each other's data.
"""

from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = [
    "all_reduce_sum_op",
    "exchange_sizes_op",
    "gather_rows_op",
    "group_key",
    "reduce_scatter_rows_op",
    "total_op",
]

_GROUPS: dict[str, dist.ProcessGroup] = {}


def group_key(group: dist.ProcessGroup | None) -> str:
    """Name under which the operators find ``group``; operators take no process groups."""
    if group is None:
        return ""
    _GROUPS[group.group_name] = group
    return group.group_name


def _group(key: str) -> dist.ProcessGroup | None:
    return _GROUPS[key] if key else None


def _all_gather(x: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, x, group=group)
    return pieces


def _agree(call: str, described: str, word: int, like: Tensor, group: dist.ProcessGroup | None) -> list[int]:
    """Exchange one 64-bit word a rank, and raise on every rank if they came from different calls."""
    header = torch.tensor([crc32(f"{call}|{described}".encode()), word], dtype=torch.int64, device=like.device)
    table = torch.stack(_all_gather(header, group)).tolist()
    if any(checksum != table[0][0] for checksum, _ in table):
        came: list[Any] = [None] * len(table)
        dist.all_gather_object(came, f"{call} with {described}", group=group)
        listed = "; ".join(f"rank {r}: {text}" for r, text in enumerate(came))
        raise RuntimeError(f"trainkit.distributed: the ranks must make the same call on tensors that fit, got {listed}")
    return [word for _, word in table]


@torch.library.custom_op("trainkit::exchange_sizes", mutates_args=())
def exchange_sizes_op(tensors: list[Tensor], call: str, group: str) -> Tensor:
    """Number of rows on each rank, (W,) int64 on the CPU; trailing shapes and dtypes must agree."""
    described = ", ".join(f"(*, {', '.join(map(str, t.shape[1:]))}) {t.dtype}" for t in tensors)
    rows = tensors[0].shape[0]
    return torch.tensor(_agree(call, described, rows, tensors[0], _group(group)), dtype=torch.int64)


@exchange_sizes_op.register_fake
def _(tensors: list[Tensor], call: str, group: str) -> Tensor:
    return torch.empty(dist.get_world_size(_group(group)), dtype=torch.int64)


@torch.library.custom_op("trainkit::gather_rows", mutates_args=())
def gather_rows_op(x: Tensor, sizes: Tensor, group: str) -> Tensor:
    """Rows of all ranks, rank-major. Shards are padded to the largest, since gloo gathers equal shapes only."""
    counts = sizes.tolist()
    longest = max(counts)
    own = x.contiguous()
    if own.shape[0] < longest:
        own = torch.cat([own, own.new_zeros(longest - own.shape[0], *own.shape[1:])])
    pieces = _all_gather(own, _group(group))
    return torch.cat([piece[:n] for piece, n in zip(pieces, counts, strict=True)])


@gather_rows_op.register_fake
def _(x: Tensor, sizes: Tensor, group: str) -> Tensor:
    # Imported here: it takes longer to load than all of trainkit.distributed, and only a tracer calls this.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    # The rows of this rank are among the gathered ones. Without a lower bound, operators that treat an empty tensor
    # apart, as logsumexp does, could not be traced.
    least = next(n for n in (2, 1, 0) if statically_known_true(x.shape[0] >= n))
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(min=least), *x.shape[1:])


@torch.library.custom_op("trainkit::reduce_scatter_rows", mutates_args=())
def reduce_scatter_rows_op(x: Tensor, sizes: Tensor, rows: int, group: str) -> Tensor:
    """Sum over ranks of the rows that belong to this rank: the adjoint of the gather."""
    process_group = _group(group)
    counts = sizes.tolist()
    start = sum(counts[: dist.get_rank(process_group)])
    if dist.get_backend(process_group) == "gloo":
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=process_group)
        return total[start : start + rows].clone()
    longest = max(counts)
    pieces = [torch.cat([p, p.new_zeros(longest - p.shape[0], *p.shape[1:])]) for p in x.split(counts)]
    own = torch.empty_like(pieces[0])
    dist.reduce_scatter(own, pieces, group=process_group)
    return own[:rows].clone()


@reduce_scatter_rows_op.register_fake
def _(x: Tensor, sizes: Tensor, rows: int, group: str) -> Tensor:
    return x.new_empty(rows, *x.shape[1:])


@torch.library.custom_op("trainkit::all_reduce_sum", mutates_args=())
def all_reduce_sum_op(x: Tensor, call: str, group: str) -> Tensor:
    """Sum over ranks of tensors of one shape."""
    process_group = _group(group)
    _agree(call, f"{tuple(x.shape)} {x.dtype}", 0, x, process_group)
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=process_group)
    return total


@all_reduce_sum_op.register_fake
def _(x: Tensor, call: str, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("trainkit::all_reduce_max", mutates_args=())
def all_reduce_max_op(x: Tensor, call: str, group: str) -> Tensor:
    """Largest entry over ranks of tensors of one shape."""
    process_group = _group(group)
    _agree(call, f"{tuple(x.shape)} {x.dtype}", 0, x, process_group)
    peak = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=process_group)
    return peak


@all_reduce_max_op.register_fake
def _(x: Tensor, call: str, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("trainkit::total", mutates_args=())
def total_op(x: Tensor, call: str, group: str) -> Tensor:
    """Sum over ranks of one number, in fp64 and in rank order: the header itself carries the value."""
    word = int(x.detach().double().cpu().view(torch.int64).item())
    words = _agree(call, "one number", word, x, _group(group))
    return torch.tensor(words, dtype=torch.int64).view(torch.float64).sum().to(x)


@total_op.register_fake
def _(x: Tensor, call: str, group: str) -> Tensor:
    return torch.empty_like(x)


def _save_gather(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
    x, sizes, ctx.group = inputs
    ctx.rows = x.shape[0]
    ctx.save_for_backward(sizes)


def _backward_gather(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return reduce_scatter_rows_op(grad, ctx.saved_tensors[0], ctx.rows, ctx.group), None, None


def _save_reduce_scatter(ctx: Any, inputs: tuple[Tensor, Tensor, int, str], output: Tensor) -> None:
    _, sizes, _, ctx.group = inputs
    ctx.save_for_backward(sizes)


def _backward_reduce_scatter(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return gather_rows_op(grad, ctx.saved_tensors[0], ctx.group), None, None, None


def _save_all_reduce(ctx: Any, inputs: tuple[Tensor, str, str], output: Tensor) -> None:
    _, ctx.call, ctx.group = inputs


def _backward_all_reduce(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return all_reduce_sum_op(grad, f"backward of {ctx.call}", ctx.group), None, None


gather_rows_op.register_autograd(_backward_gather, setup_context=_save_gather)
reduce_scatter_rows_op.register_autograd(_backward_reduce_scatter, setup_context=_save_reduce_scatter)
all_reduce_sum_op.register_autograd(_backward_all_reduce, setup_context=_save_all_reduce)
