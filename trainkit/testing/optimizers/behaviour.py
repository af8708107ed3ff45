"""Properties of optimizers: what they do to gradients and closures, what they refuse, and their configuration."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainkit.testing.configs import check_factory
from trainkit.testing.faults import Fault, require
from trainkit.testing.optimizers.common import (
    OptimizerCase,
    build,
    draw_gradients,
    draw_parameters,
    needs_closure,
    same,
    same_state,
    shapes_of,
    start,
    state_of,
    step_on,
    step_with,
    walk,
    with_decay,
)
from trainkit.testing.properties import prop

REFUSALS = (TypeError, RuntimeError, ValueError)


@prop("O4", "gradients")
def gradient_handling(case: OptimizerCase) -> None:
    """Without gradient, or with a zero one and no decay, nothing moves; gradients are neither changed nor kept.

    Sparse and complex ones are handled right or refused with an error that names the class.
    """
    _check_nothing_to_do(case)
    _check_left_alone(case)
    _check_sparse(case)
    _check_complex(case)
    if case.spec.found_inf:
        _check_found_inf(case)


def _check_nothing_to_do(case: OptimizerCase) -> None:
    optimizer, parameters = start(case)
    before = [p.detach().clone() for p in parameters]
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 2)
    walk(optimizer, parameters, [[None, *own[1:]] for own in gradients])
    same("without gradient", parameters[:1], before[:1])
    require(not state_of(optimizer)[0], "state of a parameter without gradient", {}, state_of(optimizer)[0])
    optimizer, parameters = start(case, **with_decay(case, 0.0))
    walk(optimizer, parameters, [[torch.zeros_like(p) for p in parameters]] * 3)
    same("after zero gradients, without decay", parameters, before)


def _check_left_alone(case: OptimizerCase) -> None:
    """One gradient buffer that is overwritten gives what new gradients give, and is as it was after each step."""
    optimizer, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 5)
    expected = walk(optimizer, parameters, gradients)
    reusing, others = start(case)
    for parameter in others:
        parameter.grad = torch.zeros_like(parameter)

    def write(own: list[Tensor]) -> Tensor:
        for parameter, gradient in zip(others, own, strict=True):
            buffer = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = buffer.copy_(gradient)
        return torch.stack([(p.detach() * g).sum() for p, g in zip(others, own, strict=True)]).sum()

    for step, own in enumerate(gradients, 1):
        step_on(reusing, partial(write, own))
        same(f"gradients after step {step}", [p.grad for p in others if p.grad is not None], own)
        same(f"with gradient buffers that are overwritten, step {step}", others, expected[step - 1])


def _refuses(case: OptimizerCase, what: str, run: Callable[[], Any]) -> bool:
    """Whether the class refuses the call, with an error that names it or the class that it comes from."""
    try:
        run()
    except REFUSALS as error:
        names = [c.__name__ for c in case.spec.cls.__mro__ if issubclass(c, Optimizer) and c is not Optimizer]
        named = any(name in str(error) for name in names)
        require(named, f"error for {what}", f"a text with {case.spec.cls.__name__}", repr(error))
        return True
    return False


def _check_sparse(case: OptimizerCase) -> None:
    shape = next((s for s in shapes_of(case) if s), None)
    if shape is None:
        return
    touched = (torch.arange(shape[0]) == 0).view(-1, *[1] * (len(shape) - 1))
    gradients = [[own[0] * touched] for own in draw_gradients([shape], 3)]
    dense, sparse = draw_parameters([shape]), draw_parameters([shape])
    optimizer = build(case, sparse)
    rows = [[own[0].to_sparse(1)] for own in gradients]
    if not _refuses(case, "sparse gradients", lambda: walk(optimizer, sparse, rows)):
        same("with sparse gradients against dense ones", sparse, walk(build(case, dense), dense, gradients)[-1], 1e-12)


def _check_complex(case: OptimizerCase) -> None:
    """A complex vector takes the steps of a real one of twice the length."""
    if (5,) not in shapes_of(case):
        return
    plain = draw_parameters([(10,)])
    gradients = draw_gradients([(10,)], 3)

    def as_complex(real: Tensor) -> Tensor:
        return torch.view_as_complex(real.detach().view(5, 2).clone())

    parameter = nn.Parameter(as_complex(plain[0]))
    given = [[as_complex(g[0])] for g in gradients]
    if not _refuses(case, "complex parameters", lambda: walk(build(case, [parameter]), [parameter], given)):
        expected = [as_complex(p) for p in walk(build(case, plain), plain, gradients)[-1]]
        same("complex parameters against real ones", [parameter], expected, 1e-12)


def _check_found_inf(case: OptimizerCase) -> None:
    optimizer, parameters = start(case)
    plain, others = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 2)
    for own in gradients:
        step_with(optimizer, parameters, own)
        step_with(plain, others, own)
        optimizer.found_inf = torch.ones(())
        step_with(optimizer, parameters, [torch.full_like(p, math.inf) for p in parameters])
        same("parameters after a step with found_inf 1", parameters, others)
        same_state("after a step with found_inf 1", optimizer, plain)
        optimizer.found_inf = torch.zeros(())


@prop("O8", "closure")
def closure(case: OptimizerCase) -> None:
    """A closure is called as often as the class says, with gradients on; its first loss comes back; the step is alike.

    Classes say how often in ``closure_calls``; 1 if they have none.
    """
    calls = getattr(case.spec.cls, "closure_calls", 1)
    optimizer, parameters = start(case)
    plain, others = start(case)
    for _ in range(2):
        losses: list[Tensor] = []
        modes: list[bool] = []

        def evaluate(losses: list[Tensor] = losses, modes: list[bool] = modes) -> Tensor:
            modes.append(torch.is_grad_enabled())
            with torch.enable_grad():
                losses.append(_backward(parameters))
            return losses[-1]

        with torch.no_grad():
            returned = optimizer.step(evaluate)
        require(len(losses) == calls, "calls of the closure", calls, len(losses))
        require(all(modes), "gradients inside the closure, called under no_grad", "on", "off")
        require(_is_loss(returned, losses[0]), "what step(closure) returns", losses[0], returned)
        require(torch.is_grad_enabled(), "gradient mode after the step", "on", "off")
        if needs_closure(case.spec.cls):
            continue
        _backward(others)
        plain.step()
        same("step(closure) against backward and step()", parameters, others)


def _backward(parameters: list[nn.Parameter]) -> Tensor:
    for parameter in parameters:
        parameter.grad = None
    loss = torch.stack([(p * p.sin()).sum() for p in parameters]).sum()
    loss.backward()
    return loss


def _is_loss(returned: Any, loss: Tensor) -> bool:
    value = returned.detach() if isinstance(returned, Tensor) else returned
    return isinstance(value, (Tensor, float)) and float(value) == float(loss.detach())


WORDS: Mapping[str, tuple[str, ...]] = {
    "lr": ("lr", "learning rate", "learning_rate"),
    "betas": ("beta",),
    "eps": ("eps",),
    "weight_decay": ("weight_decay", "weight decay"),
}
"""What an error may call an argument."""


def _usual_mistakes(case: OptimizerCase) -> Iterator[tuple[str, Any]]:
    """Values that no optimizer has a meaning for."""
    for name, values in {"lr": (-0.1, math.nan), "eps": (-1e-8,), "weight_decay": (-0.1,)}.items():
        if case.has(name) and type(case.setting(name)) in (int, float):
            yield from ((name, value) for value in values)
    betas = case.setting("betas") if case.has("betas") else None
    if isinstance(betas, (tuple, list)) and all(isinstance(b, (int, float)) for b in betas):
        for i in range(len(betas)):
            for wrong in (1.0, -0.1):
                yield "betas", tuple(wrong if j == i else b for j, b in enumerate(betas))


@prop("O14", "errors")
def errors(case: OptimizerCase) -> None:
    """Hyper-parameters out of range, wrong parameters and the state of another class raise one clear sentence."""
    _, parameters = start(case)
    own = case.spec.cls.__name__
    for name, value in _usual_mistakes(case):
        words = (own, *WORDS[name])
        _must_refuse(f"{name}={value}", words, partial(build, case, parameters, **{name: value}))
    first = parameters[0]
    wrong: dict[str, Any] = {
        "an empty list of parameters": [],
        "a parameter in two groups": [{"params": [first]}, {"params": [first]}],
        "a number for a parameter": [1.0],
        "a parameter that is no leaf": [first * 2],
    }
    for what, params in wrong.items():
        _must_refuse(what, (own, "param", "Tensor"), partial(build, case, params))
    # The base class of torch only warns.
    twice = partial(build, case, [first, first])
    _must_refuse("a parameter twice in a group", (own, "param"), twice, ValueError, UserWarning)
    _check_other_state(case)
    for bad in case.spec.errors if case.index == 0 else ():
        what = f"call with {', '.join([*bad.config, *bad.inputs])}"
        params = bad.inputs.get("params", parameters)
        text = _must_refuse(what, (own,), partial(build, case, params, **bad.config), bad.error)
        require(bad.match in text, f"error of the {what}", bad.match, text)


def _must_refuse(what: str, words: tuple[str, ...], run: Callable[[], Any], *errors: type[Exception]) -> str:
    """Text of the error, which must hold one of the words."""
    errors = errors or (ValueError, TypeError)
    kinds = " or ".join(e.__name__ for e in errors)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            run()
    except errors as refused:
        text = str(refused)
        named = any(word.lower() in text.lower() for word in words)
        require(named, f"error for {what}", f"a text with {' or '.join(words)}", text)
        return text
    except Exception as other:
        raise Fault(what, kinds, repr(other)) from other
    raise Fault(what, kinds, "no exception")


def _check_other_state(case: OptimizerCase) -> None:
    """The state of torch's SGD with momentum; for SGD itself, of Adam."""
    optimizer, parameters = start(case)
    given = draw_parameters([tuple(p.shape) for p in parameters])
    other: Optimizer = (
        torch.optim.Adam(given)
        if issubclass(case.spec.cls, torch.optim.SGD)
        else torch.optim.SGD(given, lr=0.1, momentum=0.9)
    )
    walk(other, given, draw_gradients([tuple(p.shape) for p in given], 1))
    words = (case.spec.cls.__name__, "state_dict", "state dict")
    what = f"state of torch.optim.{type(other).__name__}"
    _must_refuse(what, words, lambda: optimizer.load_state_dict(other.state_dict()))


@prop("O16", "configuration")
def configuration(case: OptimizerCase) -> None:
    """Jsonargparse parses class_path and init_args of a factory, dumps them, parses the dump, and builds its equal."""
    optimizer, parameters = start(case)
    _, others = start(case)
    rebuilt = check_factory(case.spec.cls, case.config, Optimizer)(others)
    expected, found = ([{**group, "params": None} for group in o.param_groups] for o in (optimizer, rebuilt))
    require(found == expected, "groups of the rebuilt optimizer", expected, found)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 3)
    walk(optimizer, parameters, gradients)
    same("parameters of the rebuilt optimizer", walk(rebuilt, others, gradients)[-1], parameters)
