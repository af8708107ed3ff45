"""Properties of losses on several ranks."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.testing.case import parameter_gradients
from trainkit.testing.common import shards
from trainkit.testing.faults import Fault, compare
from trainkit.testing.losses.common import LossCase
from trainkit.testing.pool import Pool
from trainkit.testing.properties import prop


def _run(module: Any, inputs: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Value, gradients of the sum with respect to inputs and parameters, and buffers after the call."""
    leaves = {k: v.clone().requires_grad_() if k in wanted else v for k, v in inputs.items()}
    value = module(**leaves)
    if value.requires_grad:
        value.sum().backward()
    return {
        "value": value.detach(),
        "grads": {k: leaves[k].grad for k in wanted},
        "parameters": parameter_gradients(module),
        "buffers": {k: v.detach() for k, v in module.named_buffers()},
    }


def loss_on_rank(
    cls: type[Any], config: Mapping[str, Any], inputs: Mapping[str, Any], wanted: list[str]
) -> dict[str, Any]:
    """What a rank of the pool runs."""
    return _run(_build(cls, config), inputs, wanted)


def _build(cls: type[Any], config: Mapping[str, Any]) -> Any:
    torch.manual_seed(0)
    module = cls(**copy.deepcopy(dict(config)))
    return module.double() if isinstance(module, nn.Module) else module


def _declares(case: LossCase) -> bool:
    """A class that says how it behaves on ranks is held to uneven, empty and partly ignored shards too."""
    return hasattr(case.spec.cls, "distributed")


def _some_ignored(case: LossCase) -> list[dict[str, Tensor]]:
    """The inputs with three targets of the first rows ignored: the ranks hold different numbers of valid ones."""
    target = next((k for k, source in case.names().items() if source == "target"), None)
    if not _declares(case) or target is None or case.ignore_index is None:
        return []
    inputs = case.inputs(8)
    changed = inputs[target].clone()
    changed[[0, 2, 3]] = case.ignore_index
    return [{**inputs, target: changed}]


@prop("L16", "ranks", ranks=True)
def ranks(case: LossCase, pool: Pool | None) -> None:
    """On two ranks, the mean of the values and the averaged gradients equal those of one process on all rows."""
    if pool is None:
        raise ValueError("L16 needs a pool of ranks, got None")
    wanted = case.differentiable()
    reductions = ["mean", "sum", "none"] if case.has("reduction") else [None]
    for reduction in reductions:
        config = {**case.config, **({"reduction": reduction} if reduction else {})}
        for split in [(4, 4), (3, 5), (8, 0)] if _declares(case) else [(4, 4)]:
            for inputs in [case.inputs(8), *_some_ignored(case)]:
                case.seen(inputs, torch.float64)
                whole = _run(_build(case.spec.cls, config), inputs, wanted)
                args = [(case.spec.cls, config, own, wanted) for own in shards(inputs, split)]
                got = pool.run(loss_on_rank, args)
                what = f"{'+'.join(map(str, split))} rows on 2 ranks" + (f', "{reduction}"' if reduction else "")
                _compare_ranks(what, got, whole, split, unreduced=whole["value"].dim() > 0)


def _compare_ranks(
    what: str, got: list[dict[str, Any]], whole: dict[str, Any], split: tuple[int, ...], unreduced: bool
) -> None:
    count = len(got)
    if unreduced:
        compare(f"rows of {what}", torch.cat([g["value"] for g in got]), whole["value"], rtol=1e-10, ranks=count)
        return
    values = torch.stack([g["value"] for g in got])
    compare(f"mean of the values, {what}", values.mean(), whole["value"], rtol=1e-10, ranks=count)
    for name, gradient in whole["grads"].items():
        pieces = [] if gradient is None else gradient.split(list(split))
        for rank, (own, piece) in enumerate(zip(got, pieces, strict=False)):
            come = own["grads"][name]
            label = f"gradient of {name} on rank {rank} against {count} x the gradient on one process, {what}"
            come = torch.zeros_like(piece) if come is None else come
            compare(label, come, count * piece, rtol=1e-9, atol=1e-11, rank=rank, ranks=count)
    for name, gradient in whole["parameters"].items():
        come = [g["parameters"][name] for g in got]
        if any(c is None for c in come) and gradient is not None:
            raise Fault(f"gradient of {name}, {what}", "a gradient on every rank", come, ranks=count)
        if gradient is not None:
            mean = torch.stack(come).mean(0)
            compare(f"mean gradient of {name}, {what}", mean, gradient, rtol=1e-9, atol=1e-11, ranks=count)
    for name, buffer in whole["buffers"].items():
        for rank, own in enumerate(got):
            compare(f"buffer {name}, {what}", own["buffers"][name], buffer, rtol=1e-10, rank=rank, ranks=count)
