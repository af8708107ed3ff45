"""What a property says when it does not hold, and the one comparison that all properties use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Fault", "as_tensor", "compare", "refusal", "require", "same_shape_and_dtype"]


@dataclass
class Fault(Exception):  # noqa: N818 - it is a finding about someone's part, not an error of the caller
    """A property that does not hold: what was looked at, what was expected and what came.

    ``dtype``, ``shapes`` and ``inputs`` are filled in by the runner from the inputs drawn last.
    """

    what: str
    expected: Any
    got: Any
    rank: int | None = None
    ranks: int = 1
    dtype: str | None = None
    shapes: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        where = f"rank {'0' if self.rank is None else self.rank} of {self.ranks}"
        lines = [
            self.what,
            f"  {where}, dtype {self.dtype or 'none'}, shapes {self.shapes or 'none'}",
            f"  expected {_short(self.expected)}",
            f"  got      {_short(self.got)}",
        ]
        if self.inputs:
            lines.append("  smallest input that shows it:")
            lines += [f"    {name} = {_short(value, 600)}" for name, value in self.inputs.items()]
        return "\n".join(lines)


def _short(value: Any, limit: int = 300) -> str:
    if isinstance(value, Tensor):
        value = value.detach()
        if value.dim() == 0:
            return f"{value.item()!r} ({str(value.dtype).removeprefix('torch.')})"
        text = f"{value.tolist()}"
        if len(text) > limit:
            text = text[: limit - 3] + "..."
        return f"{text} (shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')})"
    text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def same_shape_and_dtype(what: str, got: Any, expected: Tensor) -> None:
    """Raise a :class:`Fault` unless ``got`` is a tensor of the shape and dtype of ``expected``."""
    if not isinstance(got, Tensor):
        raise Fault(what, f"a tensor of shape {tuple(expected.shape)}", f"{type(got).__name__} {got!r}")
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise Fault(what, f"shape {tuple(expected.shape)}, {expected.dtype}", f"shape {tuple(got.shape)}, {got.dtype}")


def as_tensor(value: Any) -> Tensor:
    """A tensor on the CPU; plain numbers and lists of them keep all their digits."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    made = torch.as_tensor(value)
    return torch.as_tensor(value, dtype=torch.float64) if made.is_floating_point() else made


def compare(
    what: str,
    got: Any,
    expected: Any,
    *,
    rtol: float = 1e-10,
    atol: float = 1e-12,
    rank: int | None = None,
    ranks: int = 1,
) -> None:
    """Raise a :class:`Fault` unless ``got`` is ``expected`` to the tolerance; NaN equals nothing.

    Mappings are compared by key. Shapes must agree; dtypes need not.
    """
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or set(got) != set(expected):
            raise Fault(what, sorted(expected), sorted(got) if isinstance(got, Mapping) else got, rank, ranks)
        for key, value in expected.items():
            compare(f"{what}, {key}", got[key], value, rtol=rtol, atol=atol, rank=rank, ranks=ranks)
        return
    if (got is None) != (expected is None):
        raise Fault(what, expected, got, rank, ranks)
    if expected is None:
        return
    a, b = as_tensor(got), as_tensor(expected)
    exact = not (a.is_floating_point() or b.is_floating_point())
    close = a.shape == b.shape and (
        torch.equal(a, b) if exact else torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol)
    )
    if not close:
        raise Fault(what, b, a, rank, ranks)


def refusal(cls: type[Any], call: Callable[[], Any], error: type[Exception], what: str) -> str:
    """Text of the error that ``call`` must raise, which must name ``cls``."""
    try:
        call()
    except error as refused:
        text = str(refused)
        require(cls.__name__ in text, what, f"a text with {cls.__name__}", text)
        return text
    raise Fault(what, error.__name__, "no exception")


def require(condition: bool, what: str, expected: Any, got: Any) -> None:
    """Raise a :class:`Fault` unless ``condition``."""
    if not condition:
        raise Fault(what, expected, got)
