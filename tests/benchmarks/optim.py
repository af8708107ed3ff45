"""A step of each optimizer on (a) 10 M parameters in 150 tensors and (b) 1 M in 600, fp32, gradients given.

Loops are held against the loop of torch's AdamW, scaled by the bytes that a step has to move at least; everything is
held against MARS of pytorch_optimizer, where that is installed. The memory of a row is that of the first step: the
state and what a step needs beside it.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from tests.benchmarks.measure import Case, Step

SETS = {"a": [((256, 520), 75), ((256,), 75)], "b": [((56, 58), 300), ((58,), 300)]}
ENTRIES = {name: sum(torch.Size(shape).numel() * count for shape, count in shapes) for name, shapes in SETS.items()}
ADAMW_BYTES = 28
"""Moved for each parameter by AdamW: reads of p, g and two states, writes of p and the states."""
METHODS = {
    # name: (class, options, bytes moved a parameter, bytes of state a parameter)
    "adamw": ("adamw", {}, 28, 8),
    "MVNGrad": ("MVNGrad", {}, 36, 12),
    "AdaBelief": ("AdaBelief", {}, 28, 8),
    "LaProp": ("LaProp", {}, 28, 8),
    "Lion": ("Lion", {}, 20, 4),
    # With a pass for the norm.
    "MARS": ("MARS", {"optimize_1d": True}, 44, 12),
    "MARS lion": ("MARS", {"optimize_1d": True, "variant": "lion"}, 36, 8),
}
ALLOWANCE = 1.3
SPARE = 6.0
"""Megabytes beside the state: buffers of one tensor, and what an allocator rounds up."""


def parameters(kind: str, scale: float = 1.0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [shape for shape, count in SETS[kind] for _ in range(max(round(count * scale), 1))]
    params = [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = 1e-3 * torch.randn(p.shape, generator=draw)
    return params


def step(module: str, name: str, options: dict[str, Any], kind: str, scale: float = 1.0) -> Callable[[], Any]:
    make = getattr(import_module(module), name)
    return make(parameters(kind, scale), lr=1e-3, weight_decay=0.1, **options).step


def step_of(module: str, name: str, kind: str, **options: Any) -> Step:
    arguments = {"module": module, "name": name, "options": options, "kind": kind}
    return Step("tests.benchmarks.optim:step", arguments, {"scale": 0.01})


def rows(kind: str) -> Iterator[Case]:
    loop = step_of("torch.optim", "AdamW", kind, foreach=False)
    for method, (name, options, moved, state) in METHODS.items():
        mine = {impl: step_of("trainkit.optim", name, kind, **options, impl=impl) for impl in ("loop", "foreach")}
        most = ENTRIES[kind] * state / 2**20 + SPARE
        time = ALLOWANCE * moved / ADAMW_BYTES
        label = f"{method} ({kind})"
        yield Case(f"{label} loop", mine["loop"], "torch AdamW loop", loop, time, megabytes=most, equal=False)
        if find_spec("pytorch_optimizer") and method != "adamw":
            form, time = ("loop", 1 / 3) if kind == "a" else ("foreach", 1.0)
            other = step_of("pytorch_optimizer", "MARS", kind)
            yield Case(f"{label} {form}", mine[form], "pytorch_optimizer MARS", other, time, equal=False)
    auto = step_of("trainkit.optim", "adamw", kind)
    for form in ("foreach", "fused"):
        other = step_of("torch.optim", "AdamW", kind, **{form: True})
        yield Case(f"adamw ({kind}) auto", auto, f"torch AdamW {form}", other, equal=False)


def cases() -> list[Case]:
    return [*rows("a"), *rows("b")]
