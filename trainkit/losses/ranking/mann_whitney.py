"""The Mann-Whitney loss on pairs of embeddings."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainkit._core.checks import check_choice, check_number
from trainkit._core.pairs.base import Pairs
from trainkit._core.pairs.global_pairs import global_pair_sum
from trainkit._core.pairs.heads import SurrogateHead
from trainkit._core.pairs.strip import strip_rows, strip_sum
from trainkit._core.pairs.view import Hidden, block_ranges
from trainkit._core.reduction import check_reduction, safe_divide
from trainkit._core.score_pairs import pair_surrogate_sum
from trainkit._core.score_pairs.surrogates import SURROGATES
from trainkit._core.typing import Reduction
from trainkit.distributed import all_reduce_sum, reduce_over_ranks, share_of_ranks, total_over_ranks
from trainkit.losses.contrastive._common import (
    Block,
    Blocks,
    Matmul,
    PairLoss,
    blocks_for,
    check_options,
    check_pairs,
    embed,
    gather_shards,
    make_pairs,
    row_weights,
    scale_of,
)

__all__ = ["MannWhitneyLoss", "mann_whitney_loss"]

Pairing: TypeAlias = Literal["global", "per_query"]
Surrogate: TypeAlias = Literal["logistic", "hinge", "squared_hinge", "square"]

KINDS = ("logistic", "hinge", "squared_hinge", "square")
"""Surrogates by the number that operators know them by."""

AT_ONCE = 2**22
"""Pairs that rows of the global pairing are summed over at a time."""


def _per_query_rows(pairs: Pairs, hidden: Hidden, name: Surrogate, margin: float, blocks: Blocks | None) -> Tensor:
    """Sum over the negatives of each row, (n,)."""
    if blocks is not None:
        return strip_rows(SurrogateHead, pairs, hidden, options=(KINDS.index(name), margin), block=blocks[:2])
    gaps = pairs.scores() - pairs.positive.unsqueeze(1)
    shift = margin if SURROGATES[name].takes_margin else 0.0
    values = SURROGATES[name].value(gaps + shift)
    return values.masked_fill(hidden.mask(*values.shape), 0.0).sum(1)


def _global_sum(
    pairs: Pairs, weight: Tensor, hidden: Hidden, name: Surrogate, margin: float, blocks: Blocks | None
) -> Tensor:
    """Sum over all positives, (P,) in ``pairs``, and the negatives of the rows at hand."""
    if blocks is not None:
        size = (blocks.rows, blocks.columns if blocks.tiled else 512)
        return global_pair_sum(pairs, weight, hidden, kind=KINDS.index(name), margin=margin, block=size)
    scores = pairs.scores()
    visible = ~hidden.mask(*scores.shape)
    negative = torch.where(visible, scores, 0.0).flatten()
    return pair_surrogate_sum(
        pairs.positive,
        negative,
        surrogate=name,
        margin=margin,
        positive_weight=weight,
        negative_weight=visible.flatten().to(scores.dtype),
    )


def _global_rows(pairs: Pairs, hidden: Hidden, name: Surrogate, margin: float) -> Tensor:
    """Sum over the negatives of the rows at hand for each positive, (P,); blocks are computed again in the backward."""
    shift = margin if SURROGATES[name].takes_margin else 0.0
    n, m, count = pairs.query.shape[0], pairs.key.shape[0], pairs.positive.shape[0]

    def block_sum(query: Tensor, key: Tensor, scale: Tensor, positive: Tensor, rows: slice) -> Tensor:
        scores = (scale.to(query.dtype) * query[rows]) @ key.T
        part = Hidden(hidden.columns[rows], hidden.row_ids[rows], hidden.column_ids, hidden.exclude[rows])
        gaps = scores.to(pairs.wide).unsqueeze(0) - positive.view(-1, 1, 1)
        values = SURROGATES[name].value(gaps + shift)
        return values.masked_fill(part.mask(*scores.shape), 0.0).sum((1, 2))

    total = 0 * pairs.positive + 0 * (pairs.query.sum() + pairs.key.sum()).to(pairs.wide)
    for rows in block_ranges(n, max(AT_ONCE // max(m * count, 1), 1)):
        args = (pairs.query, pairs.key, pairs.scale, pairs.positive, rows)
        total = total + checkpoint(block_sum, *args, use_reentrant=False)
    return total


def _mann_whitney(
    owner: str,
    query: Tensor,
    key: Tensor,
    ids: Tensor | None,
    weight: Tensor | None,
    *,
    temperature: float | Tensor,
    pairing: Pairing,
    surrogate: Surrogate,
    margin: float,
    normalize: bool,
    block_size: Block,
    matmul: Matmul,
    reduction: Reduction,
    sync: bool,
    validate_args: bool,
) -> Tensor:
    check_pairs(owner, query, key, ids, weight, validate_args)
    with torch.autocast(device_type=query.device.type, enabled=False):
        q, k = embed(query, normalize, matmul), embed(key, normalize, matmul)
        (keys, *rest), start = gather_shards(*([k] if ids is None else [k, ids]), call=owner, sync=sync)
        own = torch.arange(len(q), device=q.device).add(start)
        hidden = Hidden.of(own.unsqueeze(1), ids, rest[0] if rest else None)
        blocks = blocks_for(block_size, len(q), len(keys))
        inside = own if blocks is not None and pairing == "per_query" else None
        pairs = make_pairs(q, k, keys, scale_of(temperature, q), own=inside)
        weights = row_weights(q, weight)
        counts = hidden.visible_counts(len(keys)).to(weights.dtype)
        if pairing == "per_query":
            weights = torch.where(counts > 0, weights, 0.0)
            share = weights / counts.clamp_min(1)
            if blocks is not None and reduction != "none":
                options = (KINDS.index(surrogate), margin)
                total = strip_sum(SurrogateHead, pairs, share, hidden, options=options, block=blocks[:2])
                return share_of_ranks(total, weights.sum(), reduction, call=owner, sync=sync)
            rows = _per_query_rows(pairs, hidden, surrogate, margin, blocks)
            return reduce_over_ranks(rows * share, weights, reduction, call=owner, sync=sync)
        # Every rank compares its own negatives with the positives of all.
        (positives, all_weights), first = gather_shards(pairs.positive, weights, call=f"{owner}, positives", sync=sync)
        against = pairs._replace(positive=positives)
        negatives = counts.sum()
        if sync:
            negatives = total_over_ranks(negatives, call=f"{owner}, negatives")
        if reduction == "none":
            sums = _global_rows(against, hidden, surrogate, margin)
            if sync:
                sums = all_reduce_sum(sums, call=f"{owner}, rows")
            return safe_divide(sums[first : first + len(q)], negatives) * weights
        total = _global_sum(against, all_weights, hidden, surrogate, margin, blocks)
        weights = torch.where(negatives > 0, weights, 0.0)
        return share_of_ranks(safe_divide(total, negatives), weights.sum(), reduction, call=owner, sync=sync)


def _check(owner: str, pairing: str, surrogate: str, margin: float) -> None:
    check_choice(owner, "pairing", pairing, ("global", "per_query"))
    check_choice(owner, "surrogate", surrogate, KINDS)
    check_number(owner, "margin", margin, minimum=0)


def mann_whitney_loss(
    query: Tensor,
    key: Tensor,
    *,
    ids: Tensor | None = None,
    weight: Tensor | None = None,
    temperature: float = 0.05,
    pairing: Pairing = "global",
    surrogate: Surrogate = "logistic",
    margin: float = 1.0,
    normalize: bool = True,
    block_size: int | tuple[int, int] | None = None,
    matmul: Matmul = "fp32",
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`MannWhitneyLoss`."""
    owner = "mann_whitney_loss"
    check_options(owner, temperature, normalize, block_size, matmul)
    check_reduction(owner, reduction)
    _check(owner, pairing, surrogate, margin)
    return _mann_whitney(
        owner,
        query,
        key,
        ids,
        weight,
        temperature=temperature,
        pairing=pairing,
        surrogate=surrogate,
        margin=margin,
        normalize=normalize,
        block_size=block_size,
        matmul=matmul,
        reduction=reduction,
        sync=False,
        validate_args=validate_args,
    )


