"""What metrics and calibrators share: the form that predictions and targets of every task are brought into."""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from trainkit._core.checks import (
    check_choice,
    check_floating,
    check_integer,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.numerics import fp32_region, sum_dtype
from trainkit._core.typing import InputKind
from trainkit.calibration._value_rules import (
    SUM_SLACK,
    Rule,
    Tops,
    fine_distributions,
    plainly_fine,
    prediction_rules,
    value_rules,
)

__all__ = [
    "BLOCK",
    "FLOOR",
    "Checked",
    "Predictions",
    "Task",
    "blocks",
    "by_label",
    "canonicalize",
    "canonicalized_blocks",
    "check_classes",
    "check_task",
    "checked",
    "flat",
]

Task: TypeAlias = Literal["binary", "multiclass", "multilabel"]

BLOCK = 2**18
"""Predictions that are brought into form at once: a large batch takes the memory of a few of these, not of copies."""

FLOOR = 1e-12
"""Least probability that has a logarithm of its own."""

T = TypeVar("T")


class Predictions(NamedTuple):
    """Predictions and targets of any task as M rows over K classes; binary and multilabel targets are rows of two.

    Args:
        values: Probabilities or their logarithms, (M, K), fp32 or fp64; uniform where the target is ignored.
        logarithmic: Whether ``values`` are logarithms.
        target: Class indices (M,), zero where ignored, or class probabilities (M, K).
        weight: (M,) in the dtype of sums, zero where the target is ignored.
        tops: Largest of each row of ``values`` and whether it is the target's, where asked for and found on the way.
    """

    values: Tensor
    logarithmic: bool
    target: Tensor
    weight: Tensor
    tops: Tops | None = None

    @property
    def probs(self) -> Tensor:
        """Probabilities, (M, K)."""
        return self.values.exp() if self.logarithmic else self.values

    @property
    def target_probs(self) -> Tensor:
        """The target as probabilities, (M, K)."""
        if self.target.is_floating_point():
            return self.target
        return torch.zeros_like(self.values).scatter(1, self.target.unsqueeze(1), 1)


def check_task(owner: str, task: str, input_kind: str, ignore_index: int) -> None:
    """Check the hyper-parameters that say how inputs are read."""
    check_choice(owner, "task", task, ("binary", "multiclass", "multilabel"))
    check_choice(owner, "input_kind", input_kind, ("logits", "probs", "log_probs"))
    check_integer(owner, "ignore_index", ignore_index)


def check_classes(owner: str, logits: Tensor, task: str, num_classes: int | None) -> None:
    """Require the number of classes that was told, if one was."""
    if num_classes is not None and task != "binary" and logits.shape[1] != num_classes:
        reject(owner, "logits", f"have shape (N, {num_classes}, ...), where num_classes={num_classes}", logits)


def flat(values: Tensor) -> Tensor:
    """(N, K, ...) as (M, K)."""
    return values if values.dim() == 2 else values.movedim(1, -1).reshape(-1, values.shape[1])


def _neutral(input_kind: InputKind, classes: int) -> float:
    """What stands in for an ignored prediction: a finite value that every check lets pass."""
    if input_kind == "logits":
        return 0.0
    return 1 / classes if input_kind == "probs" else -math.log(classes)


def _checked_shapes(owner: str, logits: Tensor, target: Tensor, task: Task) -> tuple[Tensor, bool]:
    """Check the shapes; give the logits, one single class squeezed out, and whether dimension 1 is a distribution."""
    check_floating(owner, logits=logits)
    if not isinstance(target, Tensor):
        reject(owner, "target", "be a tensor", target, TypeError)
    if task == "multiclass":
        if logits.dim() < 2:
            reject(owner, "logits", "have shape (N, C, ...)", logits)
        if target.is_floating_point():
            check_same_shape(owner, "logits, since it holds probabilities", logits.shape, target=target)
        else:
            positions = (*logits.shape[:1], *logits.shape[2:])
            check_same_shape(owner, "logits without the class dimension", positions, target=target)
        return logits, True
    if logits.dim() == 0 or (task == "multilabel" and logits.dim() < 2):
        reject(owner, "logits", f"have shape {'(N, ...)' if task == 'binary' else '(N, C, ...)'}", logits)
    with_classes = task == "binary" and logits.dim() == target.dim() + 1 and logits.shape[1] in (1, 2)
    check_same_shape(
        owner, "logits", (*logits.shape[:1], *logits.shape[2:]) if with_classes else logits.shape, target=target
    )
    if with_classes and logits.shape[1] == 1:
        return logits.squeeze(1), False
    return logits, with_classes


def _target_rules(target: Tensor, valid: Tensor, task: Task, classes: int, ignore_index: int) -> list[Rule]:
    """Rules for the values of targets; those that are not ``valid`` are ignored."""
    soft = target.is_floating_point()
    if task == "multiclass" and soft:
        sums = target.sum(1)
        return [
            ("target", "hold probabilities >= 0", target, target >= 0),
            ("target", "hold probabilities that sum to 1", sums, (sums - 1).abs() <= SUM_SLACK),
        ]
    top = classes if task == "multiclass" else 2
    inside = (target >= 0) & (target <= 1 if soft else target < top)
    allowed = f"be in [0, {'1]' if soft else f'{top})'} or equal ignore_index={ignore_index}"
    return [("target", allowed, target, inside | ~valid)]


def _log_pair(values: Tensor, input_kind: InputKind) -> Tensor:
    """Values of class 1, (M,), as those of both classes, (M, 2); logarithms unless they are probabilities."""
    if input_kind == "logits":
        return torch.stack([F.logsigmoid(-values), F.logsigmoid(values)], 1)
    if input_kind == "probs":
        return torch.stack([1 - values, values], 1)
    return torch.stack([(-values.clamp_max(0).expm1()).log(), values], 1)


def _over_classes(target: Tensor, task: Task) -> bool:
    """Whether the target holds a distribution over the classes in dimension 1."""
    return task == "multiclass" and target.is_floating_point()


def _valid(target: Tensor, task: Task, ignore_index: int) -> Tensor:
    """True for each target that is not ignored."""
    if _over_classes(target, task):
        return torch.ones_like(target.sum(1), dtype=torch.bool)
    return target != ignore_index


def _plain_indices(logits: Tensor, target: Tensor, weight: Tensor | None, task: Task, ignore_index: int) -> bool:
    """Whether the target holds class indices, of which none is ignored and none is wrong; False says nothing."""
    if weight is not None or task != "multiclass" or target.is_floating_point() or not target.numel():
        return False
    if target.device.type != "cpu" or torch.compiler.is_compiling() or 0 <= ignore_index < logits.shape[1]:
        return False
    low, high = target.aminmax()
    return low.item() >= 0 and high.item() < logits.shape[1]


class Checked(NamedTuple):
    """Inputs that keep the rules.

    Args:
        logits: Predictions in the shape that they came in, neutral where the target is ignored.
        rows: Whether those over dimension 1 are one distribution.
        target: As in :class:`Predictions`.
        weight: As in :class:`Predictions`.
        tops: As in :class:`Predictions`.
    """

    logits: Tensor
    rows: bool
    target: Tensor
    weight: Tensor
    tops: Tops | None = None


def checked(
    owner: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    task: Task,
    input_kind: InputKind,
    ignore_index: int,
    validate_args: bool,
    argument: str = "logits",
    with_tops: bool = False,
) -> Checked:
    """Check the inputs, which :func:`canonicalize` describes; ``argument`` names the predictions in errors."""
    logits, rows = _checked_shapes(owner, logits, target, task)
    target = target if target.is_floating_point() else target.long()
    if _plain_indices(logits, target, weight, task, ignore_index):
        tops: Tops | None = None
        if values_checked(validate_args):
            if with_tops and input_kind == "probs" and logits.dim() == 2 and logits.device == target.device:
                fine, tops = fine_distributions(logits, target)
            else:
                fine = plainly_fine(logits, input_kind, rows)
            if not fine:
                check_values(owner, *value_rules(logits, input_kind, rows, argument))
        return Checked(logits, rows, target.reshape(-1), torch.ones(target.numel(), dtype=torch.float64), tops)
    valid = _valid(target, task, ignore_index)
    check_same_shape(owner, "the targets", valid.shape, weight=weight)
    neutral = _neutral(input_kind, logits.shape[1] if rows else 2)
    # Reading the device would cost more than the copy, but on the CPU.
    if logits.device.type != "cpu" or torch.compiler.is_compiling() or not valid.all():
        logits = torch.where(valid.unsqueeze(1) if rows else valid, logits, neutral)
    if values_checked(validate_args):
        rules = prediction_rules(logits, input_kind, rows, argument)
        rules += _target_rules(target, valid, task, logits.shape[1] if rows else 2, ignore_index)
        if weight is not None:
            rules.append(("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))
        check_values(owner, *rules)
    weights = valid if weight is None else torch.where(valid, weight, 0)
    weights = by_label(weights, task).to(sum_dtype(weights.device))
    return Checked(logits, rows, _flat_target(target, valid, task, logits.dtype), weights)


@fp32_region
def canonicalize(
    owner: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    task: Task,
    input_kind: InputKind,
    ignore_index: int,
    validate_args: bool,
    with_tops: bool = False,
) -> Predictions:
    """Check the inputs of a metric and bring them into the form of :class:`Predictions`.

    Args:
        owner: Class or function that errors name.
        logits: Logits, or what ``input_kind`` says: (N, C, ...) for multiclass and multilabel; for binary the shape of
            the target, or that with a dimension 1 of one or two classes.
        target: Class indices (N, ...) or probabilities (N, C, ...) for multiclass; else zeros and ones, or
            probabilities of class 1, of shape (N, ...) for binary and (N, C, ...) for multilabel.
        weight: One number for each target, >= 0.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        input_kind: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out, whatever is predicted there; probabilities over classes have none.
        validate_args: Whether values are checked.
        with_tops: Whether ``tops`` are wanted, where the check comes by them.
    """
    logits, rows, targets, weights, tops = checked(
        owner, logits, target, weight, task, input_kind, ignore_index, validate_args, with_tops=with_tops
    )
    if rows:
        values = flat(logits).log_softmax(1) if input_kind == "logits" else flat(logits)
    else:
        values = _log_pair(by_label(logits, task), input_kind)
    return Predictions(values, input_kind != "probs", targets, weights, tops)


def _flat_target(target: Tensor, valid: Tensor, task: Task, dtype: torch.dtype) -> Tensor:
    """Class indices (M,) or class probabilities (M, K)."""
    if _over_classes(target, task):
        return flat(target).to(dtype)
    single = by_label(torch.where(valid, target, 0), task)
    return torch.stack([1 - single, single], 1).to(dtype) if target.is_floating_point() else single


def by_label(values: Tensor, task: Task) -> Tensor:
    """One entry a target, (M,); the labels of a multilabel target follow one another."""
    return flat(values).reshape(-1) if task == "multilabel" else values.reshape(-1)


def canonicalized_blocks(
    owner: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    task: Task,
    input_kind: InputKind,
    ignore_index: int,
    validate_args: bool,
    with_tops: bool = False,
) -> Iterator[Predictions]:
    """:func:`canonicalize` of the batch in blocks of rows, so that no copy of a large batch is made.

    Blocks are of whole entries of dimension 0. An error is that of the whole batch, with positions in it.
    """

    def form(logits: Tensor, target: Tensor, weight: Tensor | None) -> Predictions:
        return canonicalize(
            owner,
            logits,
            target,
            weight,
            task=task,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=validate_args,
            with_tops=with_tops,
        )

    # Probabilities are taken as they are, so that only what there is of a target takes memory.
    as_they_are = input_kind == "probs" and task == "multiclass" and logits.dtype in (torch.float32, torch.float64)
    return blocks(form, logits, target, weight, size=target if as_they_are else None)


def blocks(
    form: Callable[[Tensor, Tensor, Tensor | None], T],
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    size: Tensor | None = None,
) -> Iterator[T]:
    """``form`` of blocks of whole entries of dimension 0; of all at once where that is little or fits no rule.

    ``size`` is the tensor of which a block has no more than ``BLOCK`` numbers; the logits if None.
    """
    given = [value for value in (logits, target, weight) if value is not None]
    sliced = all(isinstance(value, Tensor) and value.dim() and len(value) == len(logits) for value in given)
    count = logits.numel() if size is None else size.numel()
    if not sliced or count <= BLOCK:
        yield form(logits, target, weight)
        return
    step = max(1, BLOCK * len(logits) // count)
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        try:
            block = form(logits[rows], target[rows], None if weight is None else weight[rows])
        except (TypeError, ValueError):
            form(logits, target, weight)
            raise
        yield block
