"""Properties of losses: values, gradients, precision and extremes."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from trainkit.testing.common import as_lists, check_golden
from trainkit.testing.faults import Fault, compare, require, same_shape_and_dtype
from trainkit.testing.losses.common import LossCase, call, cast, same_to_rounding, scalar
from trainkit.testing.properties import prop

ABOUT_THE_MODULE = ("sync", "learnable", "gather_negatives")
"""Constructor arguments that say how a module behaves on ranks or in training, which a function has no part in."""


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
        if name in ABOUT_THE_MODULE:
            continue
        require(name in theirs, f"hyper-parameters of {function.__name__}", f"one named {name!r}", list(theirs))
        default = theirs[name].default
        require(default == parameter.default, f"default of {name} in {function.__name__}", parameter.default, default)
    config = {k: v for k, v in case.config.items() if k not in ABOUT_THE_MODULE}
    for n in case.sizes:
        inputs = case.inputs(n)
        value = call(case, case.make(), inputs)
        got = function(**inputs, **config)
        # A learned hyper-parameter is held in fp32.
        rtol = 1e-6 if any(True for _ in case.make().parameters()) else 0.0
        compare(f"value of {function.__name__}", got, value, rtol=rtol, atol=0.0)


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


@prop("L4", "fp32 equals fp64")
def single_precision(case: LossCase) -> None:
    """Value and gradients in fp32 equal those in fp64 to 1e-4, and the result has the dtype of the input."""
    for n in case.sizes:
        inputs = case.inputs(n, torch.float32)
        exact = case.value_and_gradients(case.make().double(), cast(inputs, torch.float64))
        require(exact[0].dtype == torch.float64, "dtype of the result for fp64 input", torch.float64, exact[0].dtype)
        module = case.make()
        require(call(case, module, inputs).dtype == torch.float32, "dtype for fp32 input", torch.float32, "another")
        same_to_rounding(case, "in fp32", module, inputs, exact, 1e-4)


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
        same_to_rounding(case, what, case.make(), inputs, exact, 1e-5, lowered)
        for dtype in (torch.bfloat16, torch.float16):
            low = case.seen(cast(inputs, dtype), dtype)
            exact_low = case.value_and_gradients(case.make(), cast(low, torch.float32))
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
