"""What becomes of the predicted class when predictions are changed."""

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import check_floating, check_same_shape
from trainkit._core.numerics import fp32_region
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Checked, Task, by_label, checked, flat

__all__ = ["PARTS", "Tie", "change_sums"]

Tie: TypeAlias = Literal["keep", "first"]

PARTS = ("changed", "right_to_wrong", "wrong_to_right", "wrong_to_wrong")


def _by_class(inputs: Checked, task: Task, input_kind: InputKind) -> Tensor:
    """Values whose largest is predicted, (M, K): given ones, which a softmax could round to ties."""
    if inputs.rows:
        return flat(inputs.logits)
    values = by_label(inputs.logits, task)
    even = {"logits": 0.0, "probs": 0.5, "log_probs": math.log(0.5)}[input_kind]
    return torch.stack([torch.full_like(values, even), values], 1)


@fp32_region
def change_sums(
    owner: str,
    logits: Tensor,
    new_logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    task: Task,
    tie: Tie,
    input_kind: InputKind,
    ignore_index: int,
    validate_args: bool,
) -> tuple[Tensor, Tensor]:
    """Weights of the :data:`PARTS`, (4,), and of all rows; checks all inputs on the way."""
    before = checked(owner, logits, target, weight, task, input_kind, ignore_index, validate_args)
    check_floating(owner, new_logits=new_logits)
    check_same_shape(owner, "logits", logits.shape, new_logits=new_logits)
    after = checked(
        owner, new_logits, target, weight, task, input_kind, ignore_index, validate_args, argument="new_logits"
    )
    old = _by_class(before, task, input_kind).argmax(1, keepdim=True)
    values = _by_class(after, task, input_kind)
    largest, new = values.max(1, keepdim=True)
    if tie == "keep":
        new = torch.where(values.gather(1, old) == largest, old, new)
    of_weight = torch.where((old != new)[:, 0], before.weight, 0)
    was, now = (_hits(before.target, top).to(of_weight.dtype) for top in (old, new))
    shares = torch.stack([torch.ones_like(was), was, now, 1 - (was + now)])
    return (of_weight * shares).sum(1), before.weight.sum()


def _hits(target: Tensor, top: Tensor) -> Tensor:
    """Whether the predicted class is right, or its probability in the target, (M,)."""
    return target.gather(1, top)[:, 0] if target.is_floating_point() else target == top[:, 0]
