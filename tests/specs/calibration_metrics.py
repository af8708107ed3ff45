"""Records of the calibration metrics."""

import math

import torch

from tests.golden.bind import golden
from trainkit.calibration.metrics import (
    BrierScore,
    NegativeLogLikelihood,
    NLLDecomposition,
    TopOneChangeRate,
    brier_score,
    negative_log_likelihood,
    nll_decomposition,
    top_one_change_rate,
)
from trainkit.testing import BadCall, MetricSpec


def softmax(row):
    exps = [math.exp(z - max(row)) for z in row]
    return [e / sum(exps) for e in exps]


def two_classes(logit, target):
    p = 1 / (1 + math.exp(-logit))
    return [1 - p, p], [1 - target, target]


def flat(values):
    return [v for value in values for v in flat(value)] if isinstance(values, list) else [values]


def one_hot(target, classes):
    return target if isinstance(target, list) else [float(k == target) for k in range(classes)]


def distributions(logits, target, task):
    """Predicted and true distribution of every target."""
    if task != "multiclass":
        yield from (two_classes(z, t) for z, t in zip(flat(logits), flat(target), strict=True))
        return
    for z, t in zip(logits, target, strict=True):
        planes = [flat(plane) for plane in z]
        targets = [t] if isinstance(t, list) and len(flat(t)) == len(z) else flat(t)
        for position, own in enumerate(targets):
            p = softmax([plane[position] for plane in planes])
            yield p, one_hot(own, len(p))


def brier_reference(logits, target, task="multiclass", form="full"):
    scores = []
    for p, t in distributions(logits, target, task):
        score = 0.0
        for label, chance in enumerate(t):
            hit = one_hot(label, len(p))
            if form == "top_label":
                top = p.index(max(p))
                score += chance * (p[top] - hit[top]) ** 2
            else:
                score += chance * sum((a - b) ** 2 for a, b in zip(p, hit, strict=True))
        scores.append(score / 2 if form == "half" else score)
    return sum(scores) / len(scores)


def nll_reference(logits, target, task="multiclass", num_classes=None, per_class=False):
    totals, weights = {}, {}
    for position, (p, t) in enumerate(distributions(logits, target, task)):
        for label, chance in enumerate(t):
            group = (position % num_classes if task == "multilabel" else label) if per_class else 0
            totals[group] = totals.get(group, 0.0) + (-chance * math.log(p[label]) if chance else 0.0)
            weights[group] = weights.get(group, 0.0) + chance
    means = (
        [totals[g] / weights[g] if weights.get(g) else math.nan for g in range(num_classes or 2)] if per_class else []
    )
    return means or totals[0] / weights[0]


def change_reference(logits, new_logits, target, task="multiclass", tie="keep", return_parts=False):
    told = dict.fromkeys(("changed", "right_to_wrong", "wrong_to_right", "wrong_to_wrong"), 0.0)
    before = list(distributions(logits, target, task))
    after = distributions(new_logits, target, task)
    for (p, t), (q, _) in zip(before, after, strict=True):
        old, new = p.index(max(p)), q.index(max(q))
        if old == new or (tie == "keep" and q[old] == max(q)):
            continue
        told["changed"] += 1
        for label, chance in enumerate(t):
            kind = "right_to_wrong" if label == old else "wrong_to_right" if label == new else "wrong_to_wrong"
            told[kind] += chance
    rate = told["changed"] / len(before)
    return {"rate": rate, **told} if return_parts else rate


def unchanged(inputs):
    return {**inputs, "new_logits": 2 * inputs["logits"]}


def turned(inputs):
    return {**inputs, "new_logits": -inputs["logits"]}


def nll_parts_reference(logits, target, task="multiclass", **settings):
    rows = [([math.log(a) for a in p], t) for p, t in distributions(logits, target, task)]

    def mean(row, weights):
        return sum(a * b for a, b in zip(row, weights, strict=True))

    def nll(u):
        tops = [max(z) for z, _ in rows]
        sums = [math.log(sum(math.exp(u * (a - top)) for a in z)) for (z, _), top in zip(rows, tops, strict=True)]
        hits = [u * (mean(z, t) - top) for (z, t), top in zip(rows, tops, strict=True)]
        return (sum(sums) - sum(hits)) / len(rows)

    def slope(u):
        return sum(mean(z, softmax([u * a for a in z])) - mean(z, t) for z, t in rows)

    spread = [sum((a - sum(z) / len(z)) ** 2 for a in z) / len(z) for z, _ in rows]
    scale = math.sqrt(sum(spread) / len(rows))
    low, high = math.log(scale * 1e-3), math.log(scale * 1e3)
    bottom = low
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(math.exp(-middle)) <= 0 else (middle, high)
    # A step of bisection is never taken to the end itself.
    temperature = math.exp(bottom if low - bottom < 1e-9 else high)
    parts = {"nll": nll(1.0), "refinement": nll(1 / temperature)}
    return {**parts, "calibration": parts["nll"] - parts["refinement"], "temperature": temperature}


