"""The pairwise sigmoid loss of SigLIP."""

import torch
from torch import Tensor, nn

from trainkit._core.checks import check_number
from trainkit._core.numerics import softplus
from trainkit._core.pairs.base import Pairs
from trainkit._core.pairs.strip import Head, Rows, strip_rows, strip_sum
from trainkit._core.pairs.view import Hidden, View
from trainkit._core.reduction import check_reduction
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks, share_of_ranks
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

__all__ = ["SigLIPLoss", "sig_lip_loss"]


class _SigmoidHead(Head):
    r"""Binary cross-entropy of every pair of a row.

    .. math:: h = w_+ \mathrm{softplus}(-p) + \sum_{j \notin P} \mathrm{softplus}(s_j)
        + w_+ \sum_{j \in P} \mathrm{softplus}(-s_j)

    with P the visible columns of the row's id. ``tensors``: ids of rows and of columns, or none; ``options``: w_+.
    """

    elementwise = True

    @staticmethod
    def rows(view: View, positive: Tensor) -> Rows:
        (pos_weight,) = view.options
        view.hide()
        scores = view.scores
        slope = torch.sigmoid(scores)
        values = scores.clamp_min(0).sub_(torch.log1p(torch.minimum(slope, 1 - slope).neg_()))
        if view.tensors:
            row_ids, column_ids = view.tensors
            same = (row_ids[view.rows].unsqueeze(1) == column_ids[view.columns]) & scores.isfinite()
            # softplus(-s) = softplus(s) - s
            values = torch.where(same, pos_weight * (values - scores), values)
            slope = torch.where(same, pos_weight * (slope - 1), slope)
        scores.copy_(slope)
        # The positive is counted with the first block of columns.
        first = pos_weight * (view.columns.start == 0)
        return Rows(values.sum(1) + first * softplus(-positive), -first * torch.sigmoid(-positive))


def _rows(pairs: Pairs, hidden: Hidden, ids: list[Tensor], pos_weight: float, blocks: Blocks | None) -> Tensor:
    """Value of each row, (n,)."""
    if blocks is not None:
        return strip_rows(_SigmoidHead, pairs, hidden, tensors=ids, options=(pos_weight,), block=blocks[:2])
    scores = pairs.scores()
    values = softplus(scores)
    if ids:
        same = ids[0].unsqueeze(1) == ids[1]
        values = torch.where(same, pos_weight * softplus(-scores), values)
    others = values.masked_fill(hidden.mask(*scores.shape), 0.0).sum(1)
    return pos_weight * softplus(-pairs.positive) + others


