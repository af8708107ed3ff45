"""Bayesian personalized ranking."""

from torch import Tensor

from trainkit._core.checks import check_floating, check_values, reject, values_checked
from trainkit._core.loss import Loss
from trainkit._core.numerics import fp32_region, softplus
from trainkit._core.reduction import check_reduction, reduce, target_weights
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks
from trainkit.losses.classification._common import check_weighting

__all__ = ["BPRLoss", "bpr_loss"]


def _check_inputs(owner: str, scores: Tensor, negatives: Tensor, weight: Tensor | None, validate_args: bool) -> None:
    check_floating(owner, scores=scores, negatives=negatives)
    if scores.dim() != 1:
        reject(owner, "scores", "have shape (N,)", scores)
    rows = scores.shape[0]
    if negatives.dim() not in (1, 2) or negatives.shape[0] != rows or 0 in negatives.shape[1:]:
        reject(owner, "negatives", f"have shape ({rows},) or ({rows}, K) to match scores", negatives)
    rules = check_weighting(owner, "scores", tuple(scores.shape), weight, None)
    if rules and values_checked(validate_args):
        check_values(owner, *rules)


@fp32_region
def _rows(scores: Tensor, negatives: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weighted losses and weights, one a row."""
    weights = target_weights(scores.detach(), None, weight, None)
    behind = (negatives if negatives.dim() == 2 else negatives[:, None]) - scores[:, None]
    return weights * softplus(behind).mean(1), weights


def bpr_loss(
    scores: Tensor,
    negatives: Tensor,
    *,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`BPRLoss`."""
    check_reduction("bpr_loss", reduction)
    _check_inputs("bpr_loss", scores, negatives, weight, validate_args)
    return reduce(*_rows(scores, negatives, weight), reduction)


class BPRLoss(Loss):
    r"""Logistic loss of the lead that each positive has over negatives drawn for it.

    Use it for recommendation from implicit feedback: an item that a user chose should score above items drawn from
    those the user did not choose. Each row is compared with its own negatives only; to compare all positives with all
    negatives see :class:`PairwiseAUCLoss`.

    .. math:: \ell_i = \frac{1}{K} \sum_{k = 1}^{K} \log\bigl(1 + e^{n_{ik} - s_i}\bigr)

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of the weight.

    Shape:
        - scores: (N,), scores of the positives, floating
        - negatives: (N, K) or (N,), scores of the negatives of each row, K >= 1
        - weight: (N,), >= 0, optional
        - output: () or, for ``"none"``, (N,); float32, or float64 for float64 scores

    Example:
        >>> import torch
        >>> from trainkit.losses import BPRLoss
        >>> BPRLoss()(torch.tensor([2.0, 0.5]), torch.tensor([[1.0, 0.0], [1.5, -0.5]]))
        tensor(0.5167)

    Note:
        The paper also draws the negatives and penalizes the norm of the parameters: a sampler and ``weight_decay`` do
        that here. The logarithm of the sigmoid is one stable function; the common -log(sigmoid + 1e-10) loses its
        gradient at leads below -23. An empty batch gives 0 with a live graph. Half precision and autocast: computed and
        returned in fp32. Under DDP, ``"mean"`` divides by the weight of all ranks. Accumulated batches each divide by
        their own.

    References:
        Rendle, Freudenthaler, Gantner and Schmidt-Thieme, "BPR: Bayesian Personalized Ranking from Implicit Feedback",
        UAI 2009. arXiv:1205.2618
    """

    def __init__(self, reduction: Reduction = "mean", sync: bool = True, validate_args: bool = True) -> None:
        super().__init__(reduction, sync, validate_args)

    def forward(self, scores: Tensor, negatives: Tensor, *, weight: Tensor | None = None) -> Tensor:
        _check_inputs("BPRLoss", scores, negatives, weight, self.validate_args)
        rows, weights = _rows(scores, negatives, weight)
        return reduce_over_ranks(rows, weights, self.reduction, call="BPRLoss", sync=self.sync)
