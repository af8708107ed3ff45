"""What the metrics of predicted distributions and quantiles share: checked inputs, and means over rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_flag,
    check_floating,
    check_integer,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.metric import StreamingMetric
from trainkit._core.numerics import sum_dtype

__all__ = [
    "Inputs",
    "RowScore",
    "Sums",
    "check_levels",
    "check_power",
    "check_quantiles",
    "checked_inputs",
    "crossed",
    "summed",
    "told",
]

Rule: TypeAlias = tuple[str, str, Tensor, Tensor]

SUM_SLACK = 1e-2
"""How far from one the probabilities of components may sum: what rounding to bf16 can do."""


class Inputs(NamedTuple):
    """Inputs that keep the rules, in the precision of sums.

    Args:
        target: (M,).
        weight: (M,), one where no weight is given.
        given: The other tensors by name, (M,) or, for those with a dimension of their own, (M, K).
    """

    target: Tensor
    weight: Tensor
    given: dict[str, Tensor]


class Sums(NamedTuple):
    """Weighted sums over rows.

    Args:
        totals: (P,).
        weight_sum: Sum of the weights, ().
    """

    totals: Tensor
    weight_sum: Tensor


def _check_shapes(
    owner: str, target: Tensor, weight: Tensor | None, single: Mapping[str, Tensor], several: Mapping[str, Tensor]
) -> None:
    check_floating(owner, **single, **several, target=target)
    if target.dim() == 0:
        reject(owner, "target", "have shape (N, ...)", target)
    check_same_shape(owner, "target", target.shape, **single, weight=weight)
    for position, (name, value) in enumerate(several.items()):
        if position:
            first = next(iter(several))
            check_same_shape(owner, first, several[first].shape, **{name: value})
        elif value.dim() < 2 or (*value.shape[:1], *value.shape[2:]) != tuple(target.shape) or not value.shape[1]:
            shape = ", ".join(map(str, (target.shape[0], "K", *target.shape[1:])))
            reject(owner, name, f"have shape ({shape}) for some K > 0, to match target", value)


def _value_rules(tensors: Mapping[str, Tensor], weight: Tensor | None) -> list[Rule]:
    rules: list[Rule] = []
    for name, value in tensors.items():
        if name == "std":
            rules.append((name, "be > 0 and finite", value, value.isfinite() & (value > 0)))
        else:
            rules.append((name, "be finite", value, value.isfinite()))
    if "probs" in tensors:
        probs = tensors["probs"]
        sums = probs.sum(1, dtype=sum_dtype(probs.device))
        rules.append(("probs", "hold probabilities >= 0", probs, probs >= 0))
        rules.append(("probs", "hold probabilities that sum to 1", sums, (sums - 1).abs() <= SUM_SLACK))
    if weight is not None:
        rules.append(("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))
    return rules


def checked_inputs(
    owner: str,
    target: Tensor,
    weight: Tensor | None,
    validate_args: bool,
    *,
    single: Mapping[str, Tensor] | None = None,
    several: Mapping[str, Tensor] | None = None,
) -> Inputs:
    """Check the inputs and bring them into the form of :class:`Inputs`.

    Args:
        owner: Class or function that errors name.
        target: (N, ...).
        weight: One number for each target, >= 0.
        validate_args: Whether values are checked.
        single: Tensors of the shape of the target by name; a ``std`` is above zero.
        several: Tensors (N, K, ...) of one shape by name; ``probs`` are probabilities over dimension 1.
    """
    single, several = single or {}, several or {}
    _check_shapes(owner, target, weight, single, several)
    if values_checked(validate_args):
        check_values(owner, *_value_rules({**single, **several, "target": target}, weight))
    dtype = sum_dtype(target.device)
    given = {name: value.to(dtype).reshape(-1) for name, value in single.items()}
    for name, value in several.items():
        given[name] = value.to(dtype).movedim(1, -1).reshape(-1, value.shape[1])
    if "probs" in given:
        given["probs"] = given["probs"] / given["probs"].sum(1, keepdim=True)
    weights = torch.ones_like(target, dtype=dtype) if weight is None else weight.to(dtype)
    return Inputs(target.to(dtype).reshape(-1), weights.reshape(-1), given)


def check_levels(owner: str, levels: Sequence[float]) -> tuple[float, ...]:
    """Require probabilities in ascending order, and give them as a tuple."""
    if not isinstance(levels, (list, tuple)):
        reject(owner, "levels", "be a list of numbers", levels, TypeError)
    if not levels:
        reject(owner, "levels", "hold one number at least", levels)
    for level in levels:
        check_number(owner, "levels", level, minimum=0, open_minimum=True, maximum=1, open_maximum=True)
    if list(levels) != sorted(set(levels)):
        reject(owner, "levels", "ascend", levels)
    return tuple(levels)


def check_quantiles(owner: str, quantiles: Tensor, levels: Sequence[float]) -> None:
    """Require one quantile a level in dimension 1."""
    check_floating(owner, quantiles=quantiles)
    if quantiles.dim() < 2 or quantiles.shape[1] != len(levels):
        reject(owner, "quantiles", f"have shape (N, {len(levels)}, ...), one for each level", quantiles)


def check_power(owner: str, p: int) -> None:
    """Require an exponent of one or two."""
    check_integer(owner, "p", p, minimum=1)
    if p > 2:
        reject(owner, "p", "be 1 or 2", p)


def crossed(quantiles: Tensor) -> Tensor:
    """Whether some quantile of a row is below that of a lower level, (M,) for (M, Q)."""
    return (quantiles.diff(dim=1) < 0).any(1)


def summed(rows: Sequence[Tensor], weight: Tensor) -> Sums:
    """Weighted sums of numbers that rows have, each (M,)."""
    return Sums((torch.stack([row.to(weight.dtype) for row in rows]) * weight).sum(1), weight.sum())


def told(names: Sequence[str], values: Tensor, return_parts: bool) -> Tensor | dict[str, Tensor]:
    """The first of the values, or all by name."""
    return dict(zip(names, values, strict=True)) if return_parts else values[0]


class RowScore(StreamingMetric):
    """A metric whose value is made of means over rows.

    Args:
        size: How many numbers are summed.
        return_parts: Whether the value is a dict.
        validate_args: Whether values of the inputs are checked.
        settings: What the sums depend on.
    """

    is_differentiable = False
    higher_is_better = False

    totals: Tensor
    weight_sum: Tensor

    def __init__(self, size: int, return_parts: bool, validate_args: bool, *settings: object) -> None:
        super().__init__(validate_args)
        check_flag(type(self).__name__, return_parts=return_parts)
        self.return_parts = return_parts
        self.add_sums("totals", shape=(size,))
        self.add_sums("weight_sum")
        self.tell_apart(*settings)

    def add(self, sums: Sums) -> None:
        """Add the sums of a batch."""
        self.totals = self.totals + sums.totals
        self.weight_sum = self.weight_sum + sums.weight_sum

    def means(self) -> Tensor:
        """Means of what was summed, with a warning where nothing counted."""
        return self.mean(self.totals, self.weight_sum)
