"""Focal loss on independent binary logits."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from trainkit._core.checks import (
    check_floating,
    check_length,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.loss import Loss
from trainkit._core.numerics import fp32_region, log_floor
from trainkit._core.reduction import check_reduction, reduce, target_weights
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks, total_over_ranks
from trainkit.losses.classification._common import check_weighting

__all__ = ["SigmoidFocalLoss", "sigmoid_focal_loss"]

Normalizer = Literal["num_positive"] | float | None


def _check(
    owner: str,
    gamma: float,
    alpha: float | None,
    pos_weight: float | Sequence[float] | Tensor | None,
    normalizer: Normalizer,
) -> None:
    check_number(owner, "gamma", gamma, minimum=0)
    if alpha is not None:
        check_number(owner, "alpha", alpha, minimum=0, maximum=1)
    if pos_weight is not None and not torch.compiler.is_compiling():
        entries = torch.as_tensor(pos_weight, dtype=torch.float64)
        if entries.dim() > 1:
            reject(owner, "pos_weight", "be a number or have one entry for each class", entries)
        check_values(owner, ("pos_weight", "be finite and >= 0", entries, entries.isfinite() & (entries >= 0)))
    if isinstance(normalizer, str):
        if normalizer != "num_positive":
            reject(owner, "normalizer", "be None, 'num_positive' or a number > 0", normalizer)
    elif normalizer is not None:
        check_number(owner, "normalizer", normalizer, minimum=0, open_minimum=True)


def _check_inputs(
    owner: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    ignore_index: int,
    validate_args: bool,
) -> None:
    check_floating(owner, logits=logits)
    check_same_shape(owner, "logits", logits.shape, target=target)
    rules = check_weighting(owner, "logits", tuple(logits.shape), weight, mask)
    valid = ((target >= 0) & (target <= 1)) | (target == ignore_index)
    rules.append(("target", f"be in [0, 1] or equal ignore_index={ignore_index}", target, valid))
    if values_checked(validate_args):
        check_values(owner, *rules)


@fp32_region
def _rows(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    pos_weight: Tensor | None,
    *,
    gamma: float,
    alpha: float | None,
    ignore_index: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted losses, weights, and weighted targets, one a logit."""
    valid = target != ignore_index
    weights = target_weights(logits.detach(), valid, weight, mask)
    counts = valid if mask is None else valid & mask
    x = torch.where(counts, logits, 0)
    t = torch.where(counts, target.to(x.dtype), 0)
    # log(1 - p_t) for p_t = t p + (1 - t)(1 - p), with sigmoid(|x|) taken out: what remains is a sum of positive
    # terms, exact at hard targets, and only its floor keeps it from underflowing.
    near = torch.where(x >= 0, 1 - t, t)
    rest = near + (1 - near) * torch.exp(-x.abs())
    log_miss = F.logsigmoid(x.abs()) + rest.clamp_min(_smallest(x.dtype)).log()
    positive = -t * F.logsigmoid(x)
    if pos_weight is not None:
        shape = [1] * x.dim()
        if pos_weight.dim():
            shape[min(1, x.dim() - 1)] = -1
        positive = positive * pos_weight.to(x.dtype).view(shape)
    rows = (gamma * log_miss).exp() * (positive - (1 - t) * F.logsigmoid(-x))
    if alpha is not None:
        rows = rows * (alpha * t + (1 - alpha) * (1 - t))
    return weights * rows, weights, (weights * t).detach()


def _smallest(dtype: torch.dtype) -> float:
    return float(torch.tensor(log_floor(dtype), dtype=torch.float64).exp())


