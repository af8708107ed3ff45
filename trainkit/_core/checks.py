"""Argument checks: the only place that words errors, as one sentence with owner, argument, rule and value."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

__all__ = [
    "check_choice",
    "check_flag",
    "check_floating",
    "check_integer",
    "check_length",
    "check_number",
    "check_same_shape",
    "check_values",
    "describe",
    "reject",
    "values_checked",
]


def describe(value: object) -> str:
    """Short text of a value for an error message; tensors are shown as shape and dtype."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def reject(owner: str, argument: str, rule: str, value: object, error: type[Exception] = ValueError) -> NoReturn:
    """Raise ``error`` with the sentence "owner: argument must rule, got value"."""
    raise error(f"{owner}: {argument} must {rule}, got {describe(value)}")


def check_number(
    owner: str,
    argument: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    open_minimum: bool = False,
    open_maximum: bool = False,
) -> None:
    """Require a finite real number inside the interval."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        reject(owner, argument, "be a number", value, TypeError)
    low = value > minimum if open_minimum else value >= minimum
    high = value < maximum if open_maximum else value <= maximum
    if low and high and math.isfinite(value):
        return
    bounds = []
    if minimum > -math.inf:
        bounds.append(f"{'>' if open_minimum else '>='} {minimum:g}")
    if maximum < math.inf:
        bounds.append(f"{'<' if open_maximum else '<='} {maximum:g}")
    reject(owner, argument, "be " + (" and ".join(bounds) or "finite"), value)


def check_integer(owner: str, argument: str, value: Any, *, minimum: int | None = None) -> None:
    """Require an ``int`` (no bool) that is at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        reject(owner, argument, "be an integer", value, TypeError)
    if minimum is not None and value < minimum:
        reject(owner, argument, f"be >= {minimum}", value)


def check_flag(owner: str, **flags: Any) -> None:
    """Require each keyword to be True or False."""
    for argument, value in flags.items():
        if not isinstance(value, bool):
            reject(owner, argument, "be True or False", value, TypeError)


def check_choice(owner: str, argument: str, value: Any, choices: Iterable[str]) -> None:
    """Require one of ``choices``."""
    allowed = tuple(choices)
    if value not in allowed:
        reject(owner, argument, f"be one of {', '.join(map(repr, allowed))}", value)


def check_length(owner: str, argument: str, value: Sequence[float] | Tensor, length: int, of: str) -> None:
    """Require ``value`` to hold one entry for each of the ``length`` things that ``of`` names."""
    if len(value) != length:
        raise ValueError(f"{owner}: {argument} must have {length} entries, one for each {of}, got {len(value)}")


def check_floating(owner: str, **tensors: Any) -> None:
    """Require each keyword to be a tensor of real floating dtype."""
    for argument, value in tensors.items():
        if not isinstance(value, Tensor):
            reject(owner, argument, "be a tensor", value, TypeError)
        if not value.is_floating_point():
            reject(owner, argument, "be a floating point tensor", value, TypeError)


def check_same_shape(owner: str, reference: str, shape: Sequence[int], **tensors: Tensor | None) -> None:
    """Require each keyword that is given to be a tensor of exactly ``shape``; nothing is broadcast."""
    for argument, value in tensors.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            reject(owner, argument, "be a tensor", value, TypeError)
        if tuple(value.shape) != tuple(shape):
            reject(owner, argument, f"have shape {tuple(shape)} to match {reference}", value)


def values_checked(validate_args: bool) -> bool:
    """Whether value checks run: never while compiling, since they read tensors on the host."""
    return validate_args and not torch.compiler.is_compiling()


def check_values(owner: str, *rules: tuple[str, str, Tensor, Tensor]) -> None:
    """Require every entry of each ``(argument, rule, values, valid)`` to be valid, with one read from the device.

    Args:
        owner: Class or function that the message names.
        rules: Argument, rule in words, the tensor and a boolean tensor of the same shape.
    """
    passed = torch.stack([valid.all() for *_, valid in rules]).tolist()
    for (argument, rule, values, valid), ok in zip(rules, passed, strict=True):
        if not ok:
            position = tuple(torch.nonzero(~valid)[0].tolist())
            raise ValueError(f"{owner}: {argument} must {rule}, got {values[position].item()} at index {position}")
