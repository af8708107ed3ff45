"""Records of the metrics of rankings, of accuracy without labels and of features."""

import itertools
import math

import numpy as np
import torch

from tests.golden.bind import golden
from tests.specs.calibration_binned import certain, equal_width, error_of_bins, wrong
from tests.specs.calibration_metrics import ERRORS
from tests.specs.calibration_selective import CONFIGS, FLAG, KINDS, errors_in_order, risks
from trainkit.calibration.metrics import (
    CoverageAtRisk,
    LabelRankingCalibrationError,
    LogME,
    MaNo,
    RewardModelCalibrationError,
    coverage_at_risk,
    label_ranking_calibration_error,
    log_me,
    mano,
    reward_model_calibration_error,
)
from trainkit.testing import BadCall, MetricSpec


def coverage_reference(logits, target, risk, **options):
    found = risks(errors_in_order(logits, target, **options))
    return max((k / len(found) for k, r in enumerate(found, 1) if r <= risk + 1e-12), default=0.0)


def error_of_events(events, n_bins=15, norm="l1"):
    bins, _ = equal_width(events, n_bins, "left")
    error = error_of_bins(bins, norm, "count", False)
    return math.sqrt(error) if norm == "l2" else error


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def reward_reference(chosen_scores, rejected_scores, return_parts=False, **options):
    q = [sigmoid(c - r) for c, r in zip(chosen_scores, rejected_scores, strict=True)]
    hits = [1.0 if p > 0.5 else 0.5 if p == 0.5 else 0.0 for p in q]
    error = error_of_events([(max(p, 1 - p), hit) for p, hit in zip(q, hits, strict=True)], **options)
    if not return_parts:
        return error
    n = len(q)
    nll, brier = -sum(map(math.log, q)) / n, sum((1 - p) ** 2 for p in q) / n
    return {"error": error, "accuracy": sum(hits) / n, "nll": nll, "brier": brier}


def plackett_luce(scores, order):
    p = 1.0
    for t, item in enumerate(order):
        p *= math.exp(scores[item]) / sum(math.exp(scores[other]) for other in order[t:])
    return p


def law_of(scores, items, input_kind):
    """Probability of every order of some of the items, from that of every order of all of them."""
    every = list(itertools.permutations(range(items)))
    if input_kind == "logits":
        return {order: plackett_luce(scores, order) for order in every}
    values = [math.exp(s) for s in scores] if input_kind == "log_probs" else scores
    return dict(zip(every, (v / sum(values) for v in values), strict=True))


def marginal(law, kept, length):
    """Probability of every beginning of the order of the items that are kept."""
    found = {}
    for order, p in law.items():
        head = tuple(item for item in order if item in kept)[:length]
        found[head] = found.get(head, 0.0) + p
    return found


def ranking_reference(
    scores, rankings, events="pairwise", k=None, folded=False, input_kind="logits", n_subsets=256, seed=0, **options
):
    told = []
    for row, ranking in zip(scores, rankings, strict=True):
        law, seen = law_of(row, len(ranking), input_kind), [item for item in ranking if item >= 0]
        if events == "pairwise":
            for i, j in itertools.combinations(sorted(seen), 2):
                q, hit = marginal(law, (i, j), 2)[(i, j)], float(seen.index(i) < seen.index(j))
                told.append((max(q, 1 - q), hit if q > 0.5 else 1 - hit) if folded else (q, hit))
            continue
        sets = itertools.combinations(sorted(seen), k) if events == "sub_ranking" else [seen]
        for kept in sets:
            length = k if events == "top_k" else len(kept)
            if len(kept) < max(2, length):
                continue
            found = marginal(law, kept, length)
            likeliest = max(found, key=found.get)
            told.append((found[likeliest], float(likeliest == tuple(i for i in seen if i in kept)[:length])))
    return error_of_events(told, **options)


