"""InfoNCE: cross-entropy of picking the own key among the keys of the batch."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_flag, check_floating, check_number, check_same_shape, reject
from trainkit._core.pairs.view import Hidden
from trainkit._core.reduction import check_reduction
from trainkit._core.typing import Reduction
from trainkit.distributed import is_distributed
from trainkit.losses.contrastive._common import (
    Block,
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
from trainkit.losses.contrastive._softmax import SoftmaxTask, softmax_loss

__all__ = ["InfoNCELoss", "info_nce_loss"]

Candidates: TypeAlias = Literal["in_batch", "explicit", "both"]
SameId: TypeAlias = Literal["positive", "exclude"]


def _check(owner: str, candidates: str, label_smoothing: float, same_id: str, symmetric: bool) -> None:
    check_choice(owner, "candidates", candidates, ("in_batch", "explicit", "both"))
    check_number(owner, "label_smoothing", label_smoothing, minimum=0, maximum=1)
    check_choice(owner, "same_id", same_id, ("positive", "exclude"))
    check_flag(owner, symmetric=symmetric)
    if symmetric and candidates != "in_batch":
        reject(
            owner,
            "candidates",
            "be 'in_batch' for symmetric=True, since negatives have no row of their own",
            candidates,
        )


def _check_negatives(owner: str, query: Tensor, negatives: Tensor | None, candidates: str) -> None:
    if (negatives is None) != (candidates == "in_batch"):
        rule = "be None for candidates='in_batch'" if candidates == "in_batch" else f"be given for {candidates!r}"
        reject(owner, "negatives", rule, negatives)
    if negatives is None:
        return
    check_floating(owner, negatives=negatives)
    shared, own = negatives.dim() == 2, negatives.dim() == 3 and negatives.shape[0] == query.shape[0]
    if not (shared or own) or negatives.shape[-1] != query.shape[1]:
        reject(
            owner, "negatives", f"have shape (K, {query.shape[1]}) or {(len(query), 'K', query.shape[1])}", negatives
        )
    if own and candidates == "explicit":
        reject(owner, "candidates", "be 'both' where each row has negatives of its own", candidates)


def _info_nce(
    owner: str,
    query: Tensor,
    key: Tensor,
    negatives: Tensor | None,
    ids: Tensor | None,
    exclude: Tensor | None,
    weight: Tensor | None,
    *,
    temperature: float | Tensor,
    normalize: bool,
    symmetric: bool,
    candidates: Candidates,
    label_smoothing: float,
    same_id: SameId,
    gather_negatives: bool,
    block_size: Block,
    matmul: Matmul,
    reduction: Reduction,
    sync: bool,
    validate_args: bool,
) -> Tensor:
    check_pairs(owner, query, key, ids, weight, validate_args)
    _check_negatives(owner, query, negatives, candidates)
    with torch.autocast(device_type=query.device.type, enabled=False):
        q, k = embed(query, normalize, matmul), embed(key, normalize, matmul)
        gathered = [k] if ids is None else [k, ids]
        (keys, *rest), start = gather_shards(*gathered, call=owner, sync=sync)
        columns, column_ids = keys, rest[0] if rest else None
        if negatives is not None:
            extra = embed(negatives.reshape(-1, negatives.shape[-1]), normalize, matmul).to(k.dtype)
            (extra,), _ = gather_shards(extra, call=f"{owner}, negatives", sync=sync and gather_negatives)
            columns = extra if candidates == "explicit" else torch.cat([keys, extra])
            # Negatives have ids that no row has.
            none = torch.full((len(extra),), torch.iinfo(torch.int64).min, device=extra.device)
            column_ids = (
                None if column_ids is None else none if candidates == "explicit" else torch.cat([column_ids, none])
            )
        check_same_shape(owner, "rows of query and candidates", (len(q), len(columns)), exclude=exclude)
        own = torch.arange(len(q), device=q.device).add(start).unsqueeze(1)
        as_positives = same_id == "positive"
        hidden = Hidden.of(
            torch.full_like(own, -1) if candidates == "explicit" else own,
            None if as_positives else ids,
            None if as_positives or ids is None else column_ids,
            _excluded(exclude, ids, column_ids) if as_positives else exclude,
        )
        blocks = blocks_for(block_size, len(q), len(columns))
        plain = ids is None and exclude is None and candidates != "explicit" and not label_smoothing
        # Scores of positives apart from the matrix, where neither an operator nor cross-entropy makes them.
        merged = symmetric and sync and is_distributed()
        made = blocks is not None or (plain and not merged)
        inside = own.squeeze(1) if made and candidates != "explicit" else None
        task = SoftmaxTask(
            make_pairs(q, k, columns, scale_of(temperature, q), own=inside),
            hidden,
            [ids, column_ids] if as_positives and ids is not None and column_ids is not None else [],
            label_smoothing,
            blocks,
            own.squeeze(1) if plain else None,
        )
        weights = row_weights(q, weight)
        return softmax_loss(task, weights, reduction, symmetric=symmetric, start=start, call=owner, sync=sync)


def _excluded(exclude: Tensor | None, ids: Tensor | None, column_ids: Tensor | None) -> Tensor | None:
    """Pairs to hide where columns of the row's id are positives, which stay."""
    if exclude is None or ids is None or column_ids is None:
        return exclude
    return exclude & (ids.unsqueeze(1) != column_ids)


