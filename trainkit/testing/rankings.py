"""Input kinds of preferences and rankings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

if TYPE_CHECKING:
    from trainkit.testing.kinds import Kind, Problem

__all__ = ["ranking_kinds"]

NUM_ITEMS = 4


def _normal(g: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def _preference(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"chosen_scores": _normal(g, n).to(dtype), "rejected_scores": _normal(g, n).to(dtype)}


def _rankings(g: Generator, n: int, items: int) -> Tensor:
    """Orders of the items; every third row leaves out the last."""
    rankings = _normal(g, n, items).argsort(1)
    rankings[2::3, -1] = -1
    return rankings


def _label_ranking(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"scores": _normal(g, n, NUM_ITEMS).to(dtype), "rankings": _rankings(g, n, NUM_ITEMS)}


def _ranking_law(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"scores": _normal(g, n, 6).softmax(1).to(dtype), "rankings": _rankings(g, n, 3)}


def _preference_problem(ranking: "Problem") -> "Problem":
    def inputs() -> dict[str, Tensor]:
        drawn = ranking.inputs()
        return {"chosen_scores": drawn["scores"], "rejected_scores": drawn["negatives"][:, 0]}

    return replace(ranking, inputs=inputs)


def _label_ranking_problem(ranking: "Problem", g: Generator, law: bool) -> "Problem":
    """Items to be ranked by a hidden direction, and a linear score, or the law over orders that it gives."""
    x = torch.randn(60, 3, 2, generator=g)
    rankings = x[..., 0].argsort(1, descending=True)
    orders = torch.tensor(list(permutations(range(3))))
    w = (0.1 * torch.randn(2, generator=g)).requires_grad_()

    def inputs() -> dict[str, Tensor]:
        scores = x @ w
        if law:
            scores = (scores[:, orders] * torch.tensor([2.0, 1.0, 0.0])).sum(2).softmax(1)
        return {"scores": scores, "rankings": rankings}

    def score() -> float:
        return float(((x @ w.detach()).argsort(1, descending=True) == rankings).float().mean())

    return replace(ranking, parameters=[w], inputs=inputs, score=score, threshold=0.9)


def ranking_kinds(kinds: Mapping[str, "Kind"]) -> dict[str, "Kind"]:
    """Kinds made of those in ``kinds``."""
    base = kinds["ranking"]

    def ordered(law: bool) -> Callable[[Generator], "Problem"]:
        return lambda g: _label_ranking_problem(base.problem(g), g, law)

    preference = replace(
        base,
        draw=_preference,
        differentiable=("chosen_scores", "rejected_scores"),
        problem=lambda g: _preference_problem(base.problem(g)),
    )
    label_ranking = replace(base, draw=_label_ranking, differentiable=("scores",), problem=ordered(law=False))
    return {
        "preference": preference,
        "label_ranking": label_ranking,
        "ranking_law": replace(label_ranking, draw=_ranking_law, problem=ordered(law=True)),
    }
