"""The operations that updates are written in, on one tensor or on lists of tensors.

A tape is a function that calls these operations on registers. Each writes ``out`` from the others; ``out`` may be the
first of them and no other. Numbers are Python floats or tensors without dimensions. A register without a value takes
what it is given first, so that scratch space needs no declaration.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["WHOLE", "Layout", "ListOps", "LoopOps", "Ops", "Register", "Scalar", "Update"]

Scalar: TypeAlias = float | Tensor


class Register:
    """A place that holds a tensor, or one tensor of each parameter of a list."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value


Operand: TypeAlias = Register | Scalar


class Layout(NamedTuple):
    """How a parameter lies on ranks.

    Args:
        numel: Real numbers in the whole parameter; of no use where this process holds all of it.
        groups: Process groups that each hold a part of it; empty where this process holds all of it.
    """

    numel: int
    groups: tuple[dist.ProcessGroup, ...] = ()

    def norm(self, part: Tensor) -> Tensor:
        """Norm of the whole parameter, from the part that this process holds."""
        own = torch.linalg.vector_norm(part)
        return self.total(own.square()).sqrt() if self.groups else own

    def mean(self, part: Tensor) -> Tensor:
        """Mean of the whole parameter."""
        return self.total(part.sum()) / self.numel if self.groups else part.mean()

    def total(self, value: Tensor) -> Tensor:
        """Sum over the ranks that hold a part, of a tensor that is overwritten."""
        for group in self.groups:
            dist.all_reduce(value, group=group)
        return value


WHOLE = Layout(0)
"""A parameter that this process holds all of."""


class Ops(Protocol):
    """What a tape may do.

    ``out`` is written; ``scale`` multiplies what is added; ``limit`` scales down to the norm ``most`` what has a larger
    one; ``limit`` and ``mean`` look at the whole parameter.
    """

    def copy(self, out: Register, a: Register) -> None: ...
    def add(self, out: Register, a: Register, b: Operand, scale: Scalar = 1.0) -> None: ...
    def sub(self, out: Register, a: Register, b: Operand) -> None: ...
    def mul(self, out: Register, a: Register, b: Operand) -> None: ...
    def div(self, out: Register, a: Register, b: Operand) -> None: ...
    def lerp(self, out: Register, a: Register, b: Register, weight: Scalar) -> None: ...
    def addcmul(self, out: Register, a: Register, b: Register, c: Register, scale: Scalar) -> None: ...
    def addcdiv(self, out: Register, a: Register, b: Register, c: Register, scale: Scalar) -> None: ...
    def sqrt(self, out: Register, a: Register) -> None: ...
    def sign(self, out: Register, a: Register) -> None: ...
    def max(self, out: Register, a: Register, b: Operand) -> None: ...
    def min(self, out: Register, a: Register, b: Operand) -> None: ...
    def limit(self, out: Register, a: Register, most: Scalar) -> None: ...
    def mean(self, out: Register, a: Register) -> None: ...


def _of(operand: Operand) -> Any:
    return operand.value if isinstance(operand, Register) else operand


def _none_above_one(excess: Tensor) -> bool:
    """Whether a division that changes nothing can be spared; only where looking costs nothing."""
    return excess.device.type == "cpu" and not torch.compiler.is_compiling() and bool((excess <= 1.0).all())


