"""Properties of losses: how they behave as modules, and whether they teach what they are for."""

import copy
import inspect
import math
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.testing.common import holds_modules
from trainkit.testing.configs import check_config
from trainkit.testing.faults import Fault, compare, require
from trainkit.testing.losses.common import LossCase, call, same_to_rounding, scalar
from trainkit.testing.properties import prop


@prop("L13", "compiles to one graph", dear=True)
def compiles(case: LossCase) -> None:
    """One graph from torch.compile(fullgraph=True) gives the eager value and gradients for batches of every size."""
    torch._dynamo.reset()
    module = case.make()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    # Hyper-parameters stay constants, as in a graph that becomes dynamic when the batch changes its size.
    with torch._dynamo.config.patch(specialize_float=True):
        # The largest first: a size that equals another by chance would be taken for the same, and compiled anew later.
        for n in [n for n in case.sizes if n > 1][::-1] or case.sizes:
            inputs = case.inputs(n, torch.float32)
            expected = case.value_and_gradients(module, inputs)
            same_to_rounding(case, "compiled", compiled, inputs, (expected[0], _compiled_names(expected[1])), 1e-5)


def _compiled_names(grads: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a compiled module carry a prefix."""
    return {k.replace("parameter ", "parameter _orig_mod."): v for k, v in grads.items()}


@prop("L14", "purity")
def purity(case: LossCase) -> None:
    """A call changes neither its inputs nor the module, the random state or the gradient mode."""
    module = case.make()
    inputs = case.inputs(case.sizes[-1])
    before = {k: v.clone() for k, v in inputs.items()}
    attributes = set(vars(module))
    state = {k: v.clone() for k, v in module.state_dict().items()}
    random = torch.get_rng_state()
    for training in (True, False):
        module.train(training)
        module(**inputs)
    for name, value in inputs.items():
        require(torch.equal(value, before[name]), f"{name} after the call", before[name], value)
    require(set(vars(module)) == attributes, "attributes after the call", sorted(attributes), sorted(vars(module)))
    require(torch.equal(random, torch.get_rng_state()), "global random state after the call", "as before", "changed")
    require(torch.is_grad_enabled(), "gradient mode after the call", "on", "off")
    for name, value in module.state_dict().items():
        if getattr(case.spec.cls, "stateful", False):
            break
        require(torch.equal(value, state[name]), f"buffer {name} after the call", state[name], value)


@prop("L15", "copies")
def copies(case: LossCase) -> None:
    """Deep copies, pickles and a reloaded state give the same value; the repr shows every hyper-parameter."""
    module = case.make()
    inputs = case.inputs(case.sizes[-1])
    value = call(case, module, inputs)
    reloaded = case.make()
    reloaded.load_state_dict(module.state_dict())
    for what, other in {
        "a deep copy": copy.deepcopy(module),
        "a pickle": pickle.loads(pickle.dumps(module)),  # noqa: S301 - our own bytes
        "a reloaded state": reloaded,
    }.items():
        compare(f"value of {what}", call(case, other, inputs), value, rtol=0, atol=0)
    if type(module).extra_repr is nn.Module.extra_repr:
        return
    shown = repr(module)
    for name in inspect.signature(case.spec.cls).parameters:
        if not holds_modules(getattr(module, name, None)):
            require(f"{name}=" in shown, "repr", f"a text with {name}=", shown)


@prop("L17", "configuration")
def configuration(case: LossCase) -> None:
    """Jsonargparse parses class_path and init_args, dumps them, parses the dump, and builds an equal loss of it."""
    original = case.make()
    part = check_config(case.spec.cls, case.config, nn.Module)
    require(repr(part) == repr(original), "repr of the part built from its configuration", repr(original), repr(part))
    inputs = case.inputs(case.sizes[-1])
    compare("value of the part built from its configuration", part(**inputs), original(**inputs), rtol=0, atol=0)


@prop("L18", "errors")
def errors(case: LossCase) -> None:
    """Wrong calls raise one sentence with class, argument and value; a target of another length raises."""
    inputs = case.inputs(4) if case.rows is None else case.inputs(case.sizes[0])
    target = next((k for k, source in case.names().items() if source in ("target", "labels", "key")), None)
    if target is not None:
        shorter = {**inputs, target: inputs[target][:-1]}
        case.seen(shorter)
        try:
            value = case.make()(**shorter)
        except Exception:
            value = None
        require(value is None, f"{target} with a row less", "an exception", value)
    if case.index:
        return
    for bad in case.spec.errors:
        what = f"call with {', '.join([*bad.config, *bad.inputs])}"
        case.seen({**inputs, **bad.inputs})
        try:
            case.make(**bad.config)(**{**inputs, **bad.inputs})
        except bad.error as error:
            text = str(error)
            require(
                case.spec.cls.__name__ in text and bad.match in text,
                what,
                f"{case.spec.cls.__name__}: {bad.match}",
                text,
            )
            continue
        raise Fault(what, f"{bad.error.__name__} with {bad.match!r}", "no exception")


@prop("L19", "memory layout")
def layout(case: LossCase) -> None:
    """Transposed, strided and expanded inputs give the value of contiguous ones."""
    for n in case.sizes:
        inputs = case.inputs(n)
        value = call(case, case.make(), inputs)
        data = case.differentiable()
        strided = {k: torch.stack([v, v], -1)[..., 0] for k, v in inputs.items()}
        transposed = {k: v.transpose(0, -1).contiguous().transpose(0, -1) for k, v in inputs.items()}
        for what, changed in {"strided": strided, "transposed": transposed}.items():
            compare(f"value of {what} input", call(case, case.make(), changed), value)
        expanded = {k: v[:1].expand_as(v) if k in data else v for k, v in inputs.items()}
        contiguous = {k: v.contiguous() for k, v in expanded.items()}
        compare("value of expanded input", call(case, case.make(), expanded), call(case, case.make(), contiguous))


@prop("L20", "without and beyond first gradients")
def gradient_modes(case: LossCase) -> None:
    """The value is the same without gradients; second derivatives are right or raise, never silently zero."""
    n = next((n for n in case.sizes if n > 1), case.sizes[0])
    inputs = case.inputs(n)
    module = scalar(case)
    value = call(case, module, inputs)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            compare(f"value under {mode.__name__}", call(case, module, inputs), value, rtol=1e-12)
    leaves = case.leaves(inputs)
    names = case.differentiable()
    directions = [
        torch.randn(leaves[k].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) for k in names
    ]

    def slope(step: float, keep: bool) -> Tensor:
        moved = {**leaves, **{k: leaves[k].detach() + step * d for k, d in zip(names, directions, strict=True)}}
        moved = case.leaves(moved)
        grads = torch.autograd.grad(
            call(case, module, moved), [moved[k] for k in names], create_graph=keep, allow_unused=True
        )
        if keep:
            return _second(grads, [moved[k] for k in names], directions)
        return sum((g * d).sum() for g, d in zip(grads, directions, strict=True) if g is not None)  # type: ignore[return-value]

    try:
        second = float(slope(0.0, keep=True))
    except RuntimeError:
        return
    step = 1e-5
    numeric = float(slope(step, keep=False) - slope(-step, keep=False)) / (2 * step)
    compare("second derivative along a random direction", second, numeric, rtol=1e-4, atol=1e-6)


def _second(grads: Any, leaves: list[Tensor], directions: list[Tensor]) -> Tensor:
    """Directional second derivative from first gradients with a graph; zero where there is none."""
    slope = sum((g * d).sum() for g, d in zip(grads, directions, strict=True) if g is not None)
    if not isinstance(slope, Tensor) or not slope.requires_grad:
        return torch.zeros(())
    # backward, not grad: a function that can't be differentiated twice raises only where it is reached.
    torch.autograd.backward(slope)
    seconds = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return sum(((s * d).sum() for s, d in zip(seconds, directions, strict=True)), torch.zeros(()))


def _same_values(case: LossCase) -> str | None:
    return "its blocks change no value, see L1" if case.config.get("block_size") else None


@prop("L21", "learns", dear=True, needs=_same_values)
def learns(case: LossCase) -> None:
    """50 steps on a small problem lower the loss and raise the score that the loss is for above its threshold."""
    problem = case.kind.problem(torch.Generator().manual_seed(0))
    module = scalar(case, torch.float32)
    names = case.names()

    def value() -> Tensor:
        drawn = problem.inputs()
        return call(case, module, {name: drawn[source] for name, source in names.items()})

    optimizer = torch.optim.Adam([*problem.parameters, *module.parameters()], lr=0.3)
    first, start = float(value().detach()), problem.score()
    for _ in range(50):
        optimizer.zero_grad()
        value().backward()
        optimizer.step()
    last, end = float(value().detach()), problem.score()
    require(math.isfinite(last) and last < first, "loss after 50 steps", f"below {first:.4g}", last)
    wanted = max(start, problem.threshold)
    require(end >= wanted, f"score after 50 steps, {start:.3g} at the start", f"at least {wanted:.3g}", end)
