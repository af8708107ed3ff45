"""Properties of modules that are no loss: projectors, whitening, prototypes, queues."""

import copy
import inspect
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from trainkit.testing.case import Case, parameter_gradients
from trainkit.testing.common import as_lists, check_golden, holds_modules
from trainkit.testing.configs import check_config
from trainkit.testing.faults import Fault, compare, require
from trainkit.testing.properties import prop
from trainkit.testing.spec import ModuleSpec

__all__ = ["Call", "ModuleCase", "backward", "cotangent", "outputs"]

ModuleCase: TypeAlias = Case[ModuleSpec]
Call: TypeAlias = Callable[[Any, dict[str, Tensor]], Any]


def _by_name(value: Any) -> dict[str, Any]:
    """A result as parts by name, whether it is one thing, a tuple or a mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return {f"output {i}": part for i, part in enumerate(value)}
    return {"output": value}


def outputs(call: Call | None, module: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that come of one call, by name.

    Raises:
        Fault: If something else comes.
    """
    parts = _by_name(call(module, inputs) if call else module(**inputs))
    for name, part in parts.items():
        if not isinstance(part, Tensor):
            raise Fault(name, "a tensor", f"{type(part).__name__} {part!r}")
    return parts


def _run(case: ModuleCase, module: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return outputs(case.spec.call, module, inputs)


def _exact(case: ModuleCase) -> Any:
    """A new module in fp64."""
    return case.make().double()


def _usable(case: ModuleCase) -> list[int]:
    """Numbers of rows that the module doesn't refuse; N4 sees to how it refuses."""
    found = []
    for n in case.sizes:
        module, inputs = _exact(case), case.inputs(n)
        try:
            _run(case, module, inputs)
        except ValueError:
            continue
        found.append(n)
    if not found:
        raise Fault("batches that are not refused", f"one of {', '.join(map(str, case.sizes))} rows", "none")
    return found


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers, those outside of ``state_dict`` too."""
    return {k: v.detach().clone() for k, v in (*module.named_parameters(), *module.named_buffers())}


def cotangent(output: Tensor) -> Tensor:
    """Weights that are all different: the plain sum of centred outputs would have no gradient."""
    return torch.arange(output.numel(), dtype=torch.float64).cos().view(output.shape).to(output)


def backward(outs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]) -> None:
    """Gradients of the weighted sum of the outputs that have a graph and a weight of their shape."""
    pairs = [(o, cotangents[k]) for k, o in outs.items() if o.requires_grad and k in cotangents]
    terms = [(o * weight).sum() for o, weight in pairs if o.shape == weight.shape]
    if terms:
        torch.stack(terms).sum().backward()


def _values_and_gradients(
    case: ModuleCase, module: Any, inputs: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    """Outputs of a call, and gradients of their weighted sum by input name and ``parameter NAME``."""
    leaves = case.leaves(inputs)
    module.zero_grad()
    outs = _run(case, module, leaves)
    backward(outs, {k: cotangent(o.detach()) for k, o in outs.items()})
    # A compiled module puts a prefix before the names.
    parameters = {k.replace("_orig_mod.", ""): v for k, v in parameter_gradients(module).items()}
    gradients = {k: leaves[k].grad for k in case.differentiable()}
    return {k: o.detach() for k, o in outs.items()}, {**gradients, **parameters}


def _no_values(case: ModuleCase) -> str | None:
    return None if case.spec.golden or case.spec.reference else "no reference values are given"


@prop("N1", "reference values", needs=_no_values)
def values(case: ModuleCase) -> None:
    """Outputs of successive calls equal the independent reference, which may read the state before each call."""
    if case.index == 0:
        for golden in case.spec.golden:
            check_golden(golden)
    reference = case.spec.reference
    if reference is None:
        return
    reads_state = "state" in inspect.signature(reference).parameters
    module = _exact(case)
    for n in _usable(case):
        inputs = case.inputs(n)
        module = module if reads_state else _exact(case)
        state = {"state": as_lists(_state(module))} if reads_state else {}
        expected = _by_name(reference(**as_lists(inputs), **case.config, **state))
        compare("value against the reference", _run(case, module, inputs), expected, rtol=1e-9)


def _no_graph(case: ModuleCase) -> str | None:
    outs = _run(case, _exact(case), case.leaves(case.inputs(_usable(case)[-1])))
    return None if any(o.requires_grad for o in outs.values()) else "its output has no graph"


def _rewinder(module: nn.Module) -> Callable[[], None]:
    """Gives a function that puts the buffers back, as new tensors: earlier graphs may hold the old ones."""
    saved = [(m, name, b.clone()) for m in module.modules() for name, b in m.named_buffers(recurse=False)]

    def rewind() -> None:
        for owner, name, buffer in saved:
            setattr(owner, name, buffer.clone())

    return rewind


@prop("N2", "gradients", needs=_no_graph, dear=True)
def gradients(case: ModuleCase) -> None:
    """Gradients equal central differences in fp64, for the inputs and for the module's parameters."""
    sizes = _usable(case)
    inputs = case.leaves(case.inputs(next((n for n in reversed(sizes) if n <= 7), sizes[0])))
    names = case.differentiable()
    module = _exact(case)
    rewind = _rewinder(module)

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        rewind()
        outs = _run(case, module, {**inputs, **dict(zip(names, args, strict=False))})
        return tuple(o for o in outs.values() if o.requires_grad)

    leaves = [*(inputs[name] for name in names), *(p for p in module.parameters() if p.requires_grad)]
    try:
        torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        text = " ".join(str(error).splitlines()[:6])
        raise Fault("gradient against central differences", "equal to 1e-4", text) from error


def _autocast(case: ModuleCase, inputs: dict[str, Tensor]) -> None:
    module = case.make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outs, _ = _values_and_gradients(case, module, inputs)
    for name, out in outs.items():
        require(bool(out.isfinite().all()), f"{name} under bf16 autocast", "finite", out)
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        if grad is not None:
            require(bool(grad.isfinite().all()), f"gradient of {name} under bf16 autocast", "finite", grad)
            require(grad.dtype == parameter.dtype, f"dtype of the gradient of {name}", parameter.dtype, grad.dtype)


@prop("N3", "precision")
def precision(case: ModuleCase) -> None:
    """Outputs and gradients in fp32 equal those in fp64 to 1e-4; under bf16 autocast they are finite."""
    for n in _usable(case):
        inputs = case.inputs(n, torch.float32)
        doubles = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        exact = _values_and_gradients(case, _exact(case), doubles)
        found = _values_and_gradients(case, case.make(), inputs)
        for name, out in found[0].items():
            if out.is_floating_point():
                require(out.dtype == torch.float32, f"dtype of {name} for fp32 input", torch.float32, out.dtype)
                wide = exact[0][name].dtype
                require(wide == torch.float64, f"dtype of {name} for fp64 input", torch.float64, wide)
        compare("value in fp32", found[0], exact[0], rtol=1e-4, atol=1e-6)
        compare("gradient in fp32", found[1], exact[1], rtol=1e-4, atol=1e-6)
        _autocast(case, inputs)


def _check_finite_or_refused(case: ModuleCase, n: int, training: bool) -> None:
    module = _exact(case).train(training)
    what = f"for {n} rows in {'training' if training else 'evaluation'}"
    try:
        outs = _run(case, module, case.inputs(n))
    except ValueError as error:
        named = case.spec.cls.__name__ in str(error)
        require(named, f"error {what}", f"a text with {case.spec.cls.__name__}", error)
        return
    for name, tensor in (*outs.items(), *_state(module).items()):
        require(bool(tensor.isfinite().all()), f"{name} {what}", "finite", tensor)


@prop("N4", "batch sizes")
def batch_sizes(case: ModuleCase) -> None:
    """Any number of rows, none included, gives finite outputs and state, or one ValueError that names the class."""
    sizes = case.sizes if case.rows is not None else sorted({0, 1, *case.sizes})
    for training in (True, False):
        for n in sizes:
            _check_finite_or_refused(case, n, training)


def _reloaded(case: ModuleCase, module: nn.Module) -> nn.Module:
    """A module built from another seed, with the state of ``module`` loaded from a file."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        other: nn.Module = case.spec.cls(**copy.deepcopy(dict(case.config)))
    other.double().load_state_dict(torch.load(file, weights_only=True))
    return other


def _check_repr(case: ModuleCase, module: nn.Module) -> None:
    if type(module).extra_repr is nn.Module.extra_repr:
        return
    for name in inspect.signature(case.spec.cls).parameters:
        if not holds_modules(getattr(module, name, None)):
            require(f"{name}=" in repr(module), "repr", f"a text with {name}=", repr(module))


@prop("N5", "copies")
def copies(case: ModuleCase) -> None:
    """After some calls, deep copies, pickles, a reloaded state and one in a module from its configuration go on alike.

    The repr shows every hyper-parameter.
    """
    module = _exact(case)
    for n in _usable(case):
        _run(case, module, case.inputs(n, seed=1))
    rebuilt = check_config(case.spec.cls, case.config, nn.Module)
    require(repr(rebuilt) == repr(module), "repr of the module from its configuration", repr(module), repr(rebuilt))
    rebuilt.double().load_state_dict(module.state_dict())
    others = {
        "a deep copy": copy.deepcopy(module),
        "a pickle": pickle.loads(pickle.dumps(module)),  # noqa: S301 - our own bytes
        "a reloaded state": _reloaded(case, module),
        "the module from its configuration": rebuilt,
    }
    inputs = case.inputs(_usable(case)[-1])
    for training in (False, True):
        expected = _run(case, module.train(training), inputs)
        for what, other in others.items():
            compare(f"value of {what}", _run(case, other.train(training), inputs), expected, rtol=0, atol=0)
    _check_repr(case, module)


def _has_forward(case: ModuleCase) -> bool:
    return case.spec.cls.forward is not nn.Module.forward


def _no_forward(case: ModuleCase) -> str | None:
    return None if _has_forward(case) else "it has no forward"


@prop("N6", "compiles to one graph", needs=_no_forward, dear=True)
def compiles(case: ModuleCase) -> None:
    """torch.compile(fullgraph=True) gives the eager outputs and gradients, also when the batch changes its size."""
    torch._dynamo.reset()
    eager = case.make()
    compiled = torch.compile(case.make(), fullgraph=True, backend="aot_eager")
    sizes = _usable(case)
    for n in [n for n in sizes if n > 1] or sizes:
        inputs = case.inputs(n, torch.float32)
        expected = _values_and_gradients(case, eager, inputs)
        found = _values_and_gradients(case, compiled, inputs)
        compare("value when compiled", found[0], expected[0], rtol=1e-5, atol=1e-7)
        compare("gradient when compiled", found[1], expected[1], rtol=1e-5, atol=1e-7)


@prop("N7", "purity")
def purity(case: ModuleCase) -> None:
    """A call changes neither inputs nor attributes and, in evaluation, no random state; nor does forward the state."""
    module = _exact(case)
    inputs = case.inputs(_usable(case)[-1])
    before = {k: v.clone() for k, v in inputs.items()}
    attributes = set(vars(module))
    for training in (True, False):
        module.train(training)
        state, random = _state(module), torch.get_rng_state()
        _run(case, module, inputs)
        for name, value in inputs.items():
            require(torch.equal(value, before[name]), f"{name} after the call", before[name], value)
        require(set(vars(module)) == attributes, "attributes after the call", sorted(attributes), sorted(vars(module)))
        require(torch.is_grad_enabled(), "gradient mode after the call", "on", "off")
        if training:
            continue
        same = torch.equal(random, torch.get_rng_state())
        require(same, "global random state after the call", "as before", "changed")
        # Without a forward, the call is one that is made in order to change the state.
        for name, value in _state(module).items() if _has_forward(case) else ():
            require(torch.equal(value, state[name]), f"{name} after a call in evaluation", state[name], value)


@prop("N8", "errors")
def errors(case: ModuleCase) -> None:
    """Wrong calls raise one sentence with class, argument and value; labels of another length raise."""
    inputs = case.inputs(4) if case.rows is None else case.inputs(case.sizes[0])
    second = next((k for k, source in case.names().items() if source in ("target", "labels", "key")), None)
    if second is not None:
        shorter = case.seen({**inputs, second: inputs[second][:-1]})
        try:
            got: Any = _run(case, _exact(case), shorter)
        except Exception:
            got = None
        require(got is None, f"{second} with a row less", "an exception", got)
    for bad in case.spec.errors if case.index == 0 else ():
        what = f"call with {', '.join([*bad.config, *bad.inputs])}"
        changed = {**inputs, **bad.inputs}
        try:
            _run(case, case.make(**bad.config), changed)
        except bad.error as error:
            text = str(error)
            fits = case.spec.cls.__name__ in text and bad.match in text
            require(fits, what, f"{case.spec.cls.__name__}: {bad.match}", text)
            continue
        raise Fault(what, f"{bad.error.__name__} with {bad.match!r}", "no exception")


@prop("N10", "memory layout")
def layout(case: ModuleCase) -> None:
    """Transposed, strided and expanded inputs give the outputs of contiguous ones."""
    data = case.differentiable()
    for n in _usable(case):
        inputs = case.inputs(n)
        expanded = {k: v[:1].expand_as(v) if k in data else v for k, v in inputs.items()}
        layouts = {
            "strided": {k: torch.stack([v, v.flip(0)], -1)[..., 0] for k, v in inputs.items()},
            "transposed": {k: v.transpose(0, -1).contiguous().transpose(0, -1) for k, v in inputs.items()},
            "expanded": expanded,
        }
        for what, changed in layouts.items():
            contiguous = {k: v.contiguous() for k, v in changed.items()}
            expected = _run(case, _exact(case), contiguous)
            compare(f"value of {what} input", _run(case, _exact(case), changed), expected)
