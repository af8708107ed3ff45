"""Properties of modules on several ranks."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainkit.testing.case import parameter_gradients
from trainkit.testing.common import shards
from trainkit.testing.faults import compare, require
from trainkit.testing.modules.behaviour import Call, ModuleCase, backward, cotangent, outputs
from trainkit.testing.pool import Pool
from trainkit.testing.properties import prop

__all__ = ["history_on_rank"]


def _no_ranks(case: ModuleCase) -> str | None:
    if hasattr(case.spec.cls, "distributed") or any(True for _ in case.make().buffers()):
        return None
    return "it has no buffers and does not say how it behaves on ranks"


def history_on_rank(
    cls: type[Any],
    config: Mapping[str, Any],
    call: Call | None,
    batches: Sequence[Mapping[str, Tensor]],
    wanted: Sequence[str],
    cotangents: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Outputs and gradients of the last of several calls of one module, and its buffers after them."""
    torch.manual_seed(0)
    module = cls(**copy.deepcopy(dict(config))).double()
    outs: dict[str, Tensor] = {}
    leaves: dict[str, Tensor] = {}
    for batch in batches:
        module.zero_grad()
        leaves = {k: v.clone().requires_grad_() if k in wanted else v for k, v in batch.items()}
        outs = outputs(call, module, leaves)
        backward(outs, cotangents)
    return {
        "outputs": {k: o.detach() for k, o in outs.items()},
        "grads": {k: leaves[k].grad for k in wanted},
        "parameters": parameter_gradients(module),
        "buffers": {k: v.detach() for k, v in module.named_buffers()},
    }


def _share(cotangents: Mapping[str, Tensor], split: Sequence[int], rank: int) -> dict[str, Tensor]:
    """Weights of a rank's outputs: its rows, and of what is not by rows its part of the mean over ranks."""
    rows = sum(split)
    return {k: w.split(list(split))[rank] if _by_rows(w, rows) else w / len(split) for k, w in cotangents.items()}


def _by_rows(output: Tensor, rows: int) -> bool:
    return output.dim() > 0 and output.shape[0] == rows


@prop("N9", "ranks", needs=_no_ranks, ranks=True)
def ranks(case: ModuleCase, pool: Pool | None) -> None:
    """After three calls on shards, the buffers of all ranks are those of one process that saw the whole batches.

    Outputs and gradients too, if the class declares how it behaves on ranks.
    """
    if pool is None:
        raise ValueError("N9 needs a pool of ranks, got None")
    spec, wanted = case.spec, case.differentiable()
    batches = [case.inputs(8, seed=seed) for seed in range(3)]
    first = history_on_rank(spec.cls, case.config, spec.call, batches, wanted, {})
    declares = hasattr(spec.cls, "distributed")
    cotangents = {k: cotangent(o) for k, o in first["outputs"].items()} if declares else {}
    whole = history_on_rank(spec.cls, case.config, spec.call, batches, wanted, cotangents)
    for split in ((4, 4), (3, 5), (8, 0)):
        pieces = zip(*(shards(batch, split) for batch in batches), strict=True)
        args = [
            (spec.cls, case.config, spec.call, list(own), wanted, _share(cotangents, split, rank))
            for rank, own in enumerate(pieces)
        ]
        got = pool.run(history_on_rank, args)
        what = f"{'+'.join(map(str, split))} rows on {len(split)} ranks"
        _compare_buffers(what, got, whole)
        if declares:
            _compare_outputs(what, got, whole, split)


def _compare_buffers(what: str, got: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    count = len(got)
    for rank, own in enumerate(got):
        compare(f"buffers, {what}", own["buffers"], whole["buffers"], rtol=1e-10, rank=rank, ranks=count)
        first = got[0]["buffers"]
        compare(f"buffers against rank 0, {what}", own["buffers"], first, rtol=0, atol=0, rank=rank, ranks=count)


def _compare_outputs(what: str, got: list[dict[str, Any]], whole: dict[str, Any], split: Sequence[int]) -> None:
    count = len(got)
    for name, expected in whole["outputs"].items():
        parts = [own["outputs"][name] for own in got]
        by_rows = _by_rows(expected, sum(split))
        found = torch.cat(parts) if by_rows else torch.stack(parts).mean(0)
        compare(f"{name}, {what}", found, expected, rtol=1e-10, ranks=count)
    for name, gradient in whole["grads"].items():
        if gradient is None:
            continue
        for rank, (own, piece) in enumerate(zip(got, gradient.split(list(split)), strict=True)):
            come = own["grads"][name]
            come = torch.zeros_like(piece) if come is None else come
            compare(f"gradient of {name}, {what}", come, piece, rtol=1e-9, atol=1e-11, rank=rank, ranks=count)
    for name, gradient in whole["parameters"].items():
        come = [own["parameters"][name] for own in got]
        if gradient is not None:
            require(all(c is not None for c in come), f"gradient of {name}, {what}", "one on every rank", come)
            total = torch.stack(come).sum(0)
            compare(f"gradient of {name}, {what}", total, gradient, rtol=1e-9, atol=1e-11, ranks=count)
