"""Records of the ranking and retrieval metrics."""

import math
from itertools import permutations

import torch

from tests.golden.bind import golden
from trainkit.metrics import (
    BinnedPairAUROC,
    EmbeddingMargin,
    MeanReciprocalRank,
    PairAUROC,
    RecallAtK,
    binned_pair_auroc,
    embedding_margin,
    mean_reciprocal_rank,
    pair_auroc,
    recall_at_k,
)
from trainkit.testing import BadCall, MetricSpec


def area(scores, target):
    """Share of positive and negative pairs in the right order; None without one of the classes."""
    pairs = [
        (p, n) for p, a in zip(scores, target, strict=True) if a for n, b in zip(scores, target, strict=True) if not b
    ]
    return sum((p > n) + (p == n) / 2 for p, n in pairs) / len(pairs) if pairs else None


def auroc_reference(scores, target, index=None, pairing="global", empty_target_action="skip"):
    queries = {}
    for s, t, q in zip(scores, target, index or [0] * len(scores), strict=True):
        own = queries.setdefault(q if pairing == "per_query" else 0, ([], []))
        own[0].append(s)
        own[1].append(t)
    areas = [area(*own) for own in queries.values()]
    missing = {"skip": None, "neg": 0.0, "pos": 1.0}[empty_target_action]
    counted = [missing if a is None else a for a in areas if a is not None or missing is not None]
    return sum(counted) / len(counted)


def binned_reference(scores, target, n_bins=4096, low=-1.0, high=1.0):
    def cell(score):
        if low <= score <= high:
            return min(math.floor((score - low) / (high - low) * n_bins), n_bins - 1)
        return -1 if score < low else n_bins

    return area([cell(s) for s in scores], target)


def cosine(a, b, normalize=True):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b)) if normalize else dot


def expected_over_orders(gain, rights, wrongs):
    """Mean of ``gain(rank of the first right key)`` over every order of the keys that are tied with the best one."""
    best = max(rights)
    ahead = sum(s > best for s in wrongs)
    tied = [True] * rights.count(best) + [False] * wrongs.count(best)
    orders = set(permutations(tied))
    return sum(gain(ahead + 1 + order.index(True)) for order in orders) / len(orders)


def retrieval_reference(gain, query, key, ids, normalize):
    total = 0.0
    for q, own in zip(query, ids or range(len(query)), strict=True):
        scores = [cosine(q, k, normalize) for k in key]
        right = [i == own for i in ids or range(len(query))]
        rights = [s for s, r in zip(scores, right, strict=True) if r]
        total += expected_over_orders(gain, rights, [s for s, r in zip(scores, right, strict=True) if not r])
    return total / len(query)


def recall_reference(query, key, ids=None, k=1, normalize=True):
    return retrieval_reference(lambda rank: rank <= k, query, key, ids, normalize)


def reciprocal_reference(query, key, ids=None, normalize=True):
    return retrieval_reference(lambda rank: 1 / rank, query, key, ids, normalize)


def ordered(inputs):
    return {**inputs, "scores": inputs["target"].double() - 0.5}


def reversed_order(inputs):
    return {**inputs, "scores": 0.5 - inputs["target"].double()}


def matched(inputs):
    return {**inputs, "key": inputs["query"]}


def opposed(inputs):
    return {**inputs, "key": -inputs["query"]}


SCORE_ERRORS = (
    BadCall(
        ValueError, "scores must be finite, got inf at index (1,)", inputs={"scores": torch.tensor([0, math.inf, 0, 0])}
    ),
    BadCall(ValueError, "target must be 0 or 1, got 2 at index (3,)", inputs={"target": torch.tensor([0, 1, 1, 2])}),
    BadCall(ValueError, "target must have shape (4,) to match scores", inputs={"target": torch.ones(4, 1)}),
    BadCall(TypeError, "scores must be a floating point tensor", inputs={"scores": torch.arange(4)}),
)
PAIR_ERRORS = (
    BadCall(TypeError, "normalize must be True or False, got 1", {"normalize": 1}),
    BadCall(
        ValueError, "query must be finite, got nan at index (0, 0)", inputs={"query": torch.full((4, 4), math.nan)}
    ),
    BadCall(ValueError, "query must have shape (N, D)", inputs={"query": torch.ones(4)}),
    BadCall(ValueError, "key must have 4 features to match query", inputs={"key": torch.ones(4, 3)}),
    BadCall(ValueError, "key must have shape (4, 4) to match query", inputs={"key": torch.ones(5, 4)}),
    BadCall(ValueError, "ids must have shape (4,)", inputs={"ids": torch.arange(3)}),
    BadCall(TypeError, "ids must hold integers", inputs={"ids": torch.ones(4)}),
)

