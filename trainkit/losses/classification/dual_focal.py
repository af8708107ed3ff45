"""Dual focal loss on class logits."""

from collections.abc import Sequence

from torch import Tensor

from trainkit._core.checks import check_number
from trainkit._core.loss import Loss
from trainkit._core.numerics import fp32_region, log1m_softmax, log_floor
from trainkit._core.reduction import check_reduction, reduce
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks
from trainkit.losses.classification._common import check_alpha, check_class_inputs, class_alpha, class_targets

__all__ = ["DualFocalLoss", "dual_focal_loss"]


def _check(owner: str, gamma: float, alpha: float | Sequence[float] | Tensor | None) -> None:
    check_number(owner, "gamma", gamma, minimum=0)
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
    ignore_index: int,
) -> tuple[Tensor, Tensor]:
    """Weighted losses and weights, one a target."""
    t = class_targets(logits, target, weight, mask, ignore_index)
    log_p = t.logits.log_softmax(t.dim)
    rows = -t.pick(log_p)
    if gamma:
        # By logits: probabilities that underflow or round to one are equal where their logits are not.
        below = t.logits < t.pick(t.logits).unsqueeze(t.dim)
        runner_up = log_p.masked_fill(~below, log_floor(log_p.dtype)).max(t.dim).values
        # In log space, as 1 - p underflows at p near one; the sum has two positive terms, nothing cancels.
        rows = (gamma * t.pick(log1m_softmax(t.logits, t.dim)).logaddexp(runner_up)).exp() * rows
    if alpha is not None:
        rows = t.pick(t.along_classes(alpha).expand_as(log_p)) * rows
    return t.weights * rows, t.weights


def dual_focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    gamma: float = 5.0,
    alpha: float | Sequence[float] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`DualFocalLoss`."""
    owner = "dual_focal_loss"
    _check(owner, gamma, alpha)
    check_reduction(owner, reduction)
    check_class_inputs(owner, logits, target, weight, mask, ignore_index, validate_args, soft=False)
    vector = class_alpha(owner, alpha, logits)
    rows, weights = _rows(logits, target, weight, mask, gamma=gamma, alpha=vector, ignore_index=ignore_index)
    return reduce(rows, weights, reduction)


class DualFocalLoss(Loss):
    r"""Focal loss that also widens the lead of the target over the class ranked next below it.

    Use it for calibration where the focal loss overshoots into under-confidence: the factor stays large while the
    runner-up q is close to the target. Where plain cross-entropy is not over-confident, as with noisy labels, expect no
    gain.

    .. math::

        \ell_i = -\alpha_{y_i} (1 - p_{i y_i} + q_i)^{\gamma} \log p_{i y_i}, \qquad
        q_i = \max \{ p_{ik} : p_{ik} < p_{i y_i} \}, \qquad p_i = \mathrm{softmax}(z_i)

    Args:
        gamma: Focusing exponent, >= 0; 0 gives cross-entropy. Default of the paper for CIFAR.
        alpha: Factor of each class, one entry a class; a single number a in [0, 1] means (1 - a, a) for two classes;
            None, as in the paper, for 1.
        ignore_index: Class index that is left out of value and count.
        reduction: ``"mean"`` over the targets that count (by their ``weight``, not by alpha), ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of target and weight.

    Shape:
        - logits: (N, C, ...) or (C,), floating
        - target: (N, ...), class indices
        - weight: (N, ...), >= 0, optional
        - mask: (N, ...), True where the target counts, optional
        - output: () or, for ``"none"``, (N, ...); float32, or float64 for float64 logits

    Example:
        >>> import torch
        >>> from trainkit.losses import DualFocalLoss
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
        >>> DualFocalLoss(gamma=5.0)(logits, torch.tensor([0, 2]))
        tensor(0.2359)

    Note:
        A class that ties with the target is not its runner-up, and q is 0 where no class lies below the target, so the
        loss jumps where a class overtakes the target. The gradient flows through p and q; of tied runners-up it takes
        the first. Soft targets have no runner-up and are refused. The power is taken in log space, so that value and
        gradient are finite at any logits; q and 1 - p below exp(-80) (fp64: exp(-700)) are constant. Where nothing
        counts the value is 0 with a live graph. Half precision and autocast: computed and returned in fp32. Under DDP,
        ``"mean"`` divides by the count of all ranks. Accumulated batches each divide by their own count. The authors'
        code has gamma 0 and the sum over the batch as defaults, and no alpha. The loss for segmentation of the same
        name (arXiv:1909.11932) is another.

    References:
        Tao, Dong and Xu, "Dual Focal Loss for Calibration", ICML 2023. arXiv:2305.13665
    """

    alpha: Tensor | float | None

    def __init__(
        self,
        gamma: float = 5.0,
        alpha: float | list[float] | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(reduction, sync, validate_args)
        _check("DualFocalLoss", gamma, alpha)
        self.gamma = gamma
        if alpha is None or isinstance(alpha, (int, float)):
            self.alpha = alpha
        else:
            self.register_constant("alpha", alpha)
        self.ignore_index = ignore_index

    def forward(
        self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        owner = "DualFocalLoss"
        check_class_inputs(owner, logits, target, weight, mask, self.ignore_index, self.validate_args, soft=False)
        rows, weights = _rows(
            logits,
            target,
            weight,
            mask,
            gamma=self.gamma,
            alpha=class_alpha(owner, self.alpha, logits),
            ignore_index=self.ignore_index,
        )
        return reduce_over_ranks(rows, weights, self.reduction, call=owner, sync=self.sync)