def perfect(inputs):
    """Logits that give the class of the target all probability, or the probabilities of a soft target."""
    logits, target = inputs["logits"], inputs["target"]
    if ((target > 0) & (target < 1)).any():
        sure = target.log()
    elif target.shape == logits.shape:
        sure = 20 * (2 * target - 1)
    else:
        sure = torch.zeros_like(logits).scatter(1, target.unsqueeze(1), 20.0)
    return {**inputs, "logits": sure}


def worst(inputs):
    return {**inputs, "logits": -perfect(inputs)["logits"]}


ERRORS = (
    BadCall(
        ValueError, "task must be one of 'binary', 'multiclass', 'multilabel', got 'regression'", {"task": "regression"}
    ),
    BadCall(ValueError, "input_kind must be one of", {"input_kind": "scores"}),
    BadCall(ValueError, "logits must be finite, got nan", inputs={"logits": torch.full((4, 5), math.nan)}),
    BadCall(ValueError, "got 7 at index (1,)", inputs={"target": torch.tensor([0, 7, 1, 1])}),
    BadCall(ValueError, "probabilities in [0, 1] for input_kind='probs', got", {"input_kind": "probs"}),
    BadCall(
        ValueError,
        "sum to 1 for input_kind='probs', got 2.5",
        {"input_kind": "probs"},
        {"logits": torch.full((4, 5), 0.5)},
    ),
    BadCall(ValueError, "log-probabilities <= 0", {"input_kind": "log_probs"}, {"logits": torch.ones(4, 5)}),
    BadCall(
        TypeError, "logits must be a floating point tensor", inputs={"logits": torch.ones(4, 5, dtype=torch.int64)}
    ),
    BadCall(ValueError, "logits must have shape (N, C, ...)", inputs={"logits": torch.ones(4)}),
    BadCall(ValueError, "weight must have shape (4,)", inputs={"weight": torch.ones(4, 1)}),
    BadCall(ValueError, "weight must be finite and >= 0, got -1.0", inputs={"weight": -torch.ones(4)}),
    BadCall(TypeError, "ignore_index must be an integer, got None", {"ignore_index": None}),
)

SPECS = (
    MetricSpec(
        cls=BrierScore,
        function=brier_score,
        reference=brier_reference,
        configs=(
            {},
            {"form": "half"},
            {"form": "top_label"},
            {"task": "binary"},
            {"task": "multilabel", "form": "half"},
        ),
        kinds={1: "soft_classification", 2: "dense", 3: "binary", 4: "multilabel"},
        golden=golden("BrierScore"),
        errors=(*ERRORS, BadCall(ValueError, "form must be one of", {"form": "quarter"})),
        perfect=perfect,
        worst=worst,
        bounds=(0.0, 2.0),
        seeds=("brier",),
    ),
    MetricSpec(
        cls=NegativeLogLikelihood,
        function=negative_log_likelihood,
        reference=nll_reference,
        configs=(
            {},
            {"per_class": True, "num_classes": 5},
            {"num_classes": 5},
            {"task": "binary", "per_class": True},
            {"task": "multilabel", "per_class": True, "num_classes": 5},
        ),
        kinds={2: "soft_classification", 3: "binary", 4: "multilabel"},
        golden=golden("NegativeLogLikelihood"),
        errors=(
            *ERRORS,
            BadCall(ValueError, "num_classes must be given for per_class, got None", {"per_class": True}),
            BadCall(ValueError, "where num_classes=3", {"num_classes": 3}),
        ),
        perfect=perfect,
        worst=worst,
        bounds=(0.0, math.inf),
        seeds=("nll",),
    ),
    MetricSpec(
        cls=NLLDecomposition,
        function=nll_decomposition,
        reference=nll_parts_reference,
        configs=({}, {"task": "binary"}, {"task": "multilabel"}, {"ignore_index": -1}),
        kinds={1: "binary", 2: "multilabel", 3: "soft_classification"},
        errors=ERRORS,
        seeds=("nll",),
    ),
    MetricSpec(
        cls=TopOneChangeRate,
        kind="changed_classification",
        function=top_one_change_rate,
        reference=change_reference,
        configs=({}, {"return_parts": True}, {"task": "binary", "tie": "first"}),
        kinds={2: "changed_binary"},
        golden=golden("TopOneChangeRate"),
        errors=(
            *(call for call in ERRORS if "logits" not in call.inputs and "input_kind" not in call.config),
            BadCall(ValueError, "tie must be one of 'keep', 'first', got 'last'", {"tie": "last"}),
            BadCall(
                ValueError, "new_logits must have shape (4, 5) to match logits", inputs={"new_logits": torch.ones(4)}
            ),
            BadCall(
                ValueError,
                "new_logits must be finite, got nan at index (0, 0)",
                inputs={"new_logits": torch.full((4, 5), math.nan)},
            ),
            BadCall(
                TypeError, "new_logits must be a floating point tensor", inputs={"new_logits": torch.ones(4, 5).int()}
            ),
            BadCall(ValueError, "logits must be finite, got nan", inputs={"logits": torch.full((4, 5), math.nan)}),
            BadCall(TypeError, "return_parts must be True or False, got None", {"return_parts": None}),
        ),
        perfect=unchanged,
        worst=turned,
        bounds=(0.0, math.inf),
        seeds=("000.72",),
    ),
)