def foretold(inputs):
    """Scores of what is observed beyond doubt, as far as it was."""
    scores, rankings = inputs["scores"], inputs["rankings"]
    items = rankings.shape[1]
    first = torch.full_like(rankings, items)
    for row, ranking in enumerate(rankings.tolist()):
        for place, item in enumerate(i for i in ranking if i >= 0):
            first[row, item] = place
    if scores.shape[1] == items:
        return {**inputs, "scores": -40 * first.to(scores.dtype)}
    every = list(itertools.permutations(range(items)))
    codes = [every.index(tuple(order)) for order in first.argsort(1).tolist()]
    return {**inputs, "scores": torch.nn.functional.one_hot(torch.tensor(codes), len(every)).to(scores.dtype)}


def reversed_order(inputs):
    made = foretold(inputs)["scores"]
    # Of all orders in lexicographic order, the one read backwards is in another place; no ranking holds all of them.
    return {**inputs, "scores": -made if made.shape[1] == inputs["rankings"].shape[1] else made.flip(1)}


def rows_of_classes(logits):
    """Logits (N, C, ...) as one row a position."""
    for sample in logits:
        if isinstance(sample[0], list):
            yield from rows_of_classes([list(position) for position in zip(*sample, strict=True)])
        else:
            yield sample


def polynomial(z):
    t = [1 + v + v * v / 2 for v in z]
    total = sum(v - min(t) for v in t)
    return [(v - min(t)) / total for v in t]


def softmax(z):
    total = sum(math.exp(v - max(z)) for v in z)
    return [math.exp(v - max(z)) / total for v in z]


def mano_reference(logits, p=4, eta=5, return_parts=False):
    rows = list(rows_of_classes(logits))
    classes = len(rows[0])

    def norm(normalise):
        return (sum(q**p for z in rows for q in normalise(z)) / (len(rows) * classes)) ** (1 / p)

    told = {
        "criterion": -sum(math.log(q) for z in rows for q in softmax(z)) / (len(rows) * classes),
        "softmax": norm(softmax),
        "taylor": norm(polynomial),
    }
    told["score"] = told["taylor"] if told["criterion"] <= eta else told["softmax"]
    return told if return_parts else told["score"]


def evidence(features, y, max_iter, tol):
    """Of one target, from the singular values of the features."""
    n, d = features.shape
    u, s, _ = np.linalg.svd(features, full_matrices=False)
    sigma, x2 = s**2, (u.T @ y) ** 2
    alpha = beta = 1.0
    for _ in range(max_iter):
        t = alpha / beta
        gamma = (sigma / (sigma + t)).sum()
        m2 = (sigma * x2 / (t + sigma) ** 2).sum()
        res2 = (x2 / (1 + sigma / t) ** 2).sum() + y @ y - x2.sum()
        alpha, beta = gamma / (m2 + 1e-5), (n - gamma) / (res2 + 1e-5)
        if abs(alpha / beta - t) / t <= tol:
            break
    logs = d * math.log(alpha) + n * math.log(beta / (2 * math.pi)) - np.log(alpha + beta * sigma).sum()
    return (logs - beta * res2 - alpha * m2) / (2 * n), alpha, beta


def log_me_reference(
    features, target, num_features, num_classes=None, num_targets=1, max_iter=11, tol=1e-3, return_parts=False
):
    f, y = np.array(features), np.array(target)
    columns = [y == k for k in range(num_classes)] if num_classes else y.reshape(len(f), -1).T
    told = [evidence(f, own.astype(float), max_iter, tol) if own.any() else (math.nan,) * 3 for own in columns]
    values, alphas, betas = (list(map(float, part)) for part in zip(*told, strict=True))
    value = float(np.nanmean(values))
    return {"log_me": value, "alphas": alphas, "betas": betas} if return_parts else value


BINS = (
    BadCall(ValueError, "n_bins must be >= 1, got 0", {"n_bins": 0}),
    BadCall(ValueError, "norm must be one of 'l1', 'l2', 'max', got 'l3'", {"norm": "l3"}),
    BadCall(TypeError, "validate_args must be True or False, got 1", {"validate_args": 1}),
)

