"""Focal loss on class logits."""

from collections.abc import Sequence

from torch import Tensor

from trainkit._core.checks import check_flag, check_number
from trainkit._core.loss import Loss
from trainkit._core.numerics import fp32_region, log1m_softmax
from trainkit._core.reduction import check_reduction, reduce
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks
from trainkit.losses.classification._common import check_alpha, check_class_inputs, class_alpha, class_targets

__all__ = ["FocalLoss", "focal_loss"]


def _check(owner: str, gamma: float, alpha: float | Sequence[float] | Tensor | None, detach_weight: bool) -> None:
    check_number(owner, "gamma", gamma, minimum=0)
    check_flag(owner, detach_weight=detach_weight)
    check_alpha(owner, alpha)


@fp32_region
def _rows(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    *,
    gamma: float,
    alpha: Tensor | None,
    detach_weight: bool,
    ignore_index: int,
) -> tuple[Tensor, Tensor]:
    """Weighted losses and weights, one a target."""
    t = class_targets(logits, target, weight, mask, ignore_index)
    per_class = -t.logits.log_softmax(t.dim)
    if gamma:
        # In log space: 1 - p underflows at p near one, where its power would have an infinite gradient.
        log_weight = gamma * log1m_softmax(t.logits, t.dim)
        per_class = (log_weight.detach() if detach_weight else log_weight).exp() * per_class
    if alpha is not None:
        per_class = t.along_classes(alpha) * per_class
    return t.weights * t.pick(per_class), t.weights


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    gamma: float = 2.0,
    alpha: float | Sequence[float] | None = None,
    detach_weight: bool = False,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`FocalLoss`."""
    _check("focal_loss", gamma, alpha, detach_weight)
    check_reduction("focal_loss", reduction)
    check_class_inputs("focal_loss", logits, target, weight, mask, ignore_index, validate_args)
    vector = class_alpha("focal_loss", alpha, logits)
    rows, weights = _rows(
        logits, target, weight, mask, gamma=gamma, alpha=vector, detach_weight=detach_weight, ignore_index=ignore_index
    )
    return reduce(rows, weights, reduction)


class FocalLoss(Loss):
    r"""Cross-entropy that gives less weight to what is already classified well.

    Use it where easy examples drown the others, or to hold back the over-confidence of a network that fits its
    training data; ``gamma`` near 3 is usual for calibration. On data with noisy labels, where plain cross-entropy is
    not over-confident, it makes calibration worse.

    .. math:: \ell_i = -\alpha_{y_i} (1 - p_{i y_i})^{\gamma} \log p_{i y_i}, \qquad p_i = \mathrm{softmax}(z_i)

    A soft target t takes :math:`\sum_k t_{ik}` of the same expression for class k.

    Args:
        gamma: Focusing exponent, >= 0; 0 gives cross-entropy. Default of the paper.
        alpha: Factor of each class, one entry a class; a single number a in [0, 1] means (1 - a, a) for two classes;
            None for 1.
        detach_weight: Treat the focusing factor as a constant in the gradient.
        ignore_index: Class index that is left out of value and count.
        reduction: ``"mean"`` over the targets that count (by their ``weight``, not by alpha), ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of target and weight.

    Shape:
        - logits: (N, C, ...) or (C,), floating
        - target: (N, ...) class indices or (N, C, ...) probabilities
        - weight: (N, ...), >= 0, optional
        - mask: (N, ...), True where the target counts, optional
        - output: () or, for ``"none"``, (N, ...); float32, or float64 for float64 logits

    Example:
        >>> import torch
        >>> from trainkit.losses import FocalLoss
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
        >>> FocalLoss(gamma=2.0)(logits, torch.tensor([0, 2]))
        tensor(0.4838)

    Note:
        The power is taken in log space with log(1 - p) as the log-sum-exp of the other classes, so that value and
        gradient are finite at any logits and any gamma; below exp(-80) (fp64: exp(-700)) the factor is constant.
        Where nothing counts the value is 0 with a live graph. Half precision and autocast: computed and returned in
        fp32. Under DDP, ``"mean"`` divides by the count of all ranks, so uneven shards and unequal numbers of ignored
        targets give the gradient of one process. Accumulated batches each divide by their own count. The authors of
        the calibration paper sum over the batch by default; the mean is the default here.

    References:
        Lin, Goyal, Girshick, He and Dollar, "Focal Loss for Dense Object Detection", ICCV 2017. arXiv:1708.02002
        Mukhoti, Kulharia, Sanyal, Golodetz, Torr and Dokania, "Calibrating Deep Neural Networks using Focal Loss",
        NeurIPS 2020. arXiv:2002.09437
    """

    alpha: Tensor | float | None

    def __init__(
        self,
        gamma: float = 2.0,
        alpha: float | list[float] | None = None,
        detach_weight: bool = False,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(reduction, sync, validate_args)
        _check("FocalLoss", gamma, alpha, detach_weight)
        self.gamma = gamma
        if alpha is None or isinstance(alpha, (int, float)):
            self.alpha = alpha
        else:
            self.register_constant("alpha", alpha)
        self.detach_weight = detach_weight
        self.ignore_index = ignore_index

    def forward(
        self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        check_class_inputs("FocalLoss", logits, target, weight, mask, self.ignore_index, self.validate_args)
        rows, weights = _rows(
            logits,
            target,
            weight,
            mask,
            gamma=self.gamma,
            alpha=class_alpha("FocalLoss", self.alpha, logits),
            detach_weight=self.detach_weight,
            ignore_index=self.ignore_index,
        )
        return reduce_over_ranks(rows, weights, self.reduction, call="FocalLoss", sync=self.sync)
