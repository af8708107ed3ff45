"""The optimizer that all chains share: parameter groups, state, and a step."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainkit._core.checks import check_choice, check_flag, check_integer, check_number, reject
from trainkit.optim._driver import Compiled, Impl, Item, Plan, implementation, run_bucket
from trainkit.optim._precision import Rounding
from trainkit.optim._tape import Scalar
from trainkit.optim.transforms._base import Hyper, Transform

__all__ = ["ChainOptimizer", "Params", "check_betas"]

Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


Buckets: TypeAlias = dict[Any, tuple[Plan, Scalar, list[Item]]]
"""Parameters that move by the same numbers, with these."""


def check_betas(owner: str, argument: str, betas: Any) -> None:
    """Require two numbers in [0, 1)."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        reject(owner, argument, "be two numbers", betas, TypeError)
    for beta in betas:
        check_number(owner, argument, beta, minimum=0, maximum=1, open_maximum=True)


def _check_lr(owner: str, argument: str, lr: Any) -> None:
    if isinstance(lr, Tensor):
        if lr.dim():
            reject(owner, argument, "be a number or a tensor without dimensions", lr)
        lr = float(lr)
    check_number(owner, argument, lr, minimum=0)


def _next(counter: Tensor) -> Scalar:
    """The count of the step to come."""
    # A compiled step reads no number from a tensor.
    return counter.double() + 1.0 if torch.compiler.is_compiling() else counter.item() + 1.0


