"""The normalised temperature-scaled cross-entropy of SimCLR."""

import torch
from torch import Tensor

from trainkit._core.pairs.view import Hidden
from trainkit._core.reduction import check_reduction
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks, share_of_ranks
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
from trainkit.losses.contrastive._softmax import SoftmaxTask, softmax_rows, softmax_total

__all__ = ["NTXentLoss", "nt_xent_loss"]


def _nt_xent(
    owner: str,
    query: Tensor,
    key: Tensor,
    weight: Tensor | None,
    *,
    temperature: float | Tensor,
    normalize: bool,
    block_size: Block,
    matmul: Matmul,
    reduction: Reduction,
    sync: bool,
    validate_args: bool,
) -> Tensor:
    check_pairs(owner, query, key, None, weight, validate_args)
    with torch.autocast(device_type=query.device.type, enabled=False):
        views = torch.stack([embed(query, normalize, matmul), embed(key, normalize, matmul)], 1)
        (gathered,), start = gather_shards(views, call=owner, sync=sync)
        # Both views of a row follow one another: a view and its partner are neighbours.
        anchors, columns = views.flatten(0, 1), gathered.flatten(0, 1)
        itself = torch.arange(len(anchors), device=anchors.device) + 2 * start
        hidden = Hidden.of(torch.stack([itself, itself ^ 1], 1))
        blocks = blocks_for(block_size, len(anchors), len(columns))
        partners = views.flip(1).flatten(0, 1)
        inside = None if blocks is None else itself ^ 1
        pairs = make_pairs(anchors, partners, columns, scale_of(temperature, anchors), own=inside)
        task = SoftmaxTask(pairs, hidden, [], 0.0, blocks)
        weights = row_weights(query, weight)
        if reduction != "none" and task.in_strips:
            total = softmax_total(task, weights.repeat_interleave(2) / 2)
            return share_of_ranks(total, weights.sum(), reduction, call=owner, sync=sync)
        values = softmax_rows(task).view(-1, 2).mean(1)
        return reduce_over_ranks(values * weights, weights, reduction, call=owner, sync=sync)


def nt_xent_loss(
    query: Tensor,
    key: Tensor,
    *,
    weight: Tensor | None = None,
    temperature: float = 0.5,
    normalize: bool = True,
    block_size: int | tuple[int, int] | None = None,
    matmul: Matmul = "fp32",
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`NTXentLoss`."""
    owner = "nt_xent_loss"
    check_options(owner, temperature, normalize, block_size, matmul)
    check_reduction(owner, reduction)
    return _nt_xent(
        owner,
        query,
        key,
        weight,
        temperature=temperature,
        normalize=normalize,
        block_size=block_size,
        matmul=matmul,
        reduction=reduction,
        sync=False,
        validate_args=validate_args,
    )


class NTXentLoss(PairLoss):
    r"""Cross-entropy of picking the other view of a row among all other views of the batch.

    Use it for self-supervised training on two augmented views of each sample, where, unlike with two towers, the
    other rows of the own view are negatives too.

    .. math::

        \ell_i = \tfrac12 \sum_{v \in \{0, 1\}} \Bigl(\log \sum_{(j, u) \ne (i, v)} e^{s_{iv, ju}} - s_{i0, i1}\Bigr),
        \qquad s = \frac{\langle z, z' \rangle}{\tau}

    Args:
        temperature: Divisor of the scores, > 0 (paper: tau); the initial one if it is learned.
        learnable: Learn the logarithm of 1 / temperature, the parameter ``log_scale``, capped at log 100.
        normalize: Scale every embedding to length one.
        block_size: How the score matrix is cut: None, whole up to 2^20 pairs and in strips of 256 rows beyond; a
            number of rows; or rows and columns.
        matmul: ``"fp32"``, or ``"input"`` to multiply in the dtype of the embeddings.
        reduction: ``"mean"`` over the rows by their weight, ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of the weights.

    Shape:
        - query: (N, D), the first view, floating
        - key: (N, D), the second view
        - weight: (N,), >= 0, optional
        - output: () or, for ``"none"``, (N,), the mean of both views; float32, or float64 for float64 embeddings

    Example:
        >>> import torch
        >>> from trainkit.losses import NTXentLoss
        >>> NTXentLoss()(torch.eye(3), torch.eye(3))
        tensor(0.4327)

    Note:
        Equal embeddings give log(2N - 1); one row alone gives 0. Blocks form the gradients in the forward and need 3
        products of 2N x 2N x D and no matrix of scores; their second derivative raises. Under DDP both views are
        gathered with their gradients: uneven and empty shards give the value and gradients of one process. Half
        precision and autocast: fp32 unless ``matmul="input"``.

    References:
        Chen, Kornblith, Norouzi and Hinton, "A Simple Framework for Contrastive Learning of Visual Representations",
        ICML 2020. arXiv:2002.05709
    """

    def __init__(
        self,
        temperature: float = 0.5,
        learnable: bool = False,
        normalize: bool = True,
        block_size: int | tuple[int, int] | None = None,
        matmul: Matmul = "fp32",
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(temperature, learnable, normalize, block_size, matmul, reduction, sync, validate_args)

    def forward(self, query: Tensor, key: Tensor, *, weight: Tensor | None = None) -> Tensor:
        return _nt_xent(
            "NTXentLoss",
            query,
            key,
            weight,
            temperature=self.current_scale(query),
            normalize=self.normalize,
            block_size=self.block_size,
            matmul=self.matmul,
            reduction=self.reduction,
            sync=self.sync,
            validate_args=self.validate_args,
        )
