"""Input kinds of predictions with something beside each target: its group, or a number it is judged by."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

if TYPE_CHECKING:
    from trainkit.testing.kinds import Kind, Problem

__all__ = ["NUM_GROUPS", "beside_kinds"]

NUM_GROUPS = 3


def _groups(g: Generator, *shape: int) -> Tensor:
    groups = torch.randint(-1, NUM_GROUPS, shape, generator=g)
    # Of a single row something is left.
    groups[:1] = groups[:1].clamp_min(0)
    return groups


def _beside(g: Generator, target: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """For every target a group, which some have none of, a proximity and a slope."""
    proximity, lipschitz = torch.rand(2, *target.shape, generator=g, dtype=torch.float64).to(dtype)
    return {"groups": _groups(g, *target.shape), "proximity": proximity, "lipschitz": lipschitz}


def _with_beside(kind: "Kind") -> "Kind":
    def draw(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
        drawn = kind.draw(g, n, dtype)
        return {**drawn, **_beside(g, drawn["target"], dtype)}

    def problem(g: Generator) -> "Problem":
        base = kind.problem(g)
        fixed = _beside(g, base.inputs()["target"], torch.float32)
        return replace(base, inputs=lambda: {**base.inputs(), **fixed})

    return replace(kind, draw=draw, differentiable=(*kind.differentiable, "proximity", "lipschitz"), problem=problem)


def _coverage(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    size = torch.randint(1, 5, (n,), generator=g).to(dtype)
    covered = torch.rand(n, generator=g) < 0.8
    return {"covered": covered, "groups": _groups(g, n), "size": size}


def _coverage_problem(of: Callable[[Generator], "Problem"]) -> Callable[[Generator], "Problem"]:
    def problem(g: Generator) -> "Problem":
        base = of(g)

        def inputs() -> dict[str, Tensor]:
            drawn = base.inputs()
            covered = drawn["logits"].argmax(1) == drawn["target"]
            return {"covered": covered, "groups": drawn["target"] % NUM_GROUPS, "size": torch.ones(len(covered))}

        return replace(base, inputs=inputs)

    return problem


def beside_kinds(kinds: Mapping[str, "Kind"]) -> dict[str, "Kind"]:
    """Kinds made of those in ``kinds``."""
    made = {f"{name}_beside": _with_beside(kinds[name]) for name in ("classification", "binary", "multilabel", "dense")}
    classification = kinds["classification"]
    problem = _coverage_problem(classification.problem)
    coverage = replace(classification, draw=_coverage, differentiable=("size",), problem=problem, ignorable=False)
    return {**made, "coverage": coverage}
