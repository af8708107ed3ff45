"""What the properties of optimizers share: optimizers over small parameters, steps with given gradients, comparison."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainkit.testing.case import Case
from trainkit.testing.faults import compare
from trainkit.testing.spec import OptimizerSpec

__all__ = [
    "SHAPES",
    "Gradients",
    "OptimizerCase",
    "arguments",
    "build",
    "build_optimizer",
    "draw_gradients",
    "draw_parameters",
    "learning_rate",
    "needs_closure",
    "number_of",
    "same",
    "same_state",
    "shapes_of",
    "start",
    "state_of",
    "step_on",
    "step_with",
    "usable_shapes",
    "walk",
    "with_decay",
]

OptimizerCase: TypeAlias = Case[OptimizerSpec]
Gradients: TypeAlias = Sequence[Tensor | None]
"""The gradient of each parameter; None for a parameter that has none."""

Shape: TypeAlias = tuple[int, ...]

SHAPES: tuple[Shape, ...] = ((3, 4), (5,), (), (2, 3, 2, 2), (1,))


def build_optimizer(cls: type[Any], config: Mapping[str, Any], params: Any, **changes: Any) -> Any:
    """An optimizer in a configuration over parameters, groups or named parameters."""
    return cls(params, **{**copy.deepcopy(dict(config)), **changes})


def build(case: OptimizerCase, params: Any, **changes: Any) -> Any:
    """An optimizer in the configuration of the case."""
    return build_optimizer(case.spec.cls, case.config, params, **changes)


def usable_shapes(cls: type[Any], config: Mapping[str, Any], shapes: Sequence[Shape] = SHAPES) -> list[Shape]:
    """The shapes whose parameters the class takes; all of them if it takes none, so that a property shows why."""

    def takes(*some: Shape) -> bool:
        parameters = draw_parameters(some)
        try:
            walk(build_optimizer(cls, config, parameters), parameters, draw_gradients(some, 1))
        except Exception:
            return False
        return True

    if takes(*shapes):
        return list(shapes)
    return [shape for shape in shapes if takes(shape)] or list(shapes)


def shapes_of(case: OptimizerCase, shapes: Sequence[Shape] = SHAPES) -> list[Shape]:
    """The shapes that the class takes in the configuration of the case; O18 says which it does not."""
    return usable_shapes(case.spec.cls, case.config, shapes)


def arguments(case: OptimizerCase) -> list[str]:
    """Names of the hyper-parameters of the constructor."""
    known = inspect.signature(case.spec.cls).parameters.values()
    return [p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][1:]


def with_decay(case: OptimizerCase, rate: float) -> dict[str, Any]:
    """Constructor arguments that set every rate of weight decay that the class has."""
    named = [name for name in arguments(case) if name.startswith("weight_decay")]
    return {name: rate for name in named if type(case.setting(name)) in (int, float)}


def number_of(optimizer: Optimizer, name: str) -> float | None:
    """Value of a hyper-parameter in the first group, if it is a number."""
    value = optimizer.param_groups[0].get(name)
    return float(value) if isinstance(value, (int, float, Tensor)) and not isinstance(value, bool) else None


def learning_rate(case: OptimizerCase) -> float | None:
    """Learning rate that the class has in this configuration; None if it takes none."""
    return number_of(build(case, draw_parameters(shapes_of(case)[:1])), "lr") if case.has("lr") else None


def draw_parameters(shapes: Sequence[Shape], dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    """Parameters whose entries lie between 0.5 and 1.5 or between -1.5 and -0.5."""
    generator = torch.Generator().manual_seed(0)

    def one(shape: Shape) -> Tensor:
        drawn = torch.rand(shape, dtype=torch.float64, generator=generator) * 2 - 1
        return (drawn + drawn.sign() / 2).to(dtype)

    return [nn.Parameter(one(shape)) for shape in shapes]


def draw_gradients(
    shapes: Sequence[Shape], steps: int, dtype: torch.dtype = torch.float64, seed: int = 1
) -> list[list[Tensor]]:
    """Gradients of each step; the first steps are those of fewer steps, rounded from the same numbers in each dtype."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes]
        for _ in range(steps)
    ]


def start(
    case: OptimizerCase, dtype: torch.dtype = torch.float64, shapes: Sequence[Shape] = SHAPES, **changes: Any
) -> tuple[Any, list[nn.Parameter]]:
    """A new optimizer over new parameters of the shapes that the class takes, always the same ones."""
    parameters = draw_parameters(shapes_of(case, shapes), dtype)
    case.seen({f"parameter {i}": p.detach().clone() for i, p in enumerate(parameters)}, dtype)
    return build(case, parameters, **changes), parameters


@cache
def _needs_argument(step: Callable[..., Any]) -> bool:
    first = next((p for name, p in inspect.signature(step).parameters.items() if name != "self"), None)
    return first is not None and first.default is first.empty


def needs_closure(cls: type[Any]) -> bool:
    """Whether the class steps only with a closure."""
    return getattr(cls, "closure_calls", 1) != 1 or _needs_argument(cls.step)


def step_on(optimizer: Any, closure: Callable[[], Tensor]) -> None:
    """One step with the gradients that the closure leaves, which the optimizer calls itself only if it has to."""
    if needs_closure(type(optimizer)):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def step_with(optimizer: Any, parameters: Sequence[Tensor], gradients: Gradients) -> None:
    """One step with fresh copies of the gradients, of a loss that has them."""

    def closure() -> Tensor:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        if not needs_closure(type(optimizer)):
            return torch.zeros(())
        terms = [(p.detach() * g).sum() for p, g in zip(parameters, gradients, strict=True) if g is not None]
        return torch.stack([t.real.double() for t in terms]).sum()

    step_on(optimizer, closure)


def walk(
    optimizer: Any,
    parameters: Sequence[Tensor],
    gradients: Sequence[Gradients],
    before: Callable[[int], None] | None = None,
) -> list[list[Tensor]]:
    """Steps with the gradients; gives the parameters after each.

    Args:
        optimizer: An optimizer over the parameters.
        parameters: The parameters.
        gradients: Gradients of each step.
        before: Called with the number of each step, from 0 on, before it.
    """
    after = []
    for i, own in enumerate(gradients):
        if before is not None:
            before(i)
        step_with(optimizer, parameters, own)
        after.append([p.detach().clone() for p in parameters])
    return after


def same(what: str, got: Sequence[Tensor], expected: Sequence[Tensor], rtol: float = 0.0) -> None:
    """Compare parameters; bit for bit unless a tolerance is given."""
    for i, (own, wanted) in enumerate(zip(got, expected, strict=True)):
        a, b = own.detach(), wanted.detach()
        if a.dtype == b.dtype and torch.equal(a, b):
            continue
        a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b))
        compare(f"{what}, parameter {i} of shape {tuple(wanted.shape)}", a, b, rtol=rtol, atol=rtol / 100)


def state_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """State of each parameter in the order of the groups."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [
        {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in optimizer.state.get(p, {}).items()}
        for p in parameters
    ]


def same_state(what: str, got: Optimizer, expected: Optimizer) -> None:
    """Compare the state of two optimizers bit for bit."""
    for i, (own, wanted) in enumerate(zip(state_of(got), state_of(expected), strict=True)):
        compare(f"{what}, state of parameter {i}", own, wanted, rtol=0, atol=0)
