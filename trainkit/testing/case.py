"""A part in one configuration, with inputs for it."""

import copy
import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from trainkit._core.binding import accepted
from trainkit._core.typing import TENSOR_NAMES
from trainkit.testing.kinds import KINDS, Kind
from trainkit.testing.spec import Spec

__all__ = ["Case", "Drawn", "parameter_gradients"]

S = TypeVar("S", bound=Spec, covariant=True)

OPTIONAL_ON_DEMAND = ("weight", "mask")


@dataclass
class Drawn:
    """The inputs drawn last, for the report of a fault."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None


@dataclass
class Case(Generic[S]):
    """One configuration of the class of a spec record.

    Args:
        spec: The record.
        index: Which of its configurations.
        sizes: Numbers of rows that properties try, ascending, so that the first fault is the smallest.
        rows: If set, only these rows of each drawn batch are kept; how a fault is made smaller.
    """

    spec: S
    index: int = 0
    sizes: tuple[int, ...] = (1, 2, 7, 16)
    rows: list[int] | None = None
    drawn: Drawn = field(default_factory=Drawn)

    @property
    def config(self) -> Mapping[str, Any]:
        """Constructor arguments."""
        return self.spec.configs[self.index]

    @property
    def label(self) -> str:
        """Class and configuration, as they stand in reports and test ids."""
        shown = ", ".join(f"{k}={v!r}" for k, v in self.config.items())
        return f"{self.spec.cls.__name__}({shown if len(shown) <= 80 else f'configuration {self.index}'})"

    @property
    def kind(self) -> Kind:
        """How inputs are drawn."""
        return KINDS[self.spec.kinds.get(self.index, self.spec.kind)]

    def make(self, **changes: Any) -> Any:
        """A new instance; the same one each time, also where construction draws numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.spec.cls(**{**copy.deepcopy(dict(self.config)), **changes})

    def names(self) -> dict[str, str]:
        """Which tensor of the kind each parameter takes.

        By name; where a required parameter has a name of its own, as ``input`` of torch's losses, it takes the first
        tensor of the kind that nothing else takes. A record with a ``call`` of its own takes all.
        """
        offered = list(self.kind.draw(torch.Generator().manual_seed(0), 2, torch.float64))
        if getattr(self.spec, "call", None) is not None:
            return {name: name for name in offered}
        wanted = accepted(self.make())
        taken = {name: name for name, _ in wanted if name in offered and name not in OPTIONAL_ON_DEMAND}
        left = [name for name in offered if name not in taken]
        for name, required in wanted:
            if required and name not in taken:
                if not left or name in TENSOR_NAMES:
                    raise ValueError(
                        f"{self.spec.cls.__name__}: needs {name!r}, which inputs of this kind don't have; "
                        f"they have {', '.join(offered)}"
                    )
                taken[name] = left.pop(0)
        return taken

    def takes(self, name: str) -> bool:
        """Whether a call takes the argument ``name``."""
        return name in [n for n, _ in accepted(self.make())]

    def inputs(self, n: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, Tensor]:
        """Tensors for one call, by parameter name, in the order of the kind."""
        tensors = self.kind.draw(torch.Generator().manual_seed(1000 * seed + n), n, dtype)
        if self.rows is not None:
            tensors = {k: v[self.rows] for k, v in tensors.items()}
        by_source = {source: name for name, source in self.names().items()}
        return self.seen({by_source[k]: v for k, v in tensors.items() if k in by_source}, dtype)

    def seen(self, inputs: dict[str, Any], dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Note ``inputs`` as those that the property looks at now."""
        self.drawn.inputs = inputs
        self.drawn.dtype = dtype or next((v.dtype for v in inputs.values() if torch.is_floating_point(v)), None)
        return inputs

    def differentiable(self) -> list[str]:
        """Parameter names of the tensors that gradients are wanted for."""
        return [name for name, source in self.names().items() if source in self.kind.differentiable]

    def leaves(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as fresh leaves, requiring gradients where they are wanted."""
        wanted = self.differentiable()
        return {
            k: v.detach().clone().requires_grad_(k in wanted) if isinstance(v, Tensor) else v for k, v in inputs.items()
        }

    def value_and_gradients(
        self, module: Any, inputs: Mapping[str, Any], context: AbstractContextManager[Any] | None = None
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Value of a call and the gradients of its sum, by input name and, for parameters, ``parameter NAME``.

        The call runs in ``context``, such as autocast, the backward outside of it.
        """
        leaves = self.leaves(inputs)
        with context or nullcontext():
            value = module(**leaves)
        if isinstance(module, nn.Module):
            module.zero_grad()
        if value.requires_grad:
            value.sum().backward()
        gradients = {k: leaves[k].grad for k in self.differentiable()}
        return value.detach(), {**gradients, **parameter_gradients(module)}

    @property
    def is_local(self) -> bool:
        """Whether the value of a row does not depend on the other rows, as far as the class says."""
        return getattr(self.make(), "distributed", "local") == "local"

    @property
    def ignore_index(self) -> Any:
        """Target value that the part leaves out in this configuration; None if inputs of this kind have none."""
        return self.setting("ignore_index") if self.has("ignore_index") and self.kind.ignorable else None

    def has(self, argument: str) -> bool:
        """Whether the constructor takes ``argument``."""
        return argument in inspect.signature(self.spec.cls).parameters

    def setting(self, argument: str) -> Any:
        """Value of a constructor argument in this configuration."""
        if argument in self.config:
            return self.config[argument]
        return inspect.signature(self.spec.cls).parameters[argument].default


def parameter_gradients(module: Any) -> dict[str, Tensor | None]:
    """Gradients of the parameters of ``module``, by ``parameter NAME``."""
    if not isinstance(module, nn.Module):
        return {}
    return {f"parameter {name}": p.grad for name, p in module.named_parameters()}
