"""Properties of losses: values, gradients and precision."""

import copy
import inspect
import math
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from trainkit.testing.case import Case
from trainkit.testing.faults import Fault, compare, require, same_shape_and_dtype
from trainkit.testing.properties import prop
from trainkit.testing.spec import Golden, LossSpec

__all__ = ["LossCase", "as_lists", "call", "check_golden", "holds_modules", "scalar", "single_row"]

LossCase: TypeAlias = Case[LossSpec]


def call(case: LossCase, module: Any, inputs: dict[str, Any]) -> Tensor:
    """Value of one call, which must be a tensor."""
    value = module(**inputs)
    if not isinstance(value, Tensor):
        raise Fault("the result of forward", "a tensor", f"{type(value).__name__} {value!r}")
    return value


def scalar(case: LossCase, dtype: torch.dtype = torch.float64) -> Any:
    """The part for inputs of ``dtype``, reducing to a number if it can."""
    changes = {"reduction": "mean"} if case.has("reduction") and case.setting("reduction") == "none" else {}
    module = case.make(**changes)
    return module.to(dtype) if isinstance(module, nn.Module) else module


def as_lists(inputs: dict[str, Any]) -> dict[str, Any]:
    """Tensors as nested lists, for references in plain Python."""
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in inputs.items()}


