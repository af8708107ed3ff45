"""Properties of optimizers: state, how it is saved and loaded, and copies."""

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.testing.faults import require
from trainkit.testing.optimizers.common import (
    OptimizerCase,
    build,
    draw_gradients,
    same,
    same_state,
    start,
    state_of,
    walk,
)
from trainkit.testing.properties import prop


def _saved(optimizer: Any) -> dict[str, Any]:
    """The state after a way through a file."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def _copied(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in parameters]


def _dtypes(optimizer: Any) -> list[dict[str, str]]:
    return [{k: str(v.dtype) for k, v in own.items() if isinstance(v, Tensor)} for own in state_of(optimizer)]


@prop("O3", "resume")
def resume(case: OptimizerCase) -> None:
    """A new optimizer with the saved state goes on bit for bit; a hyper-parameter that the state lacks stays."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        optimizer, parameters = start(case, dtype)
        gradients = draw_gradients([tuple(p.shape) for p in parameters], 20, dtype)
        walk(optimizer, parameters, gradients[:10])
        others = _copied(parameters)
        resumed = build(case, others)
        resumed.load_state_dict(_saved(optimizer))
        kept, found = _dtypes(optimizer), _dtypes(resumed)
        require(found == kept, f"dtypes of the loaded state, {name} parameters", kept, found)
        expected = walk(optimizer, parameters, gradients[10:])
        got = walk(resumed, others, gradients[10:])
        for step in (1, 10):
            same(f"{name} parameters {step} steps after a resume", got[step - 1], expected[step - 1])
        same_state(f"{name} parameters 10 steps after a resume", resumed, optimizer)
    _check_older(case)


def _check_older(case: OptimizerCase) -> None:
    """A state that was saved before the class had its hyper-parameters; all versions had a learning rate."""
    optimizer, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 2)
    walk(optimizer, parameters, gradients[:1])
    others = _copied(parameters)
    resumed = build(case, others)
    own = [{k: v for k, v in group.items() if k != "params"} for group in resumed.param_groups]
    older = _saved(optimizer)
    for group in older["param_groups"]:
        for name in resumed.defaults.keys() - {"lr"}:
            group.pop(name, None)
    resumed.load_state_dict(older)
    for group, before in zip(resumed.param_groups, own, strict=True):
        for name in [name for name in before if name in resumed.defaults]:
            got = group.get(name, "no value")
            what = f"{name} after loading a state that lacks the hyper-parameters but lr"
            require(got == before[name], what, before[name], got)
    got = walk(resumed, others, gradients[1:])[-1]
    same("after loading a state that lacks hyper-parameters", got, walk(optimizer, parameters, gradients[1:])[-1])


@prop("O6", "named parameters")
def named(case: OptimizerCase) -> None:
    """Named parameters take the same steps; their state loads into unnamed ones and back."""
    plain, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 5)

    def with_names(given: list[nn.Parameter]) -> Any:
        return build(case, [(f"layer.{i}", p) for i, p in enumerate(given)])

    _, named_parameters = start(case)
    with_name = with_names(named_parameters)
    expected = walk(plain, parameters, gradients[:3])[-1]
    same("named parameters", walk(with_name, named_parameters, gradients[:3])[-1], expected)
    for what, source, into, own in (
        ("a state with names in an optimizer without", with_name, lambda p: build(case, p), named_parameters),
        ("a state without names in an optimizer with", plain, with_names, parameters),
    ):
        others = _copied(own)
        loaded = into(others)
        loaded.load_state_dict(_saved(source))
        found = walk(loaded, others, gradients[3:])[-1]
        same(what, found, walk(source, own, gradients[3:])[-1])


@prop("O12", "form of the state")
def form(case: OptimizerCase) -> None:
    """State is a dict of tensors and numbers for each parameter; a step count is a float32 tensor and starts at 1."""
    optimizer, parameters = start(case)
    walk(optimizer, parameters, draw_gradients([tuple(p.shape) for p in parameters], 1))
    for key, own in optimizer.state.items():
        require(any(key is p for p in parameters), "keys of the state", "parameters", repr(key)[:80])
        require(isinstance(own, dict), "state of a parameter", "a dict", type(own).__name__)
        for name, value in own.items():
            plain = isinstance(value, (Tensor, int, float))
            require(plain, f"state {name!r}", "a tensor or a number", f"{type(value).__name__} {value!r}")
        if "step" in own:
            step = own["step"]
            right = isinstance(step, Tensor) and step.dtype == torch.float32 and step.dim() == 0
            require(right and step.item() == 1, "step after one step", "1.0 (float32)", step)
    saved = optimizer.state_dict()["state"]
    for i, own in enumerate(state_of(optimizer)):
        found = sorted(saved.get(i, {}))
        require(found == sorted(own), f"state_dict, state of parameter {i}", sorted(own), found)


@prop("O13", "copies")
def copies(case: OptimizerCase) -> None:
    """Deep copies and pickles go on alike; the repr shows every hyper-parameter; zero_grad works both ways."""
    optimizer, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 6)
    walk(optimizer, parameters, gradients[:3])
    others = {
        "a deep copy": copy.deepcopy(optimizer),
        "a pickle": pickle.loads(pickle.dumps(optimizer)),  # noqa: S301 - our own bytes
    }
    expected = walk(optimizer, parameters, gradients[3:])[-1]
    for what, other in others.items():
        own = [p for group in other.param_groups for p in group["params"]]
        same(f"parameters of {what}", walk(other, own, gradients[3:])[-1], expected)
    for name in optimizer.defaults:
        require(name in repr(optimizer), "repr", f"a text with {name}", repr(optimizer))
    optimizer.zero_grad(set_to_none=False)
    require(not any(p.grad is None or p.grad.any() for p in parameters), "zero_grad", "zeros", parameters[0].grad)
    optimizer.zero_grad()
    require(all(p.grad is None for p in parameters), "zero_grad", "no gradients", parameters[0].grad)
