"""A surrogate of the area under the ROC curve, over all pairs of a positive and a negative."""

from typing import ClassVar

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_floating,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.loss import Loss
from trainkit._core.numerics import fp32_region
from trainkit._core.reduction import safe_divide, target_weights
from trainkit._core.score_pairs import SurrogateName, check_surrogate, pair_surrogate_sum
from trainkit._core.typing import DistributedKind
from trainkit.distributed import gather_rows, total_over_ranks, world_size
from trainkit.losses.classification._common import check_weighting

__all__ = ["PairwiseAUCLoss", "pairwise_auc_loss"]


def _check(owner: str, surrogate: str, margin: float, temperature: float) -> None:
    check_surrogate(owner, surrogate, margin)
    check_number(owner, "temperature", temperature, minimum=0, open_minimum=True)


def _check_inputs(
    owner: str,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    ignore_index: int,
    validate_args: bool,
) -> None:
    check_floating(owner, scores=scores)
    if scores.dim() != 1:
        reject(owner, "scores", "have shape (N,)", scores)
    check_same_shape(owner, "scores", scores.shape, target=target)
    rules = check_weighting(owner, "scores", tuple(scores.shape), weight, mask)
    valid = (target == 0) | (target == 1) | (target == ignore_index)
    rules.append(("target", f"be 0, 1 or equal ignore_index={ignore_index}", target, valid))
    if values_checked(validate_args):
        check_values(owner, *rules)


@fp32_region
def _mean_over_pairs(
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    *,
    surrogate: SurrogateName,
    margin: float,
    temperature: float,
    ignore_index: int,
    sync: bool,
) -> Tensor:
    valid = target != ignore_index
    weights = target_weights(scores.detach(), valid, weight, mask)
    own = torch.where(valid if mask is None else valid & mask, scores, 0) / temperature
    # Weights of zero, not a selection, tell the sides apart: its shape would depend on the data, which is no one graph.
    positive_weight = torch.where(target == 1, weights, 0)
    negative_weight = torch.where(target == 1, 0, weights)
    positives, others, ranks = positive_weight.sum(), own, 1
    if sync and world_size() > 1:
        ranks = world_size()
        (others, negative_weight), _ = gather_rows(own, negative_weight, call="PairwiseAUCLoss")
        positives = total_over_ranks(positives, call="PairwiseAUCLoss")
    total = pair_surrogate_sum(
        own,
        others,
        surrogate=surrogate,
        margin=margin,
        positive_weight=positive_weight,
        negative_weight=negative_weight,
    )
    return safe_divide(ranks * total, positives * negative_weight.sum())


def pairwise_auc_loss(
    scores: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    surrogate: SurrogateName = "logistic",
    margin: float = 1.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`PairwiseAUCLoss`."""
    owner = "pairwise_auc_loss"
    _check(owner, surrogate, margin, temperature)
    _check_inputs(owner, scores, target, weight, mask, ignore_index, validate_args)
    return _mean_over_pairs(
        scores,
        target,
        weight,
        mask,
        surrogate=surrogate,
        margin=margin,
        temperature=temperature,
        ignore_index=ignore_index,
        sync=False,
    )


class PairwiseAUCLoss(Loss):
    r"""Mean surrogate of the wrongly ordered pairs of a positive and a negative: trains the area under the ROC curve.

    Use it where the order of scores counts and the classes are so unequal that cross-entropy neglects the rare one:
    screening, fraud, click prediction, relevance of whole lists. Every positive is compared with every negative of
    the batch, at a cost that grows with their number, not with the number of pairs.

    .. math::

        L = \frac{1}{\sum_i w_i \sum_j w_j} \sum_{i:\, t_i = 1} \sum_{j:\, t_j = 0}
        w_i w_j\, \phi\Bigl(\frac{s_j - s_i}{\tau}\Bigr)

    where :math:`\phi(x)` is :math:`\log(1 + e^x)` for ``"logistic"``, :math:`\max(0, m + x)` for ``"hinge"``, its
    square for ``"squared_hinge"``, :math:`(m + x)^2` for ``"square"`` and :math:`e^x` for ``"exponential"``.
    With the logistic surrogate :math:`L / \log 2 \ge 1 - \mathrm{AUC}`.

    Args:
        surrogate: ``"logistic"``, ``"hinge"``, ``"squared_hinge"``, ``"square"``, or ``"exponential"``, which
            overflows where a negative leads by 88 temperatures.
        margin: m, the lead that a positive should have, in units of the temperature; >= 0. The logistic surrogate has
            none and leaves it aside.
        temperature: :math:`\tau`, what scores are divided by; > 0.
        ignore_index: Value of the target that is left out.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of target and weight.

    Shape:
        - scores: (N,), floating
        - target: (N,), 1 for positives and 0 for negatives, of any dtype
        - weight: (N,), >= 0, optional; a pair weighs the product of its two
        - mask: (N,), True where the target counts, optional
        - output: (), float32, or float64 for float64 scores

    Example:
        >>> import torch
        >>> from trainkit.losses import PairwiseAUCLoss
        >>> scores = torch.tensor([2.0, 0.5, 1.0, -1.0])
        >>> PairwiseAUCLoss()(scores, torch.tensor([1, 1, 0, 0]))
        tensor(0.3843)

    Note:
        Like the area that it stands for, the loss is one number for the batch: rows have no share of their own, so
        there is no ``reduction``. Where a side is missing it is 0 with a live graph. A constant added to all scores
        changes nothing; fit a calibrator afterwards if the scores have to be probabilities.

        Up to N^2 = 2^20 all pairs are held at once. Beyond that, hinges are exact by sorting, the square is a closed
        form, and the logistic is summed on a grid with an error below 2e-7 of each entry of the gradient, whatever the
        range of the scores; memory grows with N. These forms, but for the square, are differentiable once: a second
        derivative raises. A score that is not finite makes the loss NaN. At a hinge's kink the gradient is 0.

        Half precision and autocast: computed and returned in fp32. Under DDP each rank compares its own positives with
        the negatives of all ranks. Accumulated batches compare only within each. The weight carries no gradient.

    References:
        Sheikholeslami et al., "Optimizing What Matters: AUC-Driven Learning for Robust Neural Retrieval", 2025.
        arXiv:2510.00137
    """

    distributed: ClassVar[DistributedKind] = "gather"

    def __init__(
        self,
        surrogate: SurrogateName = "logistic",
        margin: float = 1.0,
        temperature: float = 1.0,
        ignore_index: int = -100,
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(sync=sync, validate_args=validate_args)
        _check("PairwiseAUCLoss", surrogate, margin, temperature)
        self.surrogate: SurrogateName = surrogate
        self.margin = margin
        self.temperature = temperature
        self.ignore_index = ignore_index

    def forward(
        self, scores: Tensor, target: Tensor, *, weight: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        _check_inputs("PairwiseAUCLoss", scores, target, weight, mask, self.ignore_index, self.validate_args)
        return _mean_over_pairs(
            scores,
            target,
            weight,
            mask,
            surrogate=self.surrogate,
            margin=self.margin,
            temperature=self.temperature,
            ignore_index=self.ignore_index,
            sync=self.sync,
        )