SPECS = (
    MetricSpec(
        smallest=2,
        cls=PairAUROC,
        kind="scores",
        function=pair_auroc,
        reference=auroc_reference,
        configs=(
            {},
            {"pairing": "per_query"},
            {"pairing": "per_query", "empty_target_action": "neg"},
            {"pairing": "per_query", "empty_target_action": "pos"},
        ),
        kinds={1: "query_scores", 2: "query_scores", 3: "query_scores"},
        golden=golden("RetrievalAUROC.per_query", "RetrievalAUROC.per_query_ties"),
        errors=(
            *SCORE_ERRORS,
            BadCall(ValueError, "pairing must be one of 'global', 'per_query', got 'batch'", {"pairing": "batch"}),
            BadCall(ValueError, "empty_target_action must be one of", {"empty_target_action": "zero"}),
            BadCall(ValueError, "index must be given for pairing='per_query', got None", {"pairing": "per_query"}),
            BadCall(TypeError, "index must hold integers", {"pairing": "per_query"}, {"index": torch.ones(4)}),
            BadCall(ValueError, "index must have shape (4,)", {"pairing": "per_query"}, {"index": torch.arange(3)}),
            BadCall(
                ValueError,
                "1 of 1 queries lack positive or negative pairs",
                {"empty_target_action": "error"},
                {"target": torch.ones(4)},
            ),
        ),
        perfect=ordered,
        worst=reversed_order,
        bounds=(0.0, 1.0),
        seeds=("000.15", "core.AUROC"),
    ),
    MetricSpec(
        smallest=2,
        cls=BinnedPairAUROC,
        kind="scores",
        function=binned_pair_auroc,
        reference=binned_reference,
        configs=({}, {"n_bins": 3}, {"n_bins": 5, "low": -0.3, "high": 1.7}),
        errors=(
            *SCORE_ERRORS,
            BadCall(ValueError, "n_bins must be >= 1, got 0", {"n_bins": 0}),
            BadCall(ValueError, "high must be > 1, got 1.0", {"low": 1.0}),
        ),
        perfect=ordered,
        worst=reversed_order,
        bounds=(0.0, 1.0),
    ),
    MetricSpec(
        cls=RecallAtK,
        kind="pairs",
        function=recall_at_k,
        reference=recall_reference,
        configs=({}, {"k": 3}, {"k": 2, "normalize": False}),
        errors=(
            *PAIR_ERRORS,
            BadCall(ValueError, "k must be >= 1, got 0", {"k": 0}),
            BadCall(TypeError, "k must be an integer, got [1, 5]", {"k": [1, 5]}),
        ),
        perfect=matched,
        bounds=(0.0, 1.0),
    ),
    MetricSpec(
        cls=MeanReciprocalRank,
        kind="pairs",
        function=mean_reciprocal_rank,
        reference=reciprocal_reference,
        configs=({}, {"normalize": False}),
        errors=PAIR_ERRORS,
        perfect=matched,
        bounds=(0.0, 1.0),
    ),
    MetricSpec(
        smallest=2,
        cls=EmbeddingMargin,
        kind="pairs",
        function=embedding_margin,
        configs=({}, {"normalize": False}),
        golden=golden("EmbeddingMargin"),
        errors=(
            *PAIR_ERRORS,
            BadCall(ValueError, "target must have shape (4, 4)", inputs={"target": torch.ones(4).bool(), "ids": None}),
            BadCall(TypeError, "target must hold booleans", inputs={"target": torch.eye(4), "ids": None}),
            BadCall(ValueError, "ids must be left out", inputs={"target": torch.eye(4).bool()}),
        ),
        exact=False,
        perfect=matched,
        worst=opposed,
        seeds=("003.10",),
    ),
)