class MannWhitneyLoss(PairLoss):
    r"""Smooth bound on how often a negative pair scores above a positive one.

    Use it to train two towers for ranking by a threshold that holds for all queries: with ``pairing="global"`` every
    positive is compared with the negatives of every query, which aligns scores across queries as the area under the
    ROC curve asks. ``pairing="per_query"`` compares within a query, as a softmax loss does.

    .. math::

        L = \frac{1}{|P|\,|N|} \sum_{p \in P} \sum_{n \in N} \phi\bigl((s_n - s_p) / \tau\bigr), \qquad
        \phi(x) = \log(1 + e^x)

    Args:
        temperature: Divisor of the scores, > 0; the initial one if it is learned.
        pairing: ``"global"``, all negatives of the batch; ``"per_query"``, the negatives of the positive's own row.
        surrogate: ``"logistic"``; or ``"hinge"`` max(0, m + x), ``"squared_hinge"`` or ``"square"`` (m + x)^2.
        margin: Margin m of the last three, >= 0.
        learnable: Learn the logarithm of 1 / temperature, the parameter ``log_scale``, capped at log 100.
        normalize: Scale every embedding to length one.
        block_size: How the score matrix is cut: None, whole up to 2^20 scores and in blocks beyond; a number of rows;
            or rows and columns.
        matmul: ``"fp32"``, or ``"input"`` to multiply in the dtype of the embeddings.
        reduction: ``"mean"`` over the positives by their weight, ``"sum"`` or ``"none"``: for each positive the mean
            over its negatives. ``"none"`` of the global pairing visits every pair of scores.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of the weights.

    Shape:
        - query: (N, D), floating
        - key: (N, D), row i belongs to row i of query
        - ids: (N,), int64; rows of equal id are no negatives of each other; optional
        - weight: (N,), >= 0, of the positives; optional
        - output: () or, for ``"none"``, (N,); float32, or float64 for float64 embeddings

    Example:
        >>> import torch
        >>> from trainkit.losses import MannWhitneyLoss
        >>> MannWhitneyLoss(temperature=0.5)(torch.eye(3), torch.eye(3))
        tensor(0.1269)

    Note:
        The logistic loss over log 2 bounds 1 - AUC from above; ties cost log 2. It does not change when a number is
        added to all scores. Per query, blocks need 3 products of N x N x D; globally 4, and a table of the sum over the
        positives whose error is below 1e-10 a pair. Neither holds an N x N matrix, and their second derivative raises.
        Without positives or negatives the value is 0 with a live graph. Under DDP keys and positive scores are
        gathered with their gradients: uneven and empty shards give the value and gradients of one process. Half
        precision and autocast: fp32 unless ``matmul="input"``. The temperature and the pairing are chosen here; the
        paper's text was out of reach, and the loss is defined from the abstract.

    References:
        Sheikholeslami et al., "Optimizing What Matters: AUC-Driven Learning for Robust Neural Retrieval", 2025.
        arXiv:2510.00137
    """

    def __init__(
        self,
        temperature: float = 0.05,
        pairing: Pairing = "global",
        surrogate: Surrogate = "logistic",
        margin: float = 1.0,
        learnable: bool = False,
        normalize: bool = True,
        block_size: int | tuple[int, int] | None = None,
        matmul: Matmul = "fp32",
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(temperature, learnable, normalize, block_size, matmul, reduction, sync, validate_args)
        _check("MannWhitneyLoss", pairing, surrogate, margin)
        self.pairing: Pairing = pairing
        self.surrogate: Surrogate = surrogate
        self.margin = margin

    def forward(self, query: Tensor, key: Tensor, *, ids: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        return _mann_whitney(
            "MannWhitneyLoss",
            query,
            key,
            ids,
            weight,
            temperature=self.current_scale(query),
            pairing=self.pairing,
            surrogate=self.surrogate,
            margin=self.margin,
            normalize=self.normalize,
            block_size=self.block_size,
            matmul=self.matmul,
            reduction=self.reduction,
            sync=self.sync,
            validate_args=self.validate_args,
        )