def _positive_weight(owner: str, pos_weight: float | Sequence[float] | Tensor | None, logits: Tensor) -> Tensor | None:
    """Positive weight as a scalar, or as a vector along the class dimension."""
    if pos_weight is None:
        return None
    entries = torch.as_tensor(pos_weight, dtype=torch.float64, device=logits.device)
    if entries.dim():
        if logits.dim() < 2:
            reject(owner, "pos_weight", "be one number, since logits has no class dimension", pos_weight)
        check_length(owner, "pos_weight", entries, logits.shape[1], "class")
    return entries


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    gamma: float = 2.0,
    alpha: float | None = 0.25,
    pos_weight: float | Sequence[float] | None = None,
    normalizer: Normalizer = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`SigmoidFocalLoss`."""
    owner = "sigmoid_focal_loss"
    _check(owner, gamma, alpha, pos_weight, normalizer)
    check_reduction(owner, reduction)
    _check_inputs(owner, logits, target, weight, mask, ignore_index, validate_args)
    factor = _positive_weight(owner, pos_weight, logits)
    rows, weights, positives = _rows(
        logits, target, weight, mask, factor, gamma=gamma, alpha=alpha, ignore_index=ignore_index
    )
    if reduction != "mean" or normalizer is None:
        return reduce(rows, weights, reduction)
    return rows.sum() / _divisor(positives.sum(), normalizer)


def _divisor(positives: Tensor, normalizer: Literal["num_positive"] | float) -> Tensor | float:
    return positives.clamp_min(1) if normalizer == "num_positive" else float(normalizer)


class SigmoidFocalLoss(Loss):
    r"""Binary cross-entropy that gives less weight to what is already classified well.

    Use it for dense detection, for multi-label problems and wherever positives are rare. Each logit is a problem of
    its own; for exclusive classes see :class:`FocalLoss`.

    .. math::

        \ell = \alpha_t (1 - p_t)^{\gamma} \bigl(-w_+ t \log p - (1 - t) \log(1 - p)\bigr), \quad
        p = \sigma(z), \quad p_t = t p + (1 - t)(1 - p), \quad \alpha_t = \alpha t + (1 - \alpha)(1 - t)

    Args:
        gamma: Focusing exponent, >= 0. Default of the paper.
        alpha: Factor of positives in [0, 1], 1 - alpha that of negatives; None for 1. Default of the paper.
        pos_weight: Factor of the positive part, w_+; a number, or one entry for each class (dimension 1); None for 1.
        normalizer: What ``"mean"`` divides the sum by: None, the targets that count; ``"num_positive"``, the sum of the
            targets but at least 1, as in the paper; or a number.
        ignore_index: Value of the target that is left out of value and count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of target and weight.

    Shape:
        - logits: any shape, floating
        - target: same shape, in [0, 1], of any dtype
        - weight: same shape, >= 0, optional
        - mask: same shape, True where the target counts, optional
        - output: () or, for ``"none"``, the shape of logits; float32, or float64 for float64 logits

    Example:
        >>> import torch
        >>> from trainkit.losses import SigmoidFocalLoss
        >>> logits, target = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1.0, 1.0, 0.0])
        >>> SigmoidFocalLoss()(logits, target)
        tensor(0.1530)

    Note:
        Finite with finite gradients at any logits and any gamma: 1 - p_t is taken in log space, as a sum of positive
        terms, and held above exp(-80) (fp64: exp(-700)). Where nothing counts the value is 0 with a live graph. Half
        precision and autocast: computed and returned in fp32. Under DDP, ``"mean"`` divides by the count, or the
        positives, of all ranks. A soft target may carry a gradient. The default reduction is the mean, not the rows.

    References:
        Lin, Goyal, Girshick, He and Dollar, "Focal Loss for Dense Object Detection", ICCV 2017. arXiv:1708.02002
    """

    pos_weight: Tensor | float | None

    def __init__(
        self,
        gamma: float = 2.0,
        alpha: float | None = 0.25,
        pos_weight: float | list[float] | None = None,
        normalizer: Literal["num_positive"] | float | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(reduction, sync, validate_args)
        _check("SigmoidFocalLoss", gamma, alpha, pos_weight, normalizer)
        self.gamma = gamma
        self.alpha = alpha
        if pos_weight is None or isinstance(pos_weight, (int, float)):
            self.pos_weight = pos_weight
        else:
            self.register_constant("pos_weight", pos_weight)
        self.normalizer: Normalizer = normalizer
        self.ignore_index = ignore_index

    def forward(
        self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        owner = "SigmoidFocalLoss"
        _check_inputs(owner, logits, target, weight, mask, self.ignore_index, self.validate_args)
        factor = _positive_weight(owner, self.pos_weight, logits)
        rows, weights, positives = _rows(
            logits, target, weight, mask, factor, gamma=self.gamma, alpha=self.alpha, ignore_index=self.ignore_index
        )
        if self.reduction != "mean" or self.normalizer is None:
            return reduce_over_ranks(rows, weights, self.reduction, call=owner, sync=self.sync)
        total = reduce_over_ranks(rows, weights, "sum", call=owner, sync=self.sync)
        positive = positives.sum()
        if self.sync:
            positive = total_over_ranks(positive, call=owner)
        return total / _divisor(positive, self.normalizer)
