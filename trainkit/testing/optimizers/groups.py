"""Properties of optimizers: groups, and the hyper-parameters in them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, StepLR

from trainkit.testing.faults import require
from trainkit.testing.optimizers.common import (
    Gradients,
    OptimizerCase,
    arguments,
    build,
    draw_gradients,
    learning_rate,
    same,
    start,
    step_with,
    walk,
)
from trainkit.testing.properties import prop

STEPS = 6
TOLERANCE = 1e-12
"""Implementations that take parameters together may round differently when there are fewer."""


@prop("O5", "groups and late parameters")
def groups(case: OptimizerCase) -> None:
    """Groups, and parameters that start late or pause, take the steps that they take in an optimizer of their own."""
    _, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], STEPS)
    lr = learning_rate(case)
    changed = {"lr": lr / 2} if lr is not None else {}
    changed |= {"weight_decay": 0.2} if case.has("weight_decay") else {}
    _check_two_groups(case, gradients, changed)
    if lr is not None:
        optimizer = build(case, [{"params": parameters, "lr": 0.0}])
        before = [p.detach().clone() for p in parameters]
        same("a group with lr 0", walk(optimizer, parameters, gradients)[-1], before)
    _check_late_group(case, gradients, changed)
    first = [None if step < 3 else own[0] for step, own in enumerate(gradients)]
    _check_own_count(case, gradients, first, "whose first gradient comes at step 4")
    pausing = [None if step == 1 else own[0] for step, own in enumerate(gradients)]
    _check_own_count(case, gradients, pausing, "without gradient at step 2")


def _alone(
    case: OptimizerCase, which: slice, gradients: Sequence[Gradients], changes: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Some of the parameters after steps of an optimizer that has no others."""
    _, parameters = start(case)
    if not parameters[which]:
        return []
    return walk(build(case, parameters[which], **changes), parameters[which], [own[which] for own in gradients])[-1]


def _check_two_groups(case: OptimizerCase, gradients: Sequence[Gradients], changed: Mapping[str, Any]) -> None:
    _, parameters = start(case)
    split = [{"params": parameters[:2]}, {"params": parameters[2:], **changed}]
    optimizer = build(case, [group for group in split if group["params"]])
    found = walk(optimizer, parameters, gradients)[-1]
    same("the first of two groups", found[:2], _alone(case, slice(0, 2), gradients, {}), TOLERANCE)
    same("the second of two groups", found[2:], _alone(case, slice(2, None), gradients, changed), TOLERANCE)


def _check_late_group(case: OptimizerCase, gradients: Sequence[Gradients], changed: Mapping[str, Any]) -> None:
    _, parameters = start(case)
    first = parameters[:1]
    optimizer = build(case, first)
    walk(optimizer, first, [own[:1] for own in gradients[:3]])
    late = parameters[1:] or [nn.Parameter(first[0].detach().clone())]
    rest = [own[1:] or own for own in gradients[3:]]
    optimizer.add_param_group({"params": late, **changed})
    expected = [nn.Parameter(p.detach().clone()) for p in late]
    alone = build(case, expected, **changed)
    found = walk(optimizer, [*first, *late], [[a[0], *b] for a, b in zip(gradients[3:], rest, strict=True)])[-1]
    same("a group added after 3 steps", found[1:], walk(alone, expected, rest)[-1], TOLERANCE)


def _check_own_count(case: OptimizerCase, gradients: Sequence[Gradients], first: Gradients, what: str) -> None:
    """The first parameter, which misses some steps that others take, against one that has the other steps only."""
    optimizer, parameters = start(case)
    found = walk(optimizer, parameters, [[own, *rest[1:]] for own, rest in zip(first, gradients, strict=True)])[-1]
    own = [[gradient] for gradient in first if gradient is not None]
    same(f"a parameter {what}", found[:1], _alone(case, slice(0, 1), own, {}), TOLERANCE)


@prop("O7", "hyper-parameters in groups")
def hyper_parameters(case: OptimizerCase) -> None:
    """A hyper-parameter changed in the groups, by hand or by a scheduler, acts as one given to the constructor."""
    optimizer, _ = start(case)
    needed = set(optimizer.defaults)
    for group in optimizer.state_dict()["param_groups"]:
        require(needed <= set(group), "groups in state_dict", sorted(needed), sorted(group))
    for name in arguments(case):
        for value in _alternatives(case, name):
            _check_change(case, name, value)
    lr = learning_rate(case)
    if lr:
        _check_scheduler(case, lambda o: StepLR(o, step_size=2, gamma=0.5), "StepLR")
        cycled = {"betas", "momentum"} & set(optimizer.defaults)
        cycle = bool(cycled & set(arguments(case)))
        _check_scheduler(
            case, lambda o: OneCycleLR(o, max_lr=2 * lr, total_steps=STEPS, cycle_momentum=cycle), "OneCycleLR"
        )


def _alternatives(case: OptimizerCase, name: str) -> list[Any]:
    """Other values of a constructor argument, some of which the class may refuse."""
    value = case.setting(name)
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 if value else 0.05]
    if isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value):
        return [tuple(0.9 * v for v in value)]
    if isinstance(value, torch.dtype):
        return [torch.bfloat16 if value == torch.float32 else torch.float32]
    others = [config[name] for config in case.spec.configs if name in config]
    # What is made of objects is structure, which no group could save.
    return [v for v in others if isinstance(v, (str, int, float, tuple, type(None))) and v != value]


def _hand_over(case: OptimizerCase, source: Any, target: Any) -> None:
    """Give what the groups hold beside hyper-parameters, such as the first learning rate, to another optimizer."""
    known = {"params", *arguments(case)}
    for own, theirs in zip(target.param_groups, source.param_groups, strict=True):
        own.update({k: v for k, v in theirs.items() if k not in known})


def _check_change(case: OptimizerCase, name: str, value: Any) -> None:
    changed, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 3)
    try:
        built, others = start(case, **{name: value})
        _hand_over(case, changed, built)
        expected = walk(built, others, gradients)
    except Exception:
        # Not every value goes with the rest of the configuration.
        return
    for group in changed.param_groups:
        if name in group:
            group[name] = value
    what = f"{name} changed in the groups to {value!r}, against the constructor"
    same(what, walk(changed, parameters, gradients)[-1], expected[-1])


def _check_scheduler(case: OptimizerCase, make: Callable[[Optimizer], LRScheduler], what: str) -> None:
    """Each step is that of an optimizer built with the values of this step that goes on with the state."""
    optimizer, parameters = start(case)
    scheduler = make(optimizer)
    _, others = start(case)
    state: Mapping[Any, Any] = {}
    gradients = draw_gradients([tuple(p.shape) for p in parameters], STEPS - 1)
    for step, own in enumerate(gradients, 1):
        group = optimizer.param_groups[0]
        values = {name: group[name] for name in ("lr", "betas", "momentum") if name in group and case.has(name)}
        built = build(case, others, **values)
        built.state.update(state)
        _hand_over(case, optimizer, built)
        step_with(optimizer, parameters, own)
        step_with(built, others, own)
        state = built.state
        shown = ", ".join(f"{k}={v!r}" for k, v in values.items())
        same(f"{what}, step {step}, against one built with {shown}", parameters, others)
        scheduler.step()
    steady, others = start(case)
    walk(steady, others, gradients)
    differ = any(not torch.equal(a, b) for a, b in zip(parameters, others, strict=True))
    require(differ, f"parameters with {what}", "others than without it", "the same")