class LoopOps:
    """The operations on one tensor."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def copy(self, out: Register, a: Register) -> None:
        out.value = a.value.clone() if out.value is None else out.value.copy_(a.value)

    def add(self, out: Register, a: Register, b: Operand, scale: Scalar = 1.0) -> None:
        other = _of(b)
        if isinstance(scale, Tensor):
            other, scale = other * scale, 1.0
        out.value = torch.add(a.value, other, alpha=scale, out=out.value)

    def sub(self, out: Register, a: Register, b: Operand) -> None:
        out.value = torch.sub(a.value, _of(b), out=out.value)

    def mul(self, out: Register, a: Register, b: Operand) -> None:
        out.value = torch.mul(a.value, _of(b), out=out.value)

    def div(self, out: Register, a: Register, b: Operand) -> None:
        out.value = torch.div(a.value, _of(b), out=out.value)

    def lerp(self, out: Register, a: Register, b: Register, weight: Scalar) -> None:
        out.value = torch.lerp(a.value, b.value, weight, out=out.value)

    def addcmul(self, out: Register, a: Register, b: Register, c: Register, scale: Scalar) -> None:
        if isinstance(scale, Tensor):
            out.value = torch.add(a.value, b.value * c.value * scale, out=out.value)
        else:
            out.value = torch.addcmul(a.value, b.value, c.value, value=scale, out=out.value)

    def addcdiv(self, out: Register, a: Register, b: Register, c: Register, scale: Scalar) -> None:
        if isinstance(scale, Tensor):
            out.value = torch.add(a.value, b.value / c.value * scale, out=out.value)
        else:
            out.value = torch.addcdiv(a.value, b.value, c.value, value=scale, out=out.value)

    def sqrt(self, out: Register, a: Register) -> None:
        out.value = torch.sqrt(a.value, out=out.value)

    def sign(self, out: Register, a: Register) -> None:
        out.value = torch.sign(a.value, out=out.value)

    def max(self, out: Register, a: Register, b: Operand) -> None:
        other = _of(b)
        pair = torch.maximum if isinstance(other, Tensor) else torch.clamp_min
        out.value = pair(a.value, other, out=out.value)

    def min(self, out: Register, a: Register, b: Operand) -> None:
        other = _of(b)
        pair = torch.minimum if isinstance(other, Tensor) else torch.clamp_max
        out.value = pair(a.value, other, out=out.value)

    def limit(self, out: Register, a: Register, most: Scalar) -> None:
        excess = self.layout.norm(a.value) / most
        if out is a and _none_above_one(excess):
            return
        self.div(out, a, excess.clamp_min(1.0))

    def mean(self, out: Register, a: Register) -> None:
        out.value = self.layout.mean(a.value)


class ListOps:
    """The operations on lists, by torch's functions for lists."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = layouts

    def copy(self, out: Register, a: Register) -> None:
        if out.value is None:
            out.value = [t.clone() for t in a.value]
        else:
            torch._foreach_copy_(out.value, a.value)

    def _place(self, out: Register, a: Register) -> list[Tensor]:
        """The list to work on in place: ``out`` holding ``a``."""
        if out is not a:
            self.copy(out, a)
        values: list[Tensor] = out.value
        return values

    def add(self, out: Register, a: Register, b: Operand, scale: Scalar = 1.0) -> None:
        if not isinstance(b, Register):
            torch._foreach_add_(self._place(out, a), b * scale)
            return
        other = b.value
        if isinstance(scale, Tensor):
            other, scale = torch._foreach_mul(other, scale), 1.0
        torch._foreach_add_(self._place(out, a), other, alpha=scale)

    def _binary(self, name: str, out: Register, a: Register, b: Any) -> None:
        if out.value is None:
            out.value = getattr(torch, f"_foreach_{name}")(a.value, b)
        else:
            getattr(torch, f"_foreach_{name}_")(self._place(out, a), b)

    def _unary(self, name: str, out: Register, a: Register) -> None:
        if out.value is None:
            out.value = getattr(torch, f"_foreach_{name}")(a.value)
        else:
            getattr(torch, f"_foreach_{name}_")(self._place(out, a))

    def sub(self, out: Register, a: Register, b: Operand) -> None:
        self._binary("sub", out, a, _of(b))

    def mul(self, out: Register, a: Register, b: Operand) -> None:
        self._binary("mul", out, a, _of(b))

    def div(self, out: Register, a: Register, b: Operand) -> None:
        self._binary("div", out, a, _of(b))

    def max(self, out: Register, a: Register, b: Operand) -> None:
        self._binary("maximum", out, a, [b] * len(a.value) if isinstance(b, Tensor) else _of(b))

    def min(self, out: Register, a: Register, b: Operand) -> None:
        self._binary("minimum", out, a, [b] * len(a.value) if isinstance(b, Tensor) else _of(b))

    def lerp(self, out: Register, a: Register, b: Register, weight: Scalar) -> None:
        if isinstance(weight, Tensor):
            moved = Register([torch.lerp(x, y, weight) for x, y in zip(a.value, b.value, strict=True)])
            self.copy(out, moved)
        elif out.value is None:
            out.value = torch._foreach_lerp(a.value, b.value, weight)
        else:
            torch._foreach_lerp_(self._place(out, a), b.value, weight)

    def addcmul(self, out: Register, a: Register, b: Register, c: Register, scale: Scalar) -> None:
        if isinstance(scale, Tensor):
            product = torch._foreach_mul(torch._foreach_mul(b.value, c.value), scale)
            torch._foreach_add_(self._place(out, a), product)
        else:
            torch._foreach_addcmul_(self._place(out, a), b.value, c.value, scale)

    def addcdiv(self, out: Register, a: Register, b: Register, c: Register, scale: Scalar) -> None:
        if isinstance(scale, Tensor):
            quotient = torch._foreach_mul(torch._foreach_div(b.value, c.value), scale)
            torch._foreach_add_(self._place(out, a), quotient)
        else:
            torch._foreach_addcdiv_(self._place(out, a), b.value, c.value, scale)

    def sqrt(self, out: Register, a: Register) -> None:
        self._unary("sqrt", out, a)

    def sign(self, out: Register, a: Register) -> None:
        self._unary("sign", out, a)

    def limit(self, out: Register, a: Register, most: Scalar) -> None:
        norms = [layout.norm(t) for layout, t in zip(self.layouts, a.value, strict=True)]
        excess = torch.stack(norms) / most
        if out is a and _none_above_one(excess):
            return
        self.div(out, a, Register(list(excess.clamp_min(1.0).unbind())))

    def mean(self, out: Register, a: Register) -> None:
        out.value = [layout.mean(t) for layout, t in zip(self.layouts, a.value, strict=True)]


