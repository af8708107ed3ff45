"""Properties of optimizers: the trajectory, its implementations, its directions, and the parameters it takes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.testing.common import check_golden
from trainkit.testing.faults import Fault, compare, require
from trainkit.testing.optimizers.common import (
    OptimizerCase,
    build,
    draw_gradients,
    draw_parameters,
    learning_rate,
    number_of,
    same,
    same_state,
    shapes_of,
    start,
    step_with,
    walk,
    with_decay,
)
from trainkit.testing.properties import prop

EVERY_SHAPE = ((), (1,), (3,), (3, 4), (2, 3, 2, 2), (0,))
COMPARED = (1, 2, 5, 20)


def _no_values(case: OptimizerCase) -> str | None:
    return None if case.spec.golden or case.spec.reference else "no reference values are given"


@prop("O1", "reference trajectory", needs=_no_values)
def trajectory(case: OptimizerCase) -> None:
    """Parameters after 1, 2, 5 and 20 steps equal the golden records and the independent reference."""
    if case.index == 0:
        for golden in case.spec.golden:
            check_golden(golden)
    if case.spec.reference is None:
        return
    optimizer, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], COMPARED[-1])
    first = [p.detach().numpy().copy() for p in parameters]
    expected = case.spec.reference(first, [[g.numpy() for g in own] for own in gradients], case.config)
    got = walk(optimizer, parameters, gradients)
    require(len(expected) == len(got), "steps of the reference", len(got), len(expected))
    for steps in COMPARED:
        for i, (own, wanted) in enumerate(zip(got[steps - 1], expected[steps - 1], strict=True)):
            what = f"parameter {i} of shape {tuple(own.shape)} after {steps} steps, against the reference"
            compare(what, own, torch.as_tensor(wanted, dtype=torch.float64), rtol=1e-9)


def _implementations(case: OptimizerCase) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Arguments that choose the loop, and those that choose functions for lists."""
    if case.has("impl"):
        return {"impl": "loop"}, {"impl": "foreach"}
    return ({"foreach": False}, {"foreach": True}) if case.has("foreach") else None


def _one_implementation(case: OptimizerCase) -> str | None:
    pair = _implementations(case)
    if pair is None:
        return "it takes neither impl nor foreach"
    try:
        start(case, **pair[1])
    except (TypeError, ValueError) as error:
        return f"it refuses the implementation on lists: {error}"
    return None


@prop("O2", "implementations", needs=_one_implementation)
def implementations(case: OptimizerCase) -> None:
    """Functions for lists give the parameters and the state of the loop bit for bit, also with missing gradients."""
    pair = _implementations(case)
    if pair is None:
        return
    made = []
    for choice in pair:
        _, parameters = start(case)
        groups: list[dict[str, Any]] = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        lr = learning_rate(case)
        if lr is not None:
            groups[1]["lr"] = lr / 2
        optimizer = build(case, [g for g in groups if g["params"]], **choice)
        gradients = _with_gaps(draw_gradients([tuple(p.shape) for p in parameters], 7))

        def freeze(step: int, parameters: Sequence[nn.Parameter] = parameters) -> None:
            parameters[0].requires_grad_(step < 2)

        made.append((optimizer, walk(optimizer, parameters, gradients, freeze)))
    (loop, expected), (lists, found) = made
    for step, (own, wanted) in enumerate(zip(found, expected, strict=True), 1):
        same(f"on lists, after step {step} against the loop", own, wanted)
    same_state("on lists against the loop", lists, loop)


def _with_gaps(gradients: list[list[Tensor]]) -> list[list[Tensor | None]]:
    """No gradient for the last parameter at step 2 and for the first from step 3 on."""
    kept: list[list[Tensor | None]] = [list(own) for own in gradients]
    kept[1][-1] = None
    for own in kept[2:]:
        own[0] = None
    return kept


