"""Cross-entropy with label smoothing."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_flag, check_length, check_number, check_values, reject
from trainkit._core.loss import Loss
from trainkit._core.numerics import fp32_region
from trainkit._core.reduction import check_reduction, reduce
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks
from trainkit.losses.classification._common import check_class_inputs, class_targets

__all__ = ["SmoothedCrossEntropyLoss", "smoothed_cross_entropy_loss"]

SmoothingMode: TypeAlias = Literal["inclusive", "exclusive"]


def _check(
    owner: str,
    label_smoothing: float,
    smoothing_mode: str,
    class_weight: Sequence[float] | Tensor | None,
    weight_smoothing: bool,
) -> None:
    check_number(owner, "label_smoothing", label_smoothing, minimum=0, maximum=1)
    check_choice(owner, "smoothing_mode", smoothing_mode, ("inclusive", "exclusive"))
    check_flag(owner, weight_smoothing=weight_smoothing)
    if class_weight is not None and not torch.compiler.is_compiling():
        entries = torch.as_tensor(class_weight, dtype=torch.float64)
        if entries.dim() != 1:
            reject(owner, "class_weight", "have one entry for each class", entries)
        check_values(owner, ("class_weight", "be finite and >= 0", entries, entries.isfinite() & (entries >= 0)))


@fp32_region
def _rows(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    *,
    label_smoothing: float,
    smoothing_mode: str,
    class_weight: Tensor | None,
    weight_smoothing: bool,
    ignore_index: int,
) -> tuple[Tensor, Tensor]:
    """Weighted losses and weights, one a target."""
    t = class_targets(logits, target, weight, mask, ignore_index)
    per_class = -t.logits.log_softmax(t.dim)
    ones = torch.ones_like(t.logits)
    factors = ones if class_weight is None else t.along_classes(class_weight) * ones
    own = t.pick(factors)
    rows = t.pick(factors * per_class)
    if label_smoothing:
        classes = t.logits.shape[t.dim]
        # Exclusive smoothing gives eps / (C - 1) to each other class: inclusive smoothing with a larger eps.
        spread = label_smoothing * (classes / max(classes - 1, 1) if smoothing_mode == "exclusive" else 1)
        smooth = (factors * per_class).mean(t.dim) if weight_smoothing else own * per_class.mean(t.dim)
        rows = (1 - spread) * rows + spread * smooth
    return t.weights * rows, t.weights * own


def _class_vector(owner: str, class_weight: Sequence[float] | Tensor | None, logits: Tensor) -> Tensor | None:
    if class_weight is None:
        return None
    vector = torch.as_tensor(class_weight, dtype=torch.float64, device=logits.device)
    check_length(owner, "class_weight", vector, logits.shape[0 if logits.dim() == 1 else 1], "class")
    return vector


def smoothed_cross_entropy_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    label_smoothing: float = 0.1,
    smoothing_mode: SmoothingMode = "inclusive",
    class_weight: Sequence[float] | None = None,
    weight_smoothing: bool = False,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`SmoothedCrossEntropyLoss`."""
    owner = "smoothed_cross_entropy_loss"
    _check(owner, label_smoothing, smoothing_mode, class_weight, weight_smoothing)
    check_reduction(owner, reduction)
    check_class_inputs(owner, logits, target, weight, mask, ignore_index, validate_args)
    rows, weights = _rows(
        logits,
        target,
        weight,
        mask,
        label_smoothing=label_smoothing,
        smoothing_mode=smoothing_mode,
        class_weight=_class_vector(owner, class_weight, logits),
        weight_smoothing=weight_smoothing,
        ignore_index=ignore_index,
    )
    return reduce(rows, weights, reduction)


class SmoothedCrossEntropyLoss(Loss):
    r"""Cross-entropy against a target that is mixed with the uniform distribution.

    Use it as plain cross-entropy (``label_smoothing=0``) with exact degenerate cases and ranks, or to hold back
    over-confidence. Smoothed training ranks its errors worse by the usual softmax score; where predictions are to be
    rejected by confidence, normalise the logits first.

    .. math::

        \ell_i = -\sum_k \tilde t_{ik} \log p_{ik}, \qquad
        \tilde t_i = (1 - \epsilon)\, t_i + \tfrac{\epsilon}{C} \quad \text{(inclusive)}

    Exclusive smoothing leaves 1 - eps on the target and gives eps / (C - 1) to each other class.

    Args:
        label_smoothing: Mass that is taken from the target, in [0, 1].
        smoothing_mode: ``"inclusive"`` spreads the mass over all classes, the convention of PyTorch;
            ``"exclusive"`` over the others.
        class_weight: Weight of each class, one entry a class, >= 0; None for 1.
        weight_smoothing: False gives the whole smoothed loss of a row the weight of its target, so that class weights
            don't change the target distribution. True weighs each class's share of the smoothed target, as PyTorch
            does; the smoothed mass of a heavy class can then dominate.
        ignore_index: Class index that is left out of value and count.
        reduction: ``"mean"`` divides by the sum of the targets' weights, ``"sum"`` or ``"none"``.
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
        >>> from trainkit.losses import SmoothedCrossEntropyLoss
        >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
        >>> SmoothedCrossEntropyLoss(label_smoothing=0.1)(logits, torch.tensor([0, 2]))
        tensor(0.9273)

    Note:
        A one-hot soft target gives the value of the class index, class weights included: the mean divides by
        the sum of w_k t_ik, where PyTorch divides soft targets by N. With soft targets, class weights multiply the
        target's part and the smoothed mass carries the target's mean weight. Where nothing counts the value is 0 with
        a live graph. Half precision and autocast: computed and returned in fp32. Under DDP, ``"mean"`` divides by the
        weight of all ranks. Accumulated batches each divide by their own weight.

    References:
        Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for Computer Vision",
        CVPR 2016. arXiv:1512.00567
        Xia et al., "Towards Understanding Why Label Smoothing Degrades Selective Classification and How to Fix It",
        ICLR 2025. arXiv:2403.14715
    """

    class_weight: Tensor | None

    def __init__(
        self,
        label_smoothing: float = 0.1,
        smoothing_mode: SmoothingMode = "inclusive",
        class_weight: list[float] | None = None,
        weight_smoothing: bool = False,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(reduction, sync, validate_args)
        _check("SmoothedCrossEntropyLoss", label_smoothing, smoothing_mode, class_weight, weight_smoothing)
        self.label_smoothing = label_smoothing
        self.smoothing_mode: SmoothingMode = smoothing_mode
        self.register_constant("class_weight", class_weight)
        self.weight_smoothing = weight_smoothing
        self.ignore_index = ignore_index

    def forward(
        self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        owner = "SmoothedCrossEntropyLoss"
        check_class_inputs(owner, logits, target, weight, mask, self.ignore_index, self.validate_args)
        rows, weights = _rows(
            logits,
            target,
            weight,
            mask,
            label_smoothing=self.label_smoothing,
            smoothing_mode=self.smoothing_mode,
            class_weight=_class_vector(owner, self.class_weight, logits),
            weight_smoothing=self.weight_smoothing,
            ignore_index=self.ignore_index,
        )
        return reduce_over_ranks(rows, weights, self.reduction, call=owner, sync=self.sync)
