"""What the properties of losses share: the call, its gradients, its inputs."""

from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from trainkit.testing.case import Case
from trainkit.testing.faults import Fault, compare
from trainkit.testing.spec import LossSpec

__all__ = ["LossCase", "call", "cast", "per_target", "same_to_rounding", "scalar", "single_row"]

LossCase: TypeAlias = Case[LossSpec]


def call(case: LossCase, module: Any, inputs: dict[str, Any]) -> Tensor:
    """Value of one call, which must be a tensor."""
    value = module(**inputs)
    if not isinstance(value, Tensor):
        raise Fault("the result of forward", "a tensor", f"{type(value).__name__} {value!r}")
    return value


def scalar(case: LossCase, dtype: torch.dtype = torch.float64) -> Any:
    """The part for inputs of ``dtype``, reducing to a number if it can."""
    changes = {"reduction": "mean"} if case.has("reduction") and case.setting("reduction") == "none" else {}
    module = case.make(**changes)
    return module.to(dtype) if isinstance(module, nn.Module) else module


def single_row(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row of every tensor."""
    return {k: v[row : row + 1] for k, v in inputs.items()}


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs with their floating point tensors in ``dtype``."""
    return {k: v.to(dtype) if torch.is_floating_point(v) else v for k, v in inputs.items()}


def per_target(case: LossCase, inputs: dict[str, Any], target: str) -> Tensor:
    """A float tensor of ones with one entry for each target: that is the shape of unreduced rows."""
    rows = case.make(reduction="none")(**inputs) if case.has("reduction") else inputs[target]
    return torch.ones(rows.shape, dtype=torch.float64)


def same_to_rounding(
    case: LossCase,
    what: str,
    module: Any,
    inputs: dict[str, Any],
    exact: Any,
    rtol: float,
    context: AbstractContextManager[Any] | None = None,
) -> None:
    """Compare value and gradients of a call, made in ``context``, with the ``exact`` ones."""
    value, grads = case.value_and_gradients(module, inputs, context)
    compare(f"value {what}", value, exact[0], rtol=rtol, atol=_rounding(exact[0], rtol))
    for name, grad in grads.items():
        expected = exact[1][name]
        compare(f"gradient of {name} {what}", grad, expected, rtol=rtol, atol=_rounding(expected, rtol))


def _rounding(expected: Tensor | None, rtol: float) -> float:
    """What rounding does to a small entry beside large ones, which are sums of the same terms."""
    largest = float(expected.abs().max()) if expected is not None and expected.numel() else 0.0
    return rtol / 100 * max(1.0, largest)
