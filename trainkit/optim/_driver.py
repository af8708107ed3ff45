"""Runs the tape of a chain on parameters: one by one, as lists, or compiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trainkit._core.seeds import derive_seed
from trainkit.optim._precision import Rounding, real, state_dtype_for, write_back
from trainkit.optim._sharding import is_sharded, layout_of, local
from trainkit.optim._tape import WHOLE, Layout, ListOps, LoopOps, Ops, Register, Scalar, Update
from trainkit.optim.transforms._base import Fields, Hyper, Scalars, Slot, Transform

__all__ = ["Compiled", "Impl", "Item", "Plan", "implementation", "run_bucket"]

Impl: TypeAlias = Literal["auto", "loop", "foreach", "compiled"]

WIDE = (torch.float32, torch.float64)
"""Dtypes that are computed in; others are computed in fp32."""
SMALL = 2**14
"""Entries up to which a tensor on the CPU is better off in a list: what a call costs then outweighs its arithmetic."""


class Plan(NamedTuple):
    """The chain of a parameter and the hyper-parameters that it reads."""

    transforms: tuple[Transform, ...]
    hyper: Hyper

    def numbers(self, step: Scalar) -> tuple[Scalars, ...]:
        """What each tape needs at a step."""
        return tuple(transform.scalars(self.hyper, step) for transform in self.transforms)

    def slots(self) -> list[Slot]:
        """The state of a parameter, but for its step."""
        return [slot for transform in self.transforms for slot in transform.slots(self.hyper)]

    def state(self, parameter: Tensor, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """State of a parameter before its first step."""
        like = real(parameter.detach())
        dtype = state_dtype_for(like, dtype)
        state = {"step": torch.zeros((), dtype=torch.float32)}
        for slot in self.slots():
            if slot.shape == "parameter":
                state[slot.name] = torch.zeros_like(like, dtype=dtype)
            else:
                state[slot.name] = torch.zeros((), dtype=dtype, device=like.device)
        return state

    def run(
        self,
        ops: Ops,
        p: Register,
        g: Register,
        state: Mapping[str, Register],
        numbers: Sequence[Scalars],
        lr: Scalar,
    ) -> None:
        """Run the tapes, and take the update from the parameter."""
        fields = Fields(p, g, Update(ops, g), state)
        for transform, own in zip(self.transforms, numbers, strict=True):
            transform.tape(ops, fields, own, self.hyper)
        fields.update.subtract(p, lr)


@dataclass(slots=True)
class Item:
    """A parameter with its gradient, in the dtype that is computed in.

    Args:
        position: Which of the optimizer's parameters it is.
        parameter: The parameter.
        state: Its state.
        layout: How it lies on ranks.
        p: What the tape works on: the local part itself, or a copy in the dtype that is computed in.
        g: The gradient of what is minimised.
        slots: The state in the dtype that is computed in, by name.
        copied: Whether some of these are copies.
    """

    position: int
    parameter: Tensor
    state: dict[str, Tensor]
    layout: Layout
    p: Tensor
    g: Tensor
    slots: dict[str, Tensor]
    copied: bool

    @classmethod
    def of(cls, owner: str, position: int, parameter: Tensor, state: dict[str, Tensor], maximize: bool) -> "Item":
        """Take a parameter and its gradient, which is not written."""
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            raise RuntimeError(f"{owner}: gradients must be dense, got layout {getattr(gradient, 'layout', None)}")
        p, g, layout, shared = parameter, gradient, WHOLE, is_sharded(parameter)
        if shared:
            layout = layout_of(owner, parameter, gradient)
            p, g = local(parameter), local(gradient)
        if p.is_complex():
            p, g = real(p), real(g)
        dtype = p.dtype
        work = dtype if dtype in WIDE else torch.float32
        copied = dtype != work
        slots = {}
        # Where parameters are many and small, conversions that change nothing would take most of the time.
        for name, tensor in state.items():
            if name != "step":
                own = local(tensor) if shared else tensor
                if own.dtype != work:
                    own, copied = own.to(work), True
                slots[name] = own
        if g.dtype != work:
            g = g.to(work)
        if dtype != work:
            p = p.to(work)
        return cls(position, parameter, state, layout, p, -g if maximize else g, slots, copied)

    def store(self, step: Scalar, rounding: Rounding, seed: int) -> None:
        """Count the step, and write parameter and state back where they were copied."""
        self.state["step"].copy_(step) if isinstance(step, Tensor) else self.state["step"].fill_(step)
        if not self.copied:
            return
        target = real(local(self.parameter))
        if target.dtype != self.p.dtype:
            generator = None
            if rounding == "stochastic":
                # From the step and the place of the parameter, so that ranks and resumed runs draw the same.
                drawn = derive_seed("rounding", seed, self.position, int(self.state["step"]))
                generator = torch.Generator(target.device).manual_seed(drawn)
            write_back(target, self.p, generator)
        for name, value in self.slots.items():
            own = self.state[name]
            if own.dtype != value.dtype:
                local(own).copy_(value)


def implementation(impl: Impl, p: Tensor) -> Literal["loop", "foreach", "compiled"]:
    """What runs the tape of a parameter."""
    if impl != "auto":
        return impl
    if torch.compiler.is_compiling():
        return "loop"
    return "foreach" if p.device.type != "cpu" or p.numel() <= SMALL else "loop"


Compiled: TypeAlias = dict[tuple[Any, ...], Callable[..., None]]
"""Compiled steps: for the CPU by plan, else by the positions of the parameters that they move."""


def run_bucket(plan: Plan, items: Sequence[Item], step: Scalar, how: str, compiled: Compiled) -> None:
    """One step of parameters that share plan and step."""
    numbers, lr = plan.numbers(step), plan.hyper["lr"]
    if isinstance(step, Tensor):
        # Computed in fp64, which tensors without dimensions would take on.
        numbers, lr = _as_tensors(numbers, items[0].p), _as_tensor(lr, items[0].p)
    if how == "loop":
        for item in items:
            _one(plan, item.layout, item.p, item.g, item.slots, numbers, lr)
    elif how == "foreach":
        _lists(plan, *_as_lists(items), numbers, lr)
    else:
        _run_compiled(plan, items, numbers, lr, compiled)


def _run_compiled(
    plan: Plan, items: Sequence[Item], numbers: Sequence[Scalars], lr: Scalar, compiled: Compiled
) -> None:
    # As tensors, numbers that change at each step are no reason to compile anew.
    like = items[0].p
    own, lr = _as_tensors(numbers, like), _as_tensor(lr, like)
    on_cpu = like.device.type == "cpu"
    # A kernel for one flat tensor of any size compiles in seconds; other devices need one launch for many tensors.
    key = (plan.transforms, like.dtype) if on_cpu else tuple(item.position for item in items)
    if key not in compiled:
        # Apart, since all plans share their code, and a function may be compiled only a few times.
        run: Callable[..., None] = _one if on_cpu else _lists
        compiled[key] = torch.compile(  # type: ignore[call-overload]
            run, fullgraph=True, dynamic=on_cpu, isolate_recompiles=True
        )
    if not on_cpu:
        compiled[key](plan, *_as_lists(items), own, lr)
        return
    for item in items:
        p, g, slots = item.p, item.g, item.slots
        if all(t.is_contiguous() for t in (p, g, *slots.values())):
            p, g = _flat(p), _flat(g)
            slots = {name: _flat(t) if t.numel() == p.numel() else t for name, t in slots.items()}
        compiled[key](plan, item.layout, p, g, slots, own, lr)


def _flat(tensor: Tensor) -> Tensor:
    """The entries of a contiguous tensor in one dimension; unlike a view, without a base whose shape would count."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), tensor.storage_offset(), (tensor.numel(),), (1,))