SPECS = (
    MetricSpec(
        cls=RewardModelCalibrationError,
        kind="preference",
        function=reward_model_calibration_error,
        reference=reward_reference,
        configs=({}, {"n_bins": 5, "norm": "l2"}, {"norm": "max", "n_bins": 4}, {"return_parts": True}),
        golden=golden("RewardModelCalibrationError"),
        errors=(
            *BINS,
            BadCall(TypeError, "return_parts must be True or False, got 'all'", {"return_parts": "all"}),
            BadCall(
                ValueError,
                "rejected_scores must have shape (4,) to match chosen_scores",
                inputs={"rejected_scores": torch.zeros(4, 1)},
            ),
            BadCall(
                TypeError,
                "chosen_scores must be a floating point tensor",
                inputs={"chosen_scores": torch.zeros(4, dtype=torch.int64)},
            ),
            BadCall(ValueError, "weight must be finite and >= 0, got -1.0", inputs={"weight": -torch.ones(4)}),
        ),
        perfect=lambda inputs: {**inputs, "rejected_scores": inputs["chosen_scores"] - 50},
        worst=lambda inputs: {**inputs, "rejected_scores": inputs["chosen_scores"] + 50},
        bounds=(0.0, math.inf),
        seeds=("000.10",),
    ),
    MetricSpec(
        cls=LabelRankingCalibrationError,
        kind="label_ranking",
        function=label_ranking_calibration_error,
        reference=ranking_reference,
        configs=(
            {},
            {"folded": True, "n_bins": 5, "norm": "l2"},
            {"events": "sub_ranking", "k": 3, "n_bins": 6},
            {"events": "top_k", "k": 1, "norm": "max", "n_bins": 4},
            {"events": "full"},
            {"input_kind": "probs"},
            {"input_kind": "probs", "events": "sub_ranking", "k": 2, "n_bins": 6},
            {"input_kind": "probs", "events": "top_k", "k": 2},
            {"input_kind": "probs", "events": "full", "norm": "l2"},
        ),
        kinds=dict.fromkeys((5, 6, 7, 8), "ranking_law"),
        golden=golden("LabelRankingCalibrationError"),
        errors=(
            *BINS,
            BadCall(ValueError, "events must be one of 'pairwise', 'sub_ranking'", {"events": "top1"}),
            BadCall(TypeError, "k must be an integer, got None", {"events": "top_k"}),
            BadCall(ValueError, "k must be >= 1, got 0", {"events": "top_k", "k": 0}),
            BadCall(ValueError, "k must be >= 2, got 1", {"events": "sub_ranking", "k": 1}),
            BadCall(ValueError, "k must be None for events='full', got 2", {"events": "full", "k": 2}),
            BadCall(ValueError, "k must be <= 4, the number of items, got 5", {"events": "top_k", "k": 5}),
            BadCall(ValueError, "folded must be False for events='full'", {"events": "full", "folded": True}),
            BadCall(ValueError, "n_subsets must be >= 1, got 0", {"n_subsets": 0}),
            BadCall(ValueError, "seed must be >= 0, got -1", {"seed": -1}),
            BadCall(ValueError, "input_kind must be one of", {"input_kind": "scores"}),
            BadCall(ValueError, "scores must have shape (4, 24) to match all orders", {"input_kind": "probs"}),
            BadCall(
                ValueError,
                "rankings must be of at most 8 items",
                {"input_kind": "probs"},
                {"rankings": torch.arange(9).repeat(4, 1)},
            ),
            BadCall(
                ValueError, "scores must have shape (4, 3) to match", inputs={"rankings": torch.arange(3).repeat(4, 1)}
            ),
            BadCall(ValueError, "rankings must have shape (N, L)", inputs={"rankings": torch.arange(4)}),
            BadCall(TypeError, "rankings must hold integers", inputs={"rankings": torch.zeros(4, 4)}),
            BadCall(
                ValueError,
                "rankings must hold items in [0, 4), or -1 for none, got 4 at index (0, 0)",
                inputs={"rankings": torch.tensor([[4, 1, 2, 3]] * 4)},
            ),
            BadCall(
                ValueError,
                "rankings must hold no item twice, got 1 at index (0, 0)",
                inputs={"rankings": torch.tensor([[1, 1, 2, 3]] * 4)},
            ),
            BadCall(ValueError, "weight must have shape (4,)", inputs={"weight": torch.ones(4, 4)}),
        ),
        perfect=foretold,
        worst=reversed_order,
        bounds=(0.0, 1.0),
        seeds=("000.10",),
    ),
    MetricSpec(
        cls=CoverageAtRisk,
        function=coverage_at_risk,
        reference=coverage_reference,
        configs=tuple({"risk": r, **config} for r, config in zip((0.7, 0.4, 0.5, 0.0, 0.75), CONFIGS, strict=True)),
        kinds=KINDS,
        errors=(
            *ERRORS,
            FLAG,
            BadCall(ValueError, "risk must be >= 0 and <= 1, got -0.1", {"risk": -0.1}),
            BadCall(ValueError, "risk must be >= 0 and <= 1, got 5", {"risk": 5}),
            BadCall(TypeError, "risk must be a number, got '5%'", {"risk": "5%"}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("AURC",),
    ),
    MetricSpec(
        cls=MaNo,
        function=mano,
        reference=mano_reference,
        configs=({}, {"eta": 0.5, "p": 2.0}, {"return_parts": True, "p": 3.5}, {"eta": 2.0}),
        kinds={1: "dense"},
        golden=golden("MaNo"),
        errors=(
            BadCall(ValueError, "p must be >= 1, got 0.5", {"p": 0.5}),
            BadCall(ValueError, "eta must be >= 0, got -1", {"eta": -1}),
            BadCall(TypeError, "return_parts must be True or False", {"return_parts": 1}),
            BadCall(ValueError, "logits must have shape (N, C, ...)", inputs={"logits": torch.zeros(4)}),
            BadCall(ValueError, "logits must have shape (N, C, ...)", inputs={"logits": torch.zeros(4, 0)}),
            BadCall(TypeError, "logits must be a floating point", inputs={"logits": torch.zeros(4, 5).long()}),
            BadCall(ValueError, "weight must have shape (4,) to match", inputs={"weight": torch.ones(4, 5)}),
            BadCall(ValueError, "weight must be finite and >= 0, got -1.0", inputs={"weight": -torch.ones(4)}),
        ),
        bounds=(0.0, math.inf),
        seeds=("003.8",),
    ),
    MetricSpec(
        cls=LogME,
        kind="labelled_features",
        function=log_me,
        reference=log_me_reference,
        configs=(
            {"num_features": 4, "num_classes": 5},
            {"num_features": 4},
            {"num_features": 4, "num_classes": 6, "return_parts": True},
            {"num_features": 4, "max_iter": 2, "tol": 0.0},
        ),
        kinds={1: "regression_features", 3: "regression_features"},
        golden=golden("LogME"),
        errors=(
            BadCall(ValueError, "num_features must be >= 1, got 0", {"num_features": 0}),
            BadCall(ValueError, "num_classes must be >= 1, got 0", {"num_classes": 0}),
            BadCall(ValueError, "num_targets must be 1 for classes, got 2", {"num_targets": 2}),
            BadCall(ValueError, "max_iter must be >= 1, got 0", {"max_iter": 0}),
            BadCall(ValueError, "tol must be >= 0, got -1.0", {"tol": -1.0}),
            BadCall(ValueError, "features must have shape (N, 3)", {"num_features": 3}),
            BadCall(TypeError, "target must be a floating point tensor", {"num_classes": None}),
            BadCall(
                TypeError, "target must hold integers for num_classes=5", inputs={"target": torch.zeros(4).double()}
            ),
            BadCall(
                ValueError,
                "target must have shape (4, 2) to match features",
                {"num_classes": None, "num_targets": 2},
                {"target": torch.zeros(4)},
            ),
            BadCall(
                ValueError,
                "target must be in [0, 5), got 5 at index (3,)",
                inputs={"target": torch.tensor([0, 1, 2, 5])},
            ),
            BadCall(ValueError, "weight must have shape (4,) to match features", inputs={"weight": torch.ones(4, 1)}),
        ),
        seeds=("003.77",),
    ),
)
