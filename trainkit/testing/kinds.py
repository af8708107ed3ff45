"""Input kinds: which named tensors a part is tried on, drawn at random but away from kinks.

A kind gives tensors by their vocabulary names; a part takes those that its signature asks for. A new kind is one
function in this file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from trainkit.testing.beside import beside_kinds
from trainkit.testing.forecasts import FORECASTS, Forecast
from trainkit.testing.rankings import ranking_kinds

__all__ = ["KINDS", "Kind", "Problem", "kind_for"]

NUM_CLASSES = 5
NUM_FEATURES = 4


@dataclass(frozen=True)
class Problem:
    """A small thing to learn: parameters, the inputs they give, and a score of how well it is learned.

    Args:
        parameters: Leaves to optimize.
        inputs: Gives the tensors by name for the present parameters.
        score: Higher is better.
        threshold: Score to be reached in 50 steps.
    """

    parameters: list[Tensor]
    inputs: Callable[[], dict[str, Tensor]]
    score: Callable[[], float]
    threshold: float


@dataclass(frozen=True)
class Kind:
    """One way of drawing inputs.

    Args:
        draw: Takes generator, rows and dtype, gives tensors by name; the first are the data, then the target.
        differentiable: Names of the tensors that gradients are wanted for.
        problem: A small problem in these inputs.
        ignorable: Whether a target can hold an ``ignore_index``; one of class probabilities can't.
    """

    draw: Callable[[Generator, int, torch.dtype], dict[str, Tensor]]
    differentiable: tuple[str, ...]
    problem: Callable[[Generator], Problem]
    ignorable: bool = True


def _normal(g: Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def _integers(g: Generator, high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=g)


def _classification(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"logits": 2 * _normal(g, n, NUM_CLASSES, dtype=dtype), "target": _integers(g, NUM_CLASSES, n)}


def _indexed_classification(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {**_classification(g, n, dtype), "index": torch.arange(n)}


def _soft_classification(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "logits": 2 * _normal(g, n, NUM_CLASSES, dtype=dtype),
        "target": (2 * _normal(g, n, NUM_CLASSES)).softmax(1).to(dtype),
    }


def _changed_classification(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    drawn = _classification(g, n, dtype)
    return {"logits": drawn["logits"], "new_logits": _normal(g, n, NUM_CLASSES, dtype=dtype), "target": drawn["target"]}


def _changed_binary(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    drawn = _binary(g, n, dtype)
    return {"logits": drawn["logits"], "new_logits": _normal(g, n, dtype=dtype), "target": drawn["target"]}


def _dense(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"logits": 2 * _normal(g, n, NUM_CLASSES, 2, 3, dtype=dtype), "target": _integers(g, NUM_CLASSES, n, 2, 3)}


def _binary(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"logits": 2 * _normal(g, n, dtype=dtype), "target": _integers(g, 2, n).to(dtype)}


def _multilabel(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"logits": 2 * _normal(g, n, NUM_CLASSES, dtype=dtype), "target": _integers(g, 2, n, NUM_CLASSES).to(dtype)}


def _scores(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    # Alternating classes, so that two rows already hold a pair.
    return {"scores": _normal(g, n, dtype=dtype), "target": torch.arange(n) % 2}


def _query_scores(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {**_scores(g, n, dtype), "index": torch.arange(n) // 4}


def _ranking(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"scores": _normal(g, n, dtype=dtype), "negatives": _normal(g, n, 3, dtype=dtype)}


def _pairs(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "query": _normal(g, n, NUM_FEATURES, dtype=dtype),
        "key": _normal(g, n, NUM_FEATURES, dtype=dtype),
        "ids": torch.arange(n),
    }


def _duplicates(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {**_pairs(g, n, dtype), "ids": torch.arange(n) // 2}


def _negatives(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {**_pairs(g, n, dtype), "negatives": _normal(g, n, NUM_FEATURES, dtype=dtype)}


def _own_negatives(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {**_pairs(g, n, dtype), "negatives": _normal(g, n, 2, NUM_FEATURES, dtype=dtype)}


def _embeddings(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"embeddings": _normal(g, n, NUM_FEATURES, dtype=dtype), "labels": torch.arange(n) // 2}


def _features(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"features": _normal(g, n, NUM_FEATURES, dtype=dtype)}


def _regression(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"prediction": _normal(g, n, dtype=dtype), "target": _normal(g, n, dtype=dtype)}


def _labelled_features(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {**_features(g, n, dtype), "target": _integers(g, NUM_CLASSES, n)}


def _regression_features(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {**_features(g, n, dtype), "target": _normal(g, n, dtype=dtype)}


def _linear_problem(
    g: Generator, outputs: int, inputs: Callable[[Tensor, Tensor], dict[str, Tensor]], threshold: float
) -> Problem:
    """Clusters on a circle, one a class, and a linear map that has to tell them apart."""
    classes = max(outputs, 2)
    target = torch.arange(60) % classes
    angle = 2 * torch.pi * target / classes
    x = 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.2 * torch.randn(60, 2, generator=g)
    w = (0.1 * torch.randn(2, outputs, generator=g)).requires_grad_()
    b = torch.zeros(outputs, requires_grad=True)

    def predict() -> Tensor:
        return x @ w + b

    def score() -> float:
        out = predict().detach()
        guess = out.argmax(1) if outputs > 1 else (out[:, 0] > 0).long()
        return float((guess == target).float().mean())

    return Problem([w, b], lambda: inputs(predict(), target), score, threshold)


def _classification_problem(g: Generator) -> Problem:
    return _linear_problem(g, NUM_CLASSES, lambda out, target: {"logits": out, "target": target}, 0.95)


def _changed_classification_problem(g: Generator) -> Problem:
    def inputs(out: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"logits": out, "new_logits": 2 * out, "target": target}

    return _linear_problem(g, NUM_CLASSES, inputs, 0.95)


def _changed_binary_problem(g: Generator) -> Problem:
    def inputs(out: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"logits": out[:, 0], "new_logits": 2 * out[:, 0], "target": target.to(out.dtype)}

    return _linear_problem(g, 1, inputs, 0.95)


def _soft_classification_problem(g: Generator) -> Problem:
    def inputs(out: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"logits": out, "target": torch.nn.functional.one_hot(target, NUM_CLASSES).to(out.dtype)}

    return _linear_problem(g, NUM_CLASSES, inputs, 0.95)


def _multilabel_problem(g: Generator) -> Problem:
    return _soft_classification_problem(g)


def _dense_problem(g: Generator) -> Problem:
    def inputs(out: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"logits": out.reshape(10, 2, 3, NUM_CLASSES).movedim(-1, 1), "target": target.reshape(10, 2, 3)}

    return _linear_problem(g, NUM_CLASSES, inputs, 0.95)


def _binary_problem(g: Generator) -> Problem:
    return _linear_problem(g, 1, lambda out, target: {"logits": out[:, 0], "target": target.to(out.dtype)}, 0.95)


def _scores_problem(g: Generator) -> Problem:
    problem = _linear_problem(g, 1, lambda out, target: {"scores": out[:, 0], "target": target}, 0.95)

    def ordered() -> float:
        drawn = problem.inputs()
        scores, target = drawn["scores"].detach(), drawn["target"]
        return float((scores[target == 1][:, None] > scores[target == 0]).float().mean())

    # A threshold would hold losses that leave the bias open to whatever rounding makes of it.
    return replace(problem, score=ordered)


def _query_scores_problem(g: Generator) -> Problem:
    index = torch.arange(60) // 4
    return _linear_problem(g, 1, lambda out, t: {"scores": out[:, 0], "target": t, "index": index}, 0.95)


def _ranking_problem(g: Generator) -> Problem:
    """Items and negatives that lie on opposite sides of a hidden direction, and a linear score to be found."""
    x = torch.randn(60, 4, 2, generator=g)
    # What a positive has in the direction is above, what its negatives have is below.
    x[..., 0] = x[..., 0].abs() * torch.tensor([1.0, -1.0, -1.0, -1.0])
    w = (0.1 * torch.randn(2, generator=g)).requires_grad_()

    def score() -> float:
        s = (x @ w).detach()
        return float((s[:, :1] > s[:, 1:]).float().mean())

    return Problem([w], lambda: {"scores": (x @ w)[:, 0], "negatives": (x @ w)[:, 1:]}, score, 0.95)


def _embedding_problem(g: Generator, inputs: Callable[[Tensor, Tensor], dict[str, Tensor]]) -> Problem:
    """Two noisy views of 16 points, and linear maps that have to bring the views of each point together."""
    z = torch.randn(16, NUM_FEATURES, generator=g)
    views = [z @ torch.randn(NUM_FEATURES, 8, generator=g) for _ in range(2)]
    maps = [(0.3 * torch.randn(8, NUM_FEATURES, generator=g)).requires_grad_() for _ in range(2)]

    def embed() -> list[Tensor]:
        return [v @ m for v, m in zip(views, maps, strict=True)]

    def score() -> float:
        a, b = (torch.nn.functional.normalize(e.detach(), dim=1) for e in embed())
        return float(((a @ b.T).argmax(1) == torch.arange(16)).float().mean())

    return Problem(maps, lambda: inputs(*embed()), score, 0.7)


def _pairs_problem(g: Generator) -> Problem:
    return _embedding_problem(g, lambda a, b: {"query": a, "key": b, "ids": torch.arange(16)})


def _negatives_problem(g: Generator) -> Problem:
    others = torch.randn(16, NUM_FEATURES, generator=g)
    return _embedding_problem(
        g, lambda a, b: {"query": a, "key": b, "ids": torch.arange(16), "negatives": torch.cat([others, b])}
    )


def _own_negatives_problem(g: Generator) -> Problem:
    others = torch.randn(16, 2, NUM_FEATURES, generator=g)
    return _embedding_problem(g, lambda a, b: {"query": a, "key": b, "ids": torch.arange(16), "negatives": others})


def _embeddings_problem(g: Generator) -> Problem:
    def inputs(a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"embeddings": torch.cat([a, b]), "labels": torch.arange(16).repeat(2)}

    return _embedding_problem(g, inputs)


def _regression_problem(g: Generator) -> Problem:
    x = torch.randn(60, 2, generator=g)
    target = x @ torch.tensor([1.0, -2.0]) + 0.5
    w = torch.zeros(2, requires_grad=True)
    b = torch.zeros(1, requires_grad=True)

    def score() -> float:
        return float(1 - ((x @ w + b - target).detach() ** 2).mean() / target.var())

    return Problem([w, b], lambda: {"prediction": x @ w + b, "target": target}, score, 0.9)


def _forecast_kind(forecast: Forecast) -> Kind:
    """A kind whose problem is a regression in which the width of the predicted distribution has to be found too."""

    def draw(g: Generator, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
        return {name: value.to(dtype) for name, value in forecast.draw(g, n).items()}

    def problem(g: Generator) -> Problem:
        regression = _regression_problem(g)
        log_width = torch.zeros(1, requires_grad=True)

        def inputs() -> dict[str, Tensor]:
            drawn = regression.inputs()
            mean = drawn["prediction"].unsqueeze(1)
            return forecast.of(mean, log_width.exp().expand_as(mean), drawn["target"])

        return replace(regression, parameters=[*regression.parameters, log_width], inputs=inputs)

    return Kind(draw, forecast.differentiable, problem, ignorable=False)


def _features_problem(g: Generator) -> Problem:
    return _embedding_problem(g, lambda a, b: {"features": torch.cat([a, b])})


def _labelled_features_problem(g: Generator) -> Problem:
    return _linear_problem(g, NUM_FEATURES, lambda out, target: {"features": out, "target": target}, 0.95)


def _regression_features_problem(g: Generator) -> Problem:
    problem = _regression_problem(g)

    def inputs() -> dict[str, Tensor]:
        drawn = problem.inputs()
        return {"features": drawn["prediction"].unsqueeze(1).expand(-1, NUM_FEATURES), "target": drawn["target"]}

    return replace(problem, inputs=inputs)


KINDS: Mapping[str, Kind] = {
    "classification": Kind(_classification, ("logits",), _classification_problem),
    "soft_classification": Kind(_soft_classification, ("logits",), _soft_classification_problem, ignorable=False),
    "indexed_classification": Kind(_indexed_classification, ("logits",), _classification_problem),
    "dense": Kind(_dense, ("logits",), _dense_problem),
    "binary": Kind(_binary, ("logits",), _binary_problem),
    "multilabel": Kind(_multilabel, ("logits",), _multilabel_problem),
    "scores": Kind(_scores, ("scores",), _scores_problem),
    "ranking": Kind(_ranking, ("scores", "negatives"), _ranking_problem),
    "query_scores": Kind(_query_scores, ("scores",), _query_scores_problem),
    "pairs": Kind(_pairs, ("query", "key"), _pairs_problem),
    "duplicates": Kind(_duplicates, ("query", "key"), _pairs_problem),
    "negatives": Kind(_negatives, ("query", "key", "negatives"), _negatives_problem),
    "own_negatives": Kind(_own_negatives, ("query", "key", "negatives"), _own_negatives_problem),
    "embeddings": Kind(_embeddings, ("embeddings",), _embeddings_problem),
    "regression": Kind(_regression, ("prediction",), _regression_problem),
    "changed_classification": Kind(_changed_classification, ("logits", "new_logits"), _changed_classification_problem),
    "changed_binary": Kind(_changed_binary, ("logits", "new_logits"), _changed_binary_problem),
    "features": Kind(_features, ("features",), _features_problem),
    **{name: _forecast_kind(forecast) for name, forecast in FORECASTS.items()},
    "labelled_features": Kind(_labelled_features, ("features",), _labelled_features_problem),
    "regression_features": Kind(_regression_features, ("features", "target"), _regression_features_problem),
}
KINDS = {**KINDS, **ranking_kinds(KINDS), **beside_kinds(KINDS)}


def kind_for(required: list[str]) -> str | None:
    """The first kind that draws every one of the ``required`` names."""
    for name, kind in KINDS.items():
        if set(required) <= set(kind.draw(torch.Generator().manual_seed(0), 2, torch.float64)):
            return name
    return None