def _one(
    plan: Plan,
    layout: Layout,
    p: Tensor,
    g: Tensor,
    slots: Mapping[str, Tensor],
    numbers: Sequence[Scalars],
    lr: Scalar,
) -> None:
    state = {name: Register(t) for name, t in slots.items()}
    plan.run(LoopOps(layout), Register(p), Register(g), state, numbers, lr)


def _as_lists(items: Sequence[Item]) -> tuple[list[Layout], list[Tensor], list[Tensor], dict[str, list[Tensor]]]:
    slots = {name: [item.slots[name] for item in items] for name in items[0].slots}
    return [i.layout for i in items], [i.p for i in items], [i.g for i in items], slots


def _lists(
    plan: Plan,
    layouts: list[Layout],
    p: list[Tensor],
    g: list[Tensor],
    slots: Mapping[str, list[Tensor]],
    numbers: Sequence[Scalars],
    lr: Scalar,
) -> None:
    state = {name: Register(values) for name, values in slots.items()}
    plan.run(ListOps(layouts), Register(p), Register(g), state, numbers, lr)


def _as_tensors(numbers: Sequence[Scalars], like: Tensor) -> tuple[Scalars, ...]:
    return tuple({name: _as_tensor(value, like) for name, value in own.items()} for own in numbers)


def _as_tensor(number: Scalar, like: Tensor) -> Tensor:
    return torch.as_tensor(number, dtype=like.dtype, device=like.device)