def info_nce_loss(
    query: Tensor,
    key: Tensor,
    *,
    negatives: Tensor | None = None,
    ids: Tensor | None = None,
    exclude: Tensor | None = None,
    weight: Tensor | None = None,
    temperature: float = 0.07,
    normalize: bool = True,
    symmetric: bool = False,
    candidates: Candidates = "in_batch",
    label_smoothing: float = 0.0,
    same_id: SameId = "positive",
    block_size: int | tuple[int, int] | None = None,
    matmul: Matmul = "fp32",
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`InfoNCELoss`."""
    owner = "info_nce_loss"
    check_options(owner, temperature, normalize, block_size, matmul)
    check_reduction(owner, reduction)
    _check(owner, candidates, label_smoothing, same_id, symmetric)
    return _info_nce(
        owner,
        query,
        key,
        negatives,
        ids,
        exclude,
        weight,
        temperature=temperature,
        normalize=normalize,
        symmetric=symmetric,
        candidates=candidates,
        label_smoothing=label_smoothing,
        same_id=same_id,
        gather_negatives=False,
        block_size=block_size,
        matmul=matmul,
        reduction=reduction,
        sync=False,
        validate_args=validate_args,
    )


class InfoNCELoss(PairLoss):
    r"""Cross-entropy of picking the own key among all keys of the batch.

    Use it to train two towers (or one, twice) so that matching rows lie close. Every other key of the batch, on all
    ranks, is a negative; explicit negatives can join or replace them. For the average of both directions see
    :class:`ClipLoss`.

    .. math::

        \ell_i = \log \sum_{j \in C_i} e^{s_{ij}} - \frac{1}{|P_i|} \sum_{j \in P_i} s_{ij}, \qquad
        s_{ij} = \frac{\langle q_i, k_j \rangle}{\tau}

    with P the own key and, given ``ids``, the keys of the same id; C all candidates, positives included.

    Args:
        temperature: Divisor of the scores, > 0 (paper: tau); the initial one if it is learned.
        learnable: Learn the logarithm of 1 / temperature, the parameter ``log_scale``, capped at log 100.
        normalize: Scale every embedding to length one.
        symmetric: Average with the loss of picking the own query among the queries.
        candidates: ``"in_batch"``, the keys; ``"explicit"``, the own key and ``negatives``; ``"both"``.
        label_smoothing: Share of the target that is spread evenly over the candidates, in [0, 1].
        same_id: What keys with the id of the row are: ``"positive"``, or ``"exclude"`` for no candidates.
        gather_negatives: Whether ``negatives`` of all ranks are candidates. Off where every rank passes the same, as
            from a MemoryQueue.
        block_size: How the score matrix is cut: None, whole up to 2^20 pairs and in strips of 256 rows beyond; a
            number of rows; or rows and columns.
        matmul: ``"fp32"``, or ``"input"`` to multiply in the dtype of the embeddings: faster in bf16, the value is then
            good to 1e-3 and gradients to 2e-2.
        reduction: ``"mean"`` over the rows by their weight, ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of the weights.

    Shape:
        - query: (N, D), floating
        - key: (N, D), row i belongs to row i of query
        - negatives: (K, D) for all rows or, with ``"both"``, (N, K, D), each a candidate of every row; optional
        - ids: (N,), int64, optional
        - exclude: (N, M), True for pairs that are no candidates, M the number of columns: keys of all ranks, then
          negatives; the positives stay; optional
        - weight: (N,), >= 0, optional
        - output: () or, for ``"none"``, (N,); float32, or float64 for float64 embeddings

    Example:
        >>> import torch
        >>> from trainkit.losses import InfoNCELoss
        >>> loss = InfoNCELoss(temperature=0.5)
        >>> loss(torch.eye(3), torch.eye(3))
        tensor(0.2395)

    Note:
        Blocks form the gradients in the forward and need 3 products of N x M x D and no N x M matrix; their second
        derivative raises. The value is taken relative to the positive, so that it keeps its digits near zero. One row
        alone costs 0; a row of zeros has similarity 0. Half precision and autocast: fp32 unless ``matmul="input"``.
        Under DDP keys are gathered with their gradients, rank-major, and each rank compares its own rows: uneven and
        empty shards give the value and gradients of one process. Accumulating gradients does not enlarge the batch.

    References:
        van den Oord, Li and Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018.
        arXiv:1807.03748
        Cheng et al., "Breaking the Memory Barrier: Near Infinite Batch Size Scaling for Contrastive Loss", 2024.
        arXiv:2410.17243
    """

    def __init__(
        self,
        temperature: float = 0.07,
        learnable: bool = False,
        normalize: bool = True,
        symmetric: bool = False,
        candidates: Candidates = "in_batch",
        label_smoothing: float = 0.0,
        same_id: SameId = "positive",
        gather_negatives: bool = True,
        block_size: int | tuple[int, int] | None = None,
        matmul: Matmul = "fp32",
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(temperature, learnable, normalize, block_size, matmul, reduction, sync, validate_args)
        owner = type(self).__name__
        _check(owner, candidates, label_smoothing, same_id, symmetric)
        check_flag(owner, gather_negatives=gather_negatives)
        self.symmetric = symmetric
        self.candidates: Candidates = candidates
        self.label_smoothing = label_smoothing
        self.same_id: SameId = same_id
        self.gather_negatives = gather_negatives

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        *,
        negatives: Tensor | None = None,
        ids: Tensor | None = None,
        exclude: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        return _info_nce(
            type(self).__name__,
            query,
            key,
            negatives,
            ids,
            exclude,
            weight,
            temperature=self.current_scale(query),
            normalize=self.normalize,
            symmetric=self.symmetric,
            candidates=self.candidates,
            label_smoothing=self.label_smoothing,
            same_id=self.same_id,
            gather_negatives=self.gather_negatives,
            block_size=self.block_size,
            matmul=self.matmul,
            reduction=self.reduction,
            sync=self.sync,
            validate_args=self.validate_args,
        )
