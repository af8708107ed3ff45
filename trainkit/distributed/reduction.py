"""Reduction of per-target losses that DDP's averaging turns into the reduction over the whole batch."""

from torch import Tensor

from trainkit._core.reduction import safe_divide
from trainkit._core.typing import Reduction
from trainkit.distributed.collectives import total_over_ranks
from trainkit.distributed.state import world_size

__all__ = ["reduce_over_ranks", "share_of_ranks"]


def reduce_over_ranks(rows: Tensor, weights: Tensor, reduction: Reduction, *, call: str, sync: bool = True) -> Tensor:
    r"""Reduce weighted rows so that the mean over ranks of the results is the reduction over all rows.

    With D the sum of all ranks' weights, rank r returns :math:`\frac{W}{D} \sum_{i \in r} w_i \ell_i` for ``"mean"``,
    :math:`W \sum_{i \in r} w_i \ell_i` for ``"sum"`` and its own rows for ``"none"``. The average that DDP takes of the
    gradients is then that of one process, for shards of any size.

    Args:
        rows: Losses, each already multiplied by its weight.
        weights: Weights of the rows, same shape.
        reduction: How to reduce.
        call: Name of the caller, for the agreement between ranks.
        sync: False reduces the rows of this rank alone.

    Returns:
        The reduced loss; a zero with a live graph where no row counts.
    """
    if reduction == "none":
        return rows
    return share_of_ranks(rows.sum(), weights.sum(), reduction, call=call, sync=sync)


def share_of_ranks(total: Tensor, count: Tensor, reduction: Reduction, *, call: str, sync: bool = True) -> Tensor:
    """What this rank returns of a ``"mean"`` or ``"sum"`` over all rows, see :func:`reduce_over_ranks`.

    Args:
        total: Weighted sum of the losses of this rank.
        count: Sum of the weights of this rank.
        reduction: ``"mean"`` or ``"sum"``.
        call: Name of the caller, for the agreement between ranks.
        sync: False reduces the rows of this rank alone.
    """
    ranks = world_size() if sync else 1
    if reduction == "sum":
        return total * ranks
    if ranks > 1:
        count = total_over_ranks(count, call=call)
    return safe_divide(total * ranks, count)