class Update:
    """The update so far, whose last division and factor wait until something reads it.

    Most chains end in a division and a factor, which one operation does together with the subtraction from the
    parameter.
    """

    __slots__ = ("_numerator", "_ops", "_over", "_scale")

    def __init__(self, ops: Ops, gradient: Register) -> None:
        self._ops = ops
        self.set(gradient)

    def set(self, value: Register) -> None:
        """Take a register as the update. It is not written."""
        self._numerator = value
        self._over: Register | None = None
        self._scale: Scalar = 1.0

    def divide(self, by: Register) -> None:
        """Divide the update by a register, which must keep its value to the end of the tape."""
        if self._over is not None:
            self.get()
        self._over = by

    def multiply(self, by: Scalar) -> None:
        """Multiply the update by a number."""
        self._scale = self._scale * by

    def average_into(self, average: Register, beta: Scalar, rest: Scalar) -> None:
        """Move an average to the update, ``rest`` being 1 - ``beta``, and take it as the update."""
        ops, numerator, over, scale = self._ops, self._numerator, self._over, self._scale
        if over is not None:
            ops.mul(average, average, beta)
            ops.addcdiv(average, average, numerator, over, rest * scale)
        elif isinstance(scale, Tensor) or scale != 1.0:
            ops.mul(average, average, beta)
            ops.add(average, average, numerator, rest * scale)
        else:
            ops.lerp(average, average, numerator, rest)
        self.set(average)

    def get(self) -> Register:
        """The update in a register, to read."""
        if self._over is not None or isinstance(self._scale, Tensor) or self._scale != 1.0:
            out, over, scale = Register(), self._over, self._scale
            if over is None:
                self._ops.mul(out, self._numerator, scale)
            else:
                self._ops.div(out, self._numerator, over)
                if isinstance(scale, Tensor) or scale != 1.0:
                    self._ops.mul(out, out, scale)
            self.set(out)
        return self._numerator

    def subtract(self, p: Register, lr: Scalar) -> None:
        """Take ``lr`` times the update from a parameter."""
        if self._over is None:
            self._ops.add(p, p, self._numerator, scale=-lr * self._scale)
        else:
            self._ops.addcdiv(p, p, self._numerator, self._over, scale=-lr * self._scale)
