"""Properties of losses: how rows, weights and reductions make up the value of a batch."""

from typing import Any

import torch

from trainkit.testing.faults import Fault, compare, require
from trainkit.testing.losses.common import LossCase, call, per_target, scalar, single_row
from trainkit.testing.properties import prop


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
            found[f"all of {n} targets masked"] = {**full, "mask": per_target(case, full, target).bool() & False}
        if target and case.takes("weight"):
            found[f"{n} weights of zero"] = {**full, "weight": 0 * per_target(case, full, target)}
    return found


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
            ones = per_target(case, inputs, target).bool()
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
        ones = per_target(case, inputs, "target")
        weight = ones * times.view(-1, *[1] * (ones.dim() - 1))
        module = scalar(case)
        compare("value with weights", call(case, module, {**inputs, "weight": weight}), call(case, module, repeated))