def single_row(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row of every tensor."""
    return {k: v[row : row + 1] for k, v in inputs.items()}


def check_golden(golden: Golden) -> None:
    """Compare one golden record with what its call gives."""
    got = golden.run()
    for key, expected in golden.expected.items():
        if key not in got:
            raise Fault(f"record {golden.name!r}", f"a value named {key!r}", sorted(got))
        gradient = key == "grad"
        rtol = golden.grad_rtol if gradient else golden.rtol
        compare(f"record {golden.name!r}, {key}", got[key], expected, rtol=rtol, atol=1e-2 * rtol)


def _no_values(case: LossCase) -> str | None:
    return None if case.spec.golden or case.spec.reference else "no reference values are given"


@prop("L1", "reference values", needs=_no_values)
def values(case: LossCase) -> None:
    """Value and gradients equal the golden records and the independent reference."""
    if case.index == 0:
        for golden in case.spec.golden:
            check_golden(golden)
    reference = case.spec.reference
    if reference is None:
        return
    module = case.make()
    for n in case.sizes:
        if n < case.spec.smallest:
            continue
        inputs = case.inputs(n)
        expected = reference(**as_lists(inputs), **case.config)
        compare("value against the reference", call(case, module, inputs), expected, rtol=1e-9, atol=1e-12)


def _no_function(case: LossCase) -> str | None:
    return None if case.spec.function else "no functional form is given"


@prop("L2", "function equals class", needs=_no_function)
def functional(case: LossCase) -> None:
    """The function gives the class's value bit for bit and has its hyper-parameters with the same defaults."""
    function = case.spec.function
    if function is None:
        return
    own = inspect.signature(case.spec.cls).parameters
    theirs = inspect.signature(function).parameters
    for name, parameter in own.items():
        if name == "sync":
            continue
        require(name in theirs, f"hyper-parameters of {function.__name__}", f"one named {name!r}", list(theirs))
        default = theirs[name].default
        require(default == parameter.default, f"default of {name} in {function.__name__}", parameter.default, default)
    config = {k: v for k, v in case.config.items() if k in theirs}
    for n in case.sizes:
        inputs = case.inputs(n)
        value = call(case, case.make(), inputs)
        got = function(**inputs, **config)
        require(torch.equal(got, value), f"value of {function.__name__}", value, got)


@prop("L3", "gradients", dear=True)
def gradients(case: LossCase) -> None:
    """Gradients equal central differences in fp64, for the inputs and for the loss's own parameters."""
    names = case.differentiable()
    n = next((n for n in reversed(case.sizes) if n <= 7), case.sizes[0])
    inputs = case.leaves(case.inputs(n))
    module = scalar(case)
    parameters = list(module.parameters()) if isinstance(module, nn.Module) else []
    tensors = [inputs[name] for name in names]

    def function(*args: Tensor) -> Tensor:
        return call(case, module, {**inputs, **dict(zip(names, args, strict=False))})

    try:
        torch.autograd.gradcheck(function, [*tensors, *parameters], eps=1e-6, atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        lines = str(error).splitlines()
        raise Fault("gradient against central differences", "equal to 1e-4", " ".join(lines[:6])) from error


def _same_to_rounding(
    case: LossCase,
    what: str,
    module: Any,
    inputs: dict[str, Any],
    exact: Any,
    rtol: float,
    context: AbstractContextManager[Any] | None = None,
) -> None:
    value, grads = case.value_and_gradients(module, inputs, context)
    compare(f"value {what}", value, exact[0], rtol=rtol, atol=rtol / 100)
    for name, grad in grads.items():
        compare(f"gradient of {name} {what}", grad, exact[1][name], rtol=rtol, atol=rtol / 100)


def _cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {k: v.to(dtype) if torch.is_floating_point(v) else v for k, v in inputs.items()}


@prop("L4", "fp32 equals fp64")
def single_precision(case: LossCase) -> None:
    """Value and gradients in fp32 equal those in fp64 to 1e-4, and the result has the dtype of the input."""
    for n in case.sizes:
        inputs = case.inputs(n, torch.float32)
        exact = case.value_and_gradients(case.make().double(), _cast(inputs, torch.float64))
        require(exact[0].dtype == torch.float64, "dtype of the result for fp64 input", torch.float64, exact[0].dtype)
        module = case.make()
        require(call(case, module, inputs).dtype == torch.float32, "dtype for fp32 input", torch.float32, "another")
        _same_to_rounding(case, "in fp32", module, inputs, exact, 1e-4)


@prop("L5", "fp32 inside under autocast")
def autocast(case: LossCase) -> None:
    """Under bf16 autocast, and for half-precision input, the loss computes in fp32 and returns fp32."""
    for n in case.sizes:
        inputs = case.inputs(n, torch.float32)
        exact = case.value_and_gradients(case.make(), inputs)
        what = "for fp32 input under bf16 autocast"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same_shape_and_dtype(f"result {what}", call(case, case.make(), inputs), exact[0])
        lowered = torch.autocast("cpu", dtype=torch.bfloat16)
        _same_to_rounding(case, what, case.make(), inputs, exact, 1e-5, lowered)
        for dtype in (torch.bfloat16, torch.float16):
            low = case.seen(_cast(inputs, dtype), dtype)
            exact_low = case.value_and_gradients(case.make(), _cast(low, torch.float32))
            for on in (True, False):
                what = f"for {str(dtype).removeprefix('torch.')} input {'under' if on else 'without'} autocast"
                context = torch.autocast("cpu", dtype=torch.bfloat16, enabled=on)
                value, grads = case.value_and_gradients(case.make(), low, context)
                same_shape_and_dtype(f"result {what}", value, exact_low[0])
                compare(f"value {what}", value, exact_low[0], rtol=1e-5, atol=1e-7)
                for name in case.differentiable():
                    grad, expected = grads[name], exact_low[1][name]
                    if grad is not None and expected is not None:
                        require(grad.dtype == dtype, f"dtype of the gradient of {name} {what}", dtype, grad.dtype)
                        compare(f"gradient of {name} {what}", grad, expected.to(dtype), rtol=1e-2, atol=1e-4)


def _extremes(case: LossCase, n: int, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """Finite but unusual inputs, by name."""
    base = case.inputs(n, dtype)
    names = case.differentiable()

    def changed(function: Any) -> dict[str, Any]:
        return {k: function(v) if k in names else v for k, v in base.items()}

    def scaled(size: float) -> dict[str, Any]:
        return changed(lambda v: v / v.abs().max().clamp_min(1e-6) * size)

    cases = {f"data scaled to {size:g}": scaled(size) for size in (88.8, 1e4, 6.5e4)}
    cases["data of 1e4 times their sign"] = changed(lambda v: torch.where(v > 0, 1e4, -1e4).to(v.dtype))
    cases["data of 20 times their sign"] = changed(lambda v: torch.where(v > 0, 20.0, -20.0).to(v.dtype))
    cases["data all equal"] = changed(lambda v: torch.full_like(v, 0.5))
    cases["data all zero"] = changed(torch.zeros_like)
    cases["rows all equal"] = changed(lambda v: v[:1].expand_as(v).clone())
    cases["data of 1e-30"] = changed(lambda v: v * 1e-30)
    return cases


@prop("L6", "finite at extremes")
def extremes(case: LossCase) -> None:
    """Finite input gives finite value and gradients: huge, saturated, equal and zero data."""
    for dtype in (torch.float32, torch.float64):
        for n in case.sizes:
            for name, inputs in _extremes(case, n, dtype).items():
                case.seen(inputs, dtype)
                value, grads = case.value_and_gradients(case.make().to(dtype), inputs)
                require(bool(value.isfinite().all()), f"value for {name}", "finite", value)
                for key, grad in grads.items():
                    if grad is not None:
                        require(bool(grad.isfinite().all()), f"gradient of {key} for {name}", "finite", grad)


def degenerate_inputs(case: LossCase) -> dict[str, dict[str, Any]]:
    """Inputs on which nothing counts, by name: no rows, all ignored, all masked, all of weight zero."""
    found = {"an empty batch": case.inputs(0)}
    for n in (1, 4):
        full = case.inputs(n) if case.rows is None else case.inputs(case.sizes[0])
        target = next((k for k, source in case.names().items() if source == "target"), None)
        if case.ignore_index is not None and target:
            ignored = torch.full_like(full[target], case.ignore_index)
            found[f"all of {n} targets ignored"] = {**full, target: ignored}
        if target and case.takes("mask"):
            found[f"all of {n} targets masked"] = {**full, "mask": _per_target(case, full, target).bool() & False}
        if target and case.takes("weight"):
            found[f"{n} weights of zero"] = {**full, "weight": 0 * _per_target(case, full, target)}
    return found


def _per_target(case: LossCase, inputs: dict[str, Any], target: str) -> Tensor:
    """A float tensor of ones with one entry for each target: that is the shape of unreduced rows."""
    rows = case.make(reduction="none")(**inputs) if case.has("reduction") else inputs[target]
    return torch.ones(rows.shape, dtype=torch.float64)


@prop("L7", "nothing to average")
def degenerate(case: LossCase) -> None:
    """Where nothing counts (an empty batch, all ignored) the value is 0.0 with a live graph and zero gradients."""
    for name, inputs in degenerate_inputs(case).items():
        case.seen(inputs, torch.float64)
        module = scalar(case)
        leaves = case.leaves(inputs)
        value = call(case, module, leaves)
        require(value.dim() == 0 and value.item() == 0.0, f"value for {name}", 0.0, value)
        require(value.requires_grad, f"graph of the value for {name}", "attached", "detached")
        module.zero_grad()
        value.backward()
        for key in case.differentiable():
            grad = leaves[key].grad
            require(grad is not None and not grad.any(), f"gradient of {key} for {name}", "zeros", grad)
        for key, parameter in module.named_parameters():
            grad = parameter.grad
            require(grad is not None and not grad.any(), f"gradient of parameter {key} for {name}", "zeros", grad)


def _no_reduction(case: LossCase) -> str | None:
    return None if case.has("reduction") else "it has no argument reduction"


@prop("L8", "reductions", needs=_no_reduction)
def reductions(case: LossCase) -> None:
    """The sum adds the rows of "none"; the mean divides by what the rows weigh; another word raises."""
    for n in case.sizes:
        inputs = case.inputs(n)
        rows = case.make(reduction="none")(**inputs)
        total = case.make(reduction="sum")(**inputs)
        mean = case.make(reduction="mean")(**inputs)
        require(rows.dim() >= 1, 'shape of "none"', "at least one dimension", tuple(rows.shape))
        compare('"sum" against the rows of "none"', total, rows.sum())
        if case.is_local and rows.shape[0] == n:
            singles = [single_row(inputs, i) for i in range(n)]
            means = torch.stack([case.make(reduction="mean")(**s) for s in singles])
            sums = torch.stack([case.make(reduction="sum")(**s) for s in singles])
            if bool((means != 0).all()):
                compare('"mean" against "sum" over the weight of the rows', mean, sums.sum() / (sums / means).sum())
        else:
            compare('"mean" against the mean of "none"', mean, rows.mean())
    try:
        case.make(reduction="average")
    except ValueError:
        return
    raise Fault('reduction="average"', "ValueError", "no exception")


@prop("L9", "order of the rows")
def permutation(case: LossCase) -> None:
    """Permuting the batch leaves the reduced value and permutes the rows."""
    for n in case.sizes:
        inputs = case.inputs(n)
        rows = next(v.shape[0] for v in inputs.values())
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(n))
        permuted = {k: v[order] for k, v in inputs.items()}
        module = scalar(case)
        compare("value of the permuted batch", call(case, module, permuted), call(case, module, inputs))
        if case.has("reduction"):
            unreduced = case.make(reduction="none")
            whole = call(case, unreduced, inputs)
            if whole.shape[0] == rows:
                compare("rows of the permuted batch", call(case, unreduced, permuted), whole[order])


def _no_invariances(case: LossCase) -> str | None:
    return None if case.spec.invariances else "no invariances are declared"


@prop("L10", "invariances", needs=_no_invariances)
def invariances(case: LossCase) -> None:
    """The changes that the method is blind to leave the value."""
    module = scalar(case)
    for invariance in case.spec.invariances:
        for n in case.sizes:
            inputs = case.inputs(n)
            changed = invariance.change(dict(inputs))
            value = call(case, module, inputs)
            compare(f"value after {invariance.name}", call(case, module, changed), value, rtol=1e-9, atol=1e-10)


def _nothing_ignored(case: LossCase) -> str | None:
    if "target" not in case.names().values():
        return "it takes no target"
    if case.takes("mask") or case.ignore_index is not None:
        return None
    return "it has neither ignore_index nor mask"


@prop("L11", "ignored targets", needs=_nothing_ignored)
def ignored(case: LossCase) -> None:
    """Ignored or masked rows count as if they were not there, whatever the data in them."""
    target = next(k for k, source in case.names().items() if source == "target")
    data = case.differentiable()
    for n in case.sizes:
        inputs = case.inputs(n)
        rows = inputs[target].shape[0]
        keep = torch.arange(rows) % 3 != 1
        kept = {k: v[keep] for k, v in inputs.items()}
        garbage = {
            k: v.masked_fill(~keep.view(-1, *[1] * (v.dim() - 1)), 1e4) if k in data else v for k, v in inputs.items()
        }
        ways = []
        if case.ignore_index is not None:
            out = ~keep.view(-1, *[1] * (inputs[target].dim() - 1))
            dropped = inputs[target].masked_fill(out, case.ignore_index)
            ways.append(("ignore_index", {**garbage, target: dropped}))
        if case.takes("mask"):
            ones = _per_target(case, inputs, target).bool()
            ways.append(("mask", {**garbage, "mask": ones & keep.view(-1, *[1] * (ones.dim() - 1))}))
        exact = case.value_and_gradients(scalar(case), kept)
        for way, with_ignored in ways:
            case.seen(with_ignored)
            value, grads = case.value_and_gradients(scalar(case), with_ignored)
            compare(f"value with {way} against the value of the rows kept", value, exact[0])
            for key in data:
                grad, expected = grads[key], exact[1][key]
                if grad is not None and expected is not None:
                    compare(f"gradient of {key} with {way}, rows kept", grad[keep], expected)
                    compare(f"gradient of {key} with {way}, rows ignored", grad[~keep], 0 * grad[~keep])


def _no_weights(case: LossCase) -> str | None:
    if not case.takes("weight"):
        return "it takes no weight"
    return None if case.is_local else "a row repeated is another row to compare with"


@prop("L12", "weights", needs=_no_weights)
def weights(case: LossCase) -> None:
    """A weight that is a whole number equals repeating the row so many times."""
    for n in case.sizes:
        inputs = case.inputs(n)
        rows = next(v.shape[0] for v in inputs.values())
        times = 1 + torch.arange(rows) % 3
        repeated = {k: v.repeat_interleave(times, dim=0) for k, v in inputs.items()}
        per_target = _per_target(case, inputs, "target")
        weight = per_target * times.view(-1, *[1] * (per_target.dim() - 1))
        module = scalar(case)
        compare("value with weights", call(case, module, {**inputs, "weight": weight}), call(case, module, repeated))


@prop("L13", "compiles to one graph", dear=True)
def compiles(case: LossCase) -> None:
    """torch.compile(fullgraph=True) gives the eager value and gradients, also when the batch changes its size."""
    torch._dynamo.reset()
    module = case.make()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for n in [n for n in case.sizes if n > 1] or case.sizes:
        inputs = case.inputs(n, torch.float32)
        expected = case.value_and_gradients(module, inputs)
        _same_to_rounding(case, "compiled", compiled, inputs, (expected[0], _compiled_names(expected[1])), 1e-5)


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
    import pickle

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


def holds_modules(value: Any) -> bool:
    """Whether a hyper-parameter is a module or a list with modules in it, which show themselves."""
    if isinstance(value, (list, tuple)):
        return any(holds_modules(v) for v in value)
    return isinstance(value, nn.Module)


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


@prop("L21", "learns", dear=True)
def learns(case: LossCase) -> None:
    """50 steps on a small problem lower the loss and raise the score that the loss is for above its threshold."""
    problem = case.kind.problem(torch.Generator().manual_seed(0))
    module = scalar(case, torch.float32)
    names = case.names()

    def value() -> Tensor:
        drawn = problem.inputs()
        return call(case, module, {name: drawn[source] for name, source in names.items()})

    optimizer = torch.optim.Adam([*problem.parameters, *module.parameters()], lr=0.1)
    first, start = float(value().detach()), problem.score()
    for _ in range(50):
        optimizer.zero_grad()
        value().backward()
        optimizer.step()
    last, end = float(value().detach()), problem.score()
    require(math.isfinite(last) and last < first, "loss after 50 steps", f"below {first:.4g}", last)
    wanted = max(start, problem.threshold)
    require(end >= wanted, f"score after 50 steps, {start:.3g} at the start", f"at least {wanted:.3g}", end)