def _sig_lip(
    owner: str,
    query: Tensor,
    key: Tensor,
    ids: Tensor | None,
    weight: Tensor | None,
    *,
    temperature: float | Tensor,
    bias: float | Tensor,
    pos_weight: float,
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
        scale = scale_of(temperature, q)
        shift = bias.to(scale.dtype) if isinstance(bias, Tensor) else torch.full_like(scale, bias)
        own = torch.arange(len(q), device=q.device).add(start)
        hidden = Hidden.of(own.unsqueeze(1))
        same = [] if ids is None else [ids, rest[0]]
        blocks = blocks_for(block_size, len(q), len(keys))
        pairs = make_pairs(q, k, keys, scale, bias=shift, own=None if blocks is None else own)
        weights = row_weights(q, weight)
        if blocks is not None and reduction != "none":
            options = (pos_weight,)
            total = strip_sum(_SigmoidHead, pairs, weights, hidden, tensors=same, options=options, block=blocks[:2])
            return share_of_ranks(total, weights.sum(), reduction, call=owner, sync=sync)
        values = _rows(pairs, hidden, same, pos_weight, blocks)
        return reduce_over_ranks(values * weights, weights, reduction, call=owner, sync=sync)


def _check(owner: str, bias: float, pos_weight: float) -> None:
    check_number(owner, "bias", bias)
    check_number(owner, "pos_weight", pos_weight, minimum=0)


def sig_lip_loss(
    query: Tensor,
    key: Tensor,
    *,
    ids: Tensor | None = None,
    weight: Tensor | None = None,
    temperature: float = 0.1,
    bias: float = -10.0,
    pos_weight: float = 1.0,
    normalize: bool = True,
    block_size: int | tuple[int, int] | None = None,
    matmul: Matmul = "fp32",
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`SigLIPLoss`."""
    owner = "sig_lip_loss"
    check_options(owner, temperature, normalize, block_size, matmul)
    check_reduction(owner, reduction)
    _check(owner, bias, pos_weight)
    return _sig_lip(
        owner,
        query,
        key,
        ids,
        weight,
        temperature=temperature,
        bias=bias,
        pos_weight=pos_weight,
        normalize=normalize,
        block_size=block_size,
        matmul=matmul,
        reduction=reduction,
        sync=False,
        validate_args=validate_args,
    )


class SigLIPLoss(PairLoss):
    r"""Binary cross-entropy of every pair of the batch: does the key belong to the query.

    Use it for two towers where rows may have several right keys, and for large batches: no row needs a normaliser, and
    the scores are calibrated logits.

    .. math::

        \ell_i = w_+ \sum_{j \in P_i} \mathrm{softplus}(-s_{ij}) + \sum_{j \notin P_i} \mathrm{softplus}(s_{ij}), \qquad
        s_{ij} = \frac{\langle q_i, k_j \rangle}{\tau} + b

    with P the own key and, given ``ids``, the keys of the same id.

    Args:
        temperature: Initial divisor of the scores, > 0; default of the paper, 1 / 10.
        bias: Initial bias b. Default of the paper: at first nearly every pair is rightly taken for a negative.
        learnable: Learn the logarithm of 1 / temperature, the parameter ``log_scale`` (capped at log 100), and the
            parameter ``logit_bias``.
        pos_weight: Factor of the positive pairs, w_+.
        normalize: Scale every embedding to length one.
        block_size: How the score matrix is cut: None, whole up to 2^20 pairs and in blocks of 256 x 1024 beyond; a
            number of rows; or rows and columns.
        matmul: ``"fp32"``, or ``"input"`` to multiply in the dtype of the embeddings.
        reduction: ``"mean"`` over the rows by their weight (all pairs of a row are added), ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of the weights.

    Shape:
        - query: (N, D), floating
        - key: (N, D), row i belongs to row i of query
        - ids: (N,), int64, optional
        - weight: (N,), >= 0, optional
        - output: () or, for ``"none"``, (N,); float32, or float64 for float64 embeddings

    Example:
        >>> import torch
        >>> from trainkit.losses import SigLIPLoss
        >>> SigLIPLoss()(torch.eye(3), torch.eye(3)).detach()
        tensor(0.6932)

    Note:
        The mean divides the sum over all pairs by N, not by N^2. Blocks form the gradients in the forward and need 3
        products of N x N x D; their second derivative raises. Under DDP keys are gathered with their gradients, equal
        ids are positives across ranks, and uneven and empty shards give the value and gradients of one process. Keep
        the loss in the LightningModule, so that DDP averages the gradients of its parameters. Half precision and
        autocast: fp32 unless ``matmul="input"``.

    References:
        Zhai, Mustafa, Kolesnikov and Beyer, "Sigmoid Loss for Language Image Pre-Training", ICCV 2023.
        arXiv:2303.15343
    """

    logit_bias: nn.Parameter

    def __init__(
        self,
        temperature: float = 0.1,
        bias: float = -10.0,
        learnable: bool = True,
        pos_weight: float = 1.0,
        normalize: bool = True,
        block_size: int | tuple[int, int] | None = None,
        matmul: Matmul = "fp32",
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(temperature, learnable, normalize, block_size, matmul, reduction, sync, validate_args)
        _check("SigLIPLoss", bias, pos_weight)
        self.bias = bias
        self.pos_weight = pos_weight
        if learnable:
            self.logit_bias = nn.Parameter(torch.tensor(float(bias)))

    def no_weight_decay(self) -> set[str]:
        return {"log_scale", "logit_bias"} if self.learnable else set()

    def forward(self, query: Tensor, key: Tensor, *, ids: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        return _sig_lip(
            "SigLIPLoss",
            query,
            key,
            ids,
            weight,
            temperature=self.current_scale(query),
            bias=self.logit_bias if self.learnable else self.bias,
            pos_weight=self.pos_weight,
            normalize=self.normalize,
            block_size=self.block_size,
            matmul=self.matmul,
            reduction=self.reduction,
            sync=self.sync,
            validate_args=self.validate_args,
        )
