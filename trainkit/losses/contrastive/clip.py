"""The two-sided softmax loss of CLIP."""

from torch import Tensor

from trainkit._core.reduction import check_reduction
from trainkit._core.typing import Reduction
from trainkit.losses.contrastive._common import Matmul, check_options
from trainkit.losses.contrastive.info_nce import InfoNCELoss, SameId, _check, _info_nce

__all__ = ["ClipLoss", "clip_loss"]


def clip_loss(
    query: Tensor,
    key: Tensor,
    *,
    ids: Tensor | None = None,
    weight: Tensor | None = None,
    temperature: float = 0.07,
    normalize: bool = True,
    label_smoothing: float = 0.0,
    same_id: SameId = "positive",
    block_size: int | tuple[int, int] | None = None,
    matmul: Matmul = "fp32",
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`ClipLoss`."""
    owner = "clip_loss"
    check_options(owner, temperature, normalize, block_size, matmul)
    check_reduction(owner, reduction)
    _check(owner, "in_batch", label_smoothing, same_id, symmetric=True)
    return _info_nce(
        owner,
        query,
        key,
        None,
        ids,
        None,
        weight,
        temperature=temperature,
        normalize=normalize,
        symmetric=True,
        candidates="in_batch",
        label_smoothing=label_smoothing,
        same_id=same_id,
        gather_negatives=False,
        block_size=block_size,
        matmul=matmul,
        reduction=reduction,
        sync=False,
        validate_args=validate_args,
    )


class ClipLoss(InfoNCELoss):
    r"""Cross-entropy of picking the right key for each query and the right query for each key.

    Use it to train two towers of different kinds, such as images and texts, with a learned temperature.

    .. math::

        \ell_i = \tfrac12 \Bigl(\log \sum_j e^{s_{ij}} + \log \sum_j e^{s_{ji}}\Bigr) - s_{ii}, \qquad
        s_{ij} = \frac{\langle q_i, k_j \rangle}{\tau}

    Args:
        temperature: Initial divisor of the scores, > 0 (paper: tau).
        learnable: Learn the logarithm of 1 / temperature, the parameter ``log_scale``, capped at log 100 as in the
            paper.
        normalize: Scale every embedding to length one.
        label_smoothing: Share of the target that is spread evenly over the candidates, in [0, 1].
        same_id: What keys and queries of the row's id are: ``"positive"``, or ``"exclude"`` for no candidates.
        block_size: How the score matrix is cut: None, whole up to 2^20 pairs and in strips of 256 rows beyond; a
            number of rows; or rows and columns.
        matmul: ``"fp32"``, or ``"input"`` to multiply in the dtype of the embeddings.
        reduction: ``"mean"`` over the rows by their weight, ``"sum"`` or ``"none"``.
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
        >>> from trainkit.losses import ClipLoss
        >>> loss = ClipLoss(temperature=0.5)
        >>> loss(torch.eye(3), torch.eye(3)).detach()
        tensor(0.2395)

    Note:
        Keep the loss in the LightningModule, so that DDP averages the gradient of ``log_scale``; ``no_weight_decay()``
        names it. Blocks need 4 products of N x N x D and no N x N matrix. Under DDP only keys are gathered; statistics
        of columns are merged over ranks, and uneven and empty shards give the value and gradients of one process. Half
        precision and autocast: fp32 unless ``matmul="input"``.

    References:
        Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
        arXiv:2103.00020
    """

    def __init__(
        self,
        temperature: float = 0.07,
        learnable: bool = True,
        normalize: bool = True,
        label_smoothing: float = 0.0,
        same_id: SameId = "positive",
        block_size: int | tuple[int, int] | None = None,
        matmul: Matmul = "fp32",
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(
            temperature,
            learnable,
            normalize,
            symmetric=True,
            label_smoothing=label_smoothing,
            same_id=same_id,
            block_size=block_size,
            matmul=matmul,
            reduction=reduction,
            sync=sync,
            validate_args=validate_args,
        )

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, *, ids: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        return super().forward(query, key, ids=ids, weight=weight)
