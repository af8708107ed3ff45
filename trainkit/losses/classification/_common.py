"""What the losses on class logits share: checks, factors of classes, ignored targets, hard and soft targets."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
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
from trainkit._core.reduction import target_weights

__all__ = ["ClassTargets", "check_alpha", "check_class_inputs", "check_weighting", "class_alpha", "class_targets"]

PROBABILITY_SLACK = 1e-2
"""How far from one a row of probabilities may sum: what rounding to bf16 can do."""


class ClassTargets(NamedTuple):
    """Inputs of a loss on class logits, ready for arithmetic.

    Args:
        logits: In fp32 or fp64; zero where the target does not count, so that nothing there reaches a gradient.
        target: Class indices (N, ...), zero where ignored, or probabilities (N, C, ...).
        soft: Whether the target holds probabilities.
        dim: The class dimension.
        weights: Weight of each target, (N, ...); zero where it does not count.
    """

    logits: Tensor
    target: Tensor
    soft: bool
    dim: int
    weights: Tensor

    def pick(self, per_class: Tensor) -> Tensor:
        """Of values for each class take the target's, or their mean under a soft target."""
        if self.soft:
            return (self.target * per_class).sum(self.dim)
        return per_class.gather(self.dim, self.target.unsqueeze(self.dim)).squeeze(self.dim)

    def along_classes(self, vector: Tensor) -> Tensor:
        """A vector with one entry a class, shaped to broadcast against the logits."""
        shape = [1] * self.logits.dim()
        shape[self.dim] = -1
        return vector.to(self.logits.dtype).view(shape)


def check_weighting(
    owner: str, reference: str, shape: tuple[int, ...], weight: Tensor | None, mask: Tensor | None
) -> list[tuple[str, str, Tensor, Tensor]]:
    """Check shape and dtype of ``weight`` and ``mask``; give the rules for the values of the weights."""
    check_same_shape(owner, reference, shape, weight=weight, mask=mask)
    if mask is not None and mask.dtype != torch.bool:
        reject(owner, "mask", "be a boolean tensor, True where a target counts", mask, TypeError)
    if weight is None:
        return []
    check_floating(owner, weight=weight)
    return [("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0))]


def check_class_inputs(
    owner: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    ignore_index: int,
    validate_args: bool,
    *,
    soft: bool = True,
) -> None:
    """Check logits of classes against indices or, if ``soft``, probabilities."""
    check_floating(owner, logits=logits)
    if not isinstance(target, Tensor):
        reject(owner, "target", "be a tensor", target, TypeError)
    if logits.dim() == 0:
        reject(owner, "logits", "have shape (N, C, ...) or (C,)", logits)
    dim = 0 if logits.dim() == 1 else 1
    positions = tuple(logits.shape[:dim]) + tuple(logits.shape[dim + 1 :])
    if target.dtype == torch.bool or (target.is_floating_point() and not soft):
        reject(owner, "target", f"hold class indices{' or probabilities' if soft else ''}", target, TypeError)
    rules = check_weighting(owner, "the targets", positions, weight, mask)
    if target.is_floating_point():
        check_same_shape(owner, "logits, since it holds probabilities", logits.shape, target=target)
        sums = target.sum(dim)
        rules += [
            ("target", "hold probabilities >= 0", target, target >= 0),
            ("target", "hold probabilities that sum to 1", sums, (sums - 1).abs() <= PROBABILITY_SLACK),
        ]
    else:
        check_same_shape(owner, "logits without the class dimension", positions, target=target)
        classes = logits.shape[dim]
        valid = ((target >= 0) & (target < classes)) | (target == ignore_index)
        rules.append(("target", f"be in [0, {classes}) or equal ignore_index={ignore_index}", target, valid))
    if values_checked(validate_args):
        check_values(owner, *rules)


def check_alpha(owner: str, alpha: float | Sequence[float] | Tensor | None) -> None:
    """Check a factor for each class, or one number for two classes."""
    if isinstance(alpha, (int, float)):
        check_number(owner, "alpha", alpha, minimum=0, maximum=1)
    elif alpha is not None:
        entries = torch.as_tensor(alpha, dtype=torch.float64)
        if entries.dim() != 1:
            reject(owner, "alpha", "be a number or have one entry for each class", entries)
        if not torch.compiler.is_compiling():
            check_values(owner, ("alpha", "be finite and >= 0", entries, entries.isfinite() & (entries >= 0)))


def class_alpha(owner: str, alpha: float | Sequence[float] | Tensor | None, logits: Tensor) -> Tensor | None:
    """Alpha as a vector with one entry a class; a single number is that of class 1 of two."""
    if alpha is None:
        return None
    classes = logits.shape[0 if logits.dim() == 1 else 1]
    if isinstance(alpha, (int, float)):
        if classes != 2:
            reject(owner, "alpha", f"have {classes} entries, one for each class", alpha)
        alpha = (1 - alpha, alpha)
    vector = torch.as_tensor(alpha, dtype=torch.float64, device=logits.device)
    check_length(owner, "alpha", vector, classes, "class")
    return vector


def class_targets(
    logits: Tensor, target: Tensor, weight: Tensor | None, mask: Tensor | None, ignore_index: int
) -> ClassTargets:
    """Put the inputs of a loss on class logits in the form of :class:`ClassTargets`."""
    dim = 0 if logits.dim() == 1 else 1
    soft = target.is_floating_point()
    like = logits.select(dim, 0) if logits.shape[dim] else logits.sum(dim)
    valid = None if soft else target != ignore_index
    weights = target_weights(like.detach(), valid, weight, mask)
    counts = mask if valid is None else (valid if mask is None else valid & mask)
    if counts is not None:
        logits = torch.where(counts.unsqueeze(dim), logits, 0)
    if soft:
        return ClassTargets(logits, target.to(logits.dtype), True, dim, weights)
    hard = target.long()
    return ClassTargets(logits, hard if valid is None else torch.where(valid, hard, 0), False, dim, weights)
