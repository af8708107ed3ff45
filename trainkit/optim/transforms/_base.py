"""What a transform is: a step of a chain of updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from trainkit.optim._tape import Ops, Register, Scalar, Update

__all__ = ["Fields", "Hyper", "Scalars", "Slot", "Transform", "indicator", "not_negative", "weight_sum"]

Hyper: TypeAlias = Mapping[str, Any]
"""Hyper-parameters of a group, by name."""

Scalars: TypeAlias = Mapping[str, Scalar]
"""Numbers of a tape, by name."""


@dataclass(frozen=True)
class Slot:
    """A tensor that a transform keeps for each parameter, zeros at first.

    Args:
        name: Its key in the state.
        kind: What it holds: a moment of the gradient, or something else. A change of basis treats these differently.
        shape: ``"parameter"`` for one entry for each of the parameter's, ``"scalar"`` for a single one.
    """

    name: str
    kind: Literal["first", "second", "other"]
    shape: Literal["parameter", "scalar"] = "parameter"


@dataclass
class Fields:
    """What a tape works on.

    Args:
        p: The parameter, before the step.
        g: The gradient of what is minimised; never written.
        update: The update so far; at first the gradient.
        state: The slots, by name.
        denominator: What :class:`Divide` divides by; a transform before it sets it.
        factor: What the quotient is then multiplied by.
    """

    p: Register
    g: Register
    update: Update
    state: Mapping[str, Register]
    denominator: Register | None = None
    factor: Scalar = 1.0


class Transform(Protocol):
    """A step of a chain: a frozen dataclass whose fields are hyper-parameters with their defaults.

    The fields go into the parameter groups under their names, and what is there counts. Every chain also has ``lr``,
    ``betas``, ``eps`` and ``weight_decay``.
    """

    def check(self, owner: str, hyper: Hyper) -> None:
        """Raise ValueError or TypeError for hyper-parameters out of range."""

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        """The state that the transform keeps."""

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        """The numbers of the tape at a step, which counts from 1; Python floats, or tensors if ``step`` is one."""

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        """Read and write the fields; of ``hyper`` only what chooses between operations, the rest from ``numbers``."""


def weight_sum(beta: float, step: Scalar) -> Scalar:
    """Sum of the weights of an exponential average after ``step`` steps, which started at zero."""
    return 1.0 - beta**step


def indicator(condition: bool | Tensor) -> Scalar:
    """1 where the condition holds, else 0."""
    return condition.to(torch.float64) if isinstance(condition, Tensor) else float(condition)


def not_negative(value: Scalar) -> Scalar:
    """The value, or 0 if it is below."""
    return value.clamp_min(0.0) if isinstance(value, Tensor) else max(value, 0.0)
