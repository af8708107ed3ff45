"""Collectives whose backward is their adjoint, for shards of any size."""

import torch
import torch.distributed as dist
from torch import Tensor

from trainkit._core.checks import reject
from trainkit.distributed._ops import (
    all_reduce_max_op,
    all_reduce_sum_op,
    exchange_sizes_op,
    gather_rows_op,
    group_key,
    reduce_scatter_rows_op,
    total_op,
)
from trainkit.distributed.state import is_distributed

__all__ = [
    "all_reduce_max",
    "all_reduce_sum",
    "exchange_sizes",
    "gather_rows",
    "reduce_scatter_rows",
    "total_over_ranks",
]


def exchange_sizes(*tensors: Tensor, call: str = "exchange_sizes", group: dist.ProcessGroup | None = None) -> Tensor:
    """Number of rows of ``tensors`` on each rank.

    Args:
        tensors: Tensors with the same number of rows on this rank; other dimensions and dtypes agree on all ranks.
        call: Name of the caller; ranks that come from different callers all raise.
        group: Process group; default the world.

    Returns:
        (W,) int64 on the CPU; ``[rows]`` when no group of more than one rank is up.

    Raises:
        ValueError: If there is no tensor, or one has no rows dimension or another number of rows than the first.
        RuntimeError: On every rank, if the ranks' calls, trailing shapes or dtypes differ.
    """
    if not tensors:
        reject(call, "tensors", "hold at least one tensor", tensors)
    for tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != tensors[0].shape[0]:
            reject(call, "tensors", f"have the same number of rows ({tuple(tensors[0].shape)[:1]})", tensor)
    if not is_distributed(group):
        return torch.tensor([tensors[0].shape[0]], dtype=torch.int64)
    sizes: Tensor = exchange_sizes_op([t.detach() for t in tensors], call, group_key(group))
    return sizes


def gather_rows(
    *tensors: Tensor, call: str = "gather_rows", group: dist.ProcessGroup | None = None
) -> tuple[tuple[Tensor, ...], Tensor]:
    r"""Concatenate the rows of all ranks in rank order; shards may be uneven or empty.

    The backward sums each row's gradient over the ranks that used it and gives it back to the row's owner. With
    :math:`L_r = \frac{W}{N} \sum_{i \in r} \ell_i` on rank r, the gradients that DDP averages are then those of
    :math:`\frac{1}{N} \sum_i \ell_i` on one process. Every rank must take part in the backward.

    Args:
        tensors: Tensors with the same number of rows, of any dtype. Integer and boolean ones carry no gradient.
        call: Name of the caller; ranks that come from different callers all raise.
        group: Process group; default the world.

    Returns:
        The gathered tensors, and the number of rows of each rank, (W,) int64 on the CPU. When no group of more than
        one rank is up: the tensors themselves.

    Raises:
        ValueError: If the tensors differ in their number of rows.
        RuntimeError: On every rank, if the ranks' calls, trailing shapes or dtypes differ.
    """
    sizes = exchange_sizes(*tensors, call=call, group=group)
    if not is_distributed(group):
        return tensors, sizes
    key = group_key(group)
    gathered = [
        gather_rows_op(t.to(torch.uint8), sizes, key).bool() if t.dtype == torch.bool else gather_rows_op(t, sizes, key)
        for t in tensors
    ]
    return tuple(gathered), sizes


def reduce_scatter_rows(tensor: Tensor, sizes: Tensor, *, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum ``tensor`` over the ranks and keep the rows of this one; the backward gathers.

    Args:
        tensor: (N, ...) with a row for each row of each rank, rank-major.
        sizes: Rows of each rank as :func:`exchange_sizes` gives them, the same on every rank.
        group: Process group; default the world.

    Returns:
        (n, ...), n the rows of this rank.

    Raises:
        ValueError: If the rows of ``tensor`` are not those that ``sizes`` counts.
    """
    if not torch.compiler.is_compiling() and int(sizes.sum()) != tensor.shape[0]:
        reject("reduce_scatter_rows", "tensor", f"have {int(sizes.sum())} rows, the sum of sizes", tensor)
    if not is_distributed(group):
        return tensor
    own: Tensor = reduce_scatter_rows_op(tensor, sizes, int(sizes[dist.get_rank(group)]), group_key(group))
    return own


def all_reduce_sum(tensor: Tensor, *, call: str = "all_reduce_sum", group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum ``tensor`` over the ranks; the backward sums the gradients over the ranks.

    Args:
        tensor: Same shape and dtype on every rank; not changed.
        call: Name of the caller; ranks that come from different callers all raise.
        group: Process group; default the world.

    Returns:
        The sum, identical on every rank; ``tensor`` itself when no group of more than one rank is up.

    Raises:
        RuntimeError: On every rank, if the ranks' calls, shapes or dtypes differ.
    """
    return all_reduce_sum_op(tensor, call, group_key(group)) if is_distributed(group) else tensor


def all_reduce_max(tensor: Tensor, *, call: str = "all_reduce_max", group: dist.ProcessGroup | None = None) -> Tensor:
    """Largest entries over the ranks, without gradient.

    Args:
        tensor: Same shape and dtype on every rank; not changed.
        call: Name of the caller; ranks that come from different callers all raise.
        group: Process group; default the world.

    Returns:
        The maximum, identical on every rank.

    Raises:
        RuntimeError: On every rank, if the ranks' calls, shapes or dtypes differ.
    """
    own = tensor.detach()
    return all_reduce_max_op(own, call, group_key(group)) if is_distributed(group) else own


def total_over_ranks(value: Tensor, *, call: str, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum one number over the ranks, without gradient, in fp64 and in rank order.

    Args:
        value: A scalar tensor.
        call: Name of the caller; ranks that come from different callers all raise.
        group: Process group; default the world.

    Returns:
        The sum in the dtype of ``value``, identical on every rank.

    Raises:
        RuntimeError: On every rank, if the ranks' calls differ.
    """
    return total_op(value.detach(), call, group_key(group)) if is_distributed(group) else value.detach()