class ChainOptimizer(Optimizer):
    """Base of the optimizers whose step is a chain of transforms.

    Args:
        params: Parameters, named parameters or groups of them.
        hyper: Hyper-parameters with their defaults; all of them go into the groups.
        maximize: Maximise instead of minimise.
        state_dtype: Dtype of the state.
        rounding: How half-precision parameters are rounded.
        seed: Start of the random numbers of stochastic rounding.
        impl: What runs the step.
    """

    kinds: ClassVar[tuple[str, ...]] = ("any",)
    """Sorts of parameters that the class treats differently."""

    def __init__(
        self,
        params: Params,
        hyper: Mapping[str, Any],
        *,
        maximize: bool,
        state_dtype: torch.dtype | None,
        rounding: Rounding,
        seed: int,
        impl: Impl,
    ) -> None:
        common = {"maximize": maximize, "state_dtype": state_dtype, "rounding": rounding, "seed": seed, "impl": impl}
        self._compiled: Compiled = {}
        super().__init__(params, {**hyper, **common, "algorithm": type(self).__name__})

    def transforms(self, hyper: Hyper) -> tuple[Transform, ...]:
        """The chain for parameters with these hyper-parameters."""
        raise NotImplementedError

    def kind(self, group: Mapping[str, Any], parameter: Tensor) -> str:
        """Which of ``kinds`` a parameter is."""
        return self.kinds[0]

    def hyper(self, group: Mapping[str, Any], kind: str) -> Hyper:
        """The hyper-parameters that count for the parameters of a kind."""
        return group

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ValueError or TypeError for hyper-parameters of a group out of range."""
        owner = type(self).__name__
        _check_lr(owner, "lr", group["lr"])
        check_betas(owner, "betas", group["betas"])
        check_number(owner, "eps", group.get("eps", 0.0), minimum=0)
        check_number(owner, "weight_decay", group["weight_decay"], minimum=0)
        check_flag(owner, maximize=group["maximize"])
        check_choice(owner, "rounding", group["rounding"], ("nearest", "stochastic"))
        check_integer(owner, "seed", group["seed"], minimum=0)
        check_choice(owner, "impl", group["impl"], ("auto", "loop", "foreach", "compiled"))
        dtype = group["state_dtype"]
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            reject(owner, "state_dtype", "be None or a floating point dtype", dtype, TypeError)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not say it takes from the defaults."""
        owner = type(self).__name__
        params = param_group["params"] if isinstance(param_group, dict) else None
        if params is not None and not isinstance(params, (Tensor, set)):
            param_group = {**param_group, "params": list(params)}
            tensors = [p[1] if isinstance(p, tuple) else p for p in param_group["params"]]
            if len({id(p) for p in tensors}) < len(tensors):
                reject(owner, "params", "hold each parameter once", f"{len(tensors)} with duplicates")
        super().add_param_group(param_group)
        try:
            self._accept(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise

    def _accept(self, group: dict[str, Any]) -> None:
        owner = type(self).__name__
        self.check(group)
        group["betas"] = tuple(group["betas"])
        for parameter in group["params"]:
            if not (parameter.is_floating_point() or parameter.is_complex()):
                reject(owner, "params", "be floating point or complex", parameter, TypeError)
            if group["rounding"] == "stochastic" and parameter.dtype == torch.float16:
                reject(owner, "rounding", "be 'nearest' for float16 parameters", group["rounding"])
        for kind in {self.kind(group, parameter) for parameter in group["params"]}:
            plan = self._plan(group, kind)
            for transform in plan.transforms:
                transform.check(owner, plan.hyper)

    def _plan(self, group: Mapping[str, Any], kind: str) -> Plan:
        """The chain for the parameters of a kind; what its transforms read and the class lacks is their default."""
        hyper = self.hyper(group, kind)
        transforms = self.transforms(hyper)
        fixed = {name: value for transform in transforms for name, value in vars(transform).items()}
        return Plan(transforms, {**fixed, **hyper})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters by one step.

        Args:
            closure: Evaluates the model and computes the gradients; called once, with gradients enabled.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = getattr(self, "found_inf", None)
        if found is not None and bool(found):
            return loss
        buckets: Buckets = {}
        position = 0
        for index, group in enumerate(self.param_groups):
            self._collect(buckets, index, group, position)
            position += len(group["params"])
        # Nothing has moved yet if a gradient was not fit to be used.
        for (index, _, _, how, *_), (plan, step, items) in buckets.items():
            group = self.param_groups[index]
            run_bucket(plan, items, step, how, self._compiled)
            for item in items:
                item.store(step, group["rounding"], group["seed"])
        return loss

    def _collect(self, buckets: Buckets, index: int, group: dict[str, Any], start: int) -> None:
        """Put the parameters of a group that have gradients to those that move by the same numbers."""
        owner, compiling = type(self).__name__, torch.compiler.is_compiling()
        plans: dict[str, Plan] = {}
        for position, parameter in enumerate(group["params"], start):
            if parameter.grad is None or parameter.numel() == 0:
                continue
            kind = self.kind(group, parameter)
            if kind not in plans:
                plans[kind] = self._plan(group, kind)
            state = self.state[parameter]
            if not state:
                state.update(plans[kind].state(parameter, group["state_dtype"]))
            item = Item.of(owner, position, parameter, state, group["maximize"])
            step = _next(state["step"])
            how = implementation(group["impl"], parameter)
            key = (index, kind, position if compiling else step, how, item.p.dtype, parameter.device)
            buckets.setdefault(key, (plans[kind], step, []))[2].append(item)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._compiled = {}
        for group in self.param_groups:
            # Of an older version, which did not have them all; torch adds a default of its own that is not ours.
            for name in self.defaults.keys() - {"differentiable"}:
                group.setdefault(name, self.defaults[name])

    def _check_state(self, state_dict: Mapping[str, Any]) -> None:
        owner = type(self).__name__
        if not {"state", "param_groups"} <= set(state_dict):
            reject(owner, "state_dict", "hold 'state' and 'param_groups'", sorted(state_dict))
        for group in state_dict["param_groups"]:
            algorithm = group.get("algorithm", owner)
            if algorithm != owner:
                reject(owner, "state_dict", f"be one of {owner}", algorithm)
            whole = {**self.defaults, **group}
            self.check(whole)
            plans = [self._plan(whole, kind) for kind in self.kinds]
            known = {"step", *(slot.name for plan in plans for slot in plan.slots())}
            for i in group["params"]:
                names = state_dict["state"].get(i, {})
                if not set(names) <= known or (names and "step" not in names):
                    reject(owner, "state_dict", f"have a state of {', '.join(sorted(known))}", sorted(names))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that this class saved; every tensor keeps its dtype.

        Raises:
            ValueError: If it is the state of another class, or has other groups.
        """
        self._check_state(state_dict)
        own_impl = [group["impl"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, impl in zip(self.param_groups, own_impl, strict=True):
            group["impl"] = impl
            self._accept(group)
        ids = (i for group in state_dict["param_groups"] for i in group["params"])
        parameters = (p for group in self.param_groups for p in group["params"])
        for i, parameter in zip(ids, parameters, strict=True):
            # The base class casts to the dtype of the parameter.
            for name, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, Tensor) and self.state[parameter][name].dtype != value.dtype:
                    device = value.device if name == "step" else parameter.device
                    self.state[parameter][name] = value.detach().to(device, copy=True)
