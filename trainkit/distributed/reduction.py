"""Reduction of per-target losses that DDP's averaging turns into the reduction over the whole batch."""

from torch import Tensor

from trainkit._core.reduction import reduce, safe_divide
from trainkit._core.typing import Reduction
from trainkit.distributed.collectives import total_over_ranks
from trainkit.distributed.state import world_size

__all__ = ["reduce_over_ranks"]


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
    ranks = world_size() if sync else 1
    if ranks == 1 or reduction == "none":
        return reduce(rows, weights, reduction)
    if reduction == "sum":
        return rows.sum() * ranks
    return safe_divide(rows.sum() * ranks, total_over_ranks(weights.sum(), call=call))