@prop("O10", "direction and decay")
def direction(case: OptimizerCase) -> None:
    """Maximising with the gradient is minimising with its negative; weight decay is decoupled as declared."""
    if case.has("maximize"):
        up, raised = start(case, maximize=True)
        down, lowered = start(case, maximize=False)
        gradients = draw_gradients([tuple(p.shape) for p in raised], 3)
        expected = walk(down, lowered, [[-g for g in own] for own in gradients])[-1]
        same("maximising against minimising the negative", walk(up, raised, gradients)[-1], expected)
    if "weight_decay" in with_decay(case, 0.0):
        _check_decay(case)


def _check_decay(case: OptimizerCase) -> None:
    """With zero gradients from the start, then with gradients: what the decay does to parameters and state."""
    optimizer, parameters = start(case, **with_decay(case, 0.1))
    lr, decay = number_of(optimizer, "lr"), number_of(optimizer, "weight_decay")
    if lr is None or decay is None:
        raise Fault("weight_decay=0.1 and lr in the groups", "two numbers", optimizer.param_groups[0])
    zeros = [torch.zeros_like(p) for p in parameters]
    for step in range(1, 4):
        before = [p.detach().clone() for p in parameters]
        step_with(optimizer, parameters, zeros)
        if case.spec.decoupled:
            expected = [p * (1 - lr * decay) for p in before]
            same(f"decay alone, step {step}, against 1 - lr * weight_decay", parameters, expected, rtol=1e-12)
        elif step == 1:
            shrunk = all(bool((p.detach().abs() < b.abs()).all()) for p, b in zip(parameters, before, strict=True))
            require(shrunk, "decay alone", "parameters nearer to zero", [p.detach().tolist() for p in parameters])
    if case.spec.decoupled:
        gradients = draw_gradients([tuple(p.shape) for p in parameters], 3)
        made = [start(case, **with_decay(case, value)) for value in (0.1, 0.0)]
        for one, own in made:
            walk(one, own, gradients)
        same_state("with decay against without", made[0][0], made[1][0])


@prop("O18", "order and shapes")
def shapes(case: OptimizerCase) -> None:
    """The order of the parameters changes nothing; every shape works, also strided, also without entries."""
    optimizer, parameters = start(case)
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 3)
    expected = walk(optimizer, parameters, gradients)[-1]
    _, others = start(case)
    turned = walk(build(case, others[::-1]), others[::-1], [own[::-1] for own in gradients])[-1]
    same("in reversed order", turned[::-1], expected)
    for shape in EVERY_SHAPE:
        _check_shape(case, shape)
    _check_strides(case)


def _check_shape(case: OptimizerCase, shape: tuple[int, ...]) -> None:
    parameters = draw_parameters([shape])
    before = parameters[0].detach().clone()
    after = walk(build(case, parameters), parameters, draw_gradients([shape], 3))[-1][0]
    what = f"a parameter of shape {shape} after 3 steps"
    require(after.shape == before.shape, what, shape, tuple(after.shape))
    require(bool(after.isfinite().all()), what, "finite", after)
    moves = number_of(build(case, draw_parameters([shape])), "lr") != 0
    require(not (moves and after.numel()) or not torch.equal(after, before), what, "moved", after)


def _check_strides(case: OptimizerCase) -> None:
    """Parameters and gradients that are not contiguous take the steps of contiguous ones."""
    kept = [shape for shape in shapes_of(case) if len(shape) >= 2]
    gradients = draw_gradients(kept, 3)
    plain = draw_parameters(kept)
    expected = walk(build(case, plain), plain, gradients)[-1] if kept else []
    for what in ("parameters", "gradients") if kept else ():
        parameters, given = draw_parameters(kept), gradients
        if what == "parameters":
            parameters = [nn.Parameter(_turned(p.detach())) for p in parameters]
        else:
            given = [[_turned(g) for g in own] for own in gradients]
        found = walk(build(case, parameters), parameters, given)[-1]
        same(f"{what} that are not contiguous", found, expected, rtol=1e-12)


def _turned(tensor: Tensor) -> Tensor:
    """The same tensor with its first and last dimension swapped in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)
