"""Records of the metrics that look at groups, at neighbours, at changes and at bins one by one."""

import math

import torch

from tests.golden.bind import golden
from tests.specs.calibration_binned import certain, equal_width, error_of_bins, wrong
from tests.specs.calibration_metrics import (
    ERRORS,
    brier_reference,
    change_reference,
    distributions,
    flat,
    nll_reference,
    perfect,
    worst,
)
from trainkit.calibration import NeighborProximity
from trainkit.calibration.metrics import (
    BrierDecomposition,
    CertifiedBinCalibration,
    PartitionedCalibrationError,
    PostHocImprovement,
    ProximityInformedECE,
    StratumCoverage,
    brier_decomposition,
    certified_bin_calibration,
    partitioned_calibration_error,
    post_hoc_improvement,
    proximity_informed_ece,
    stratum_coverage,
)
from trainkit.testing import BadCall, MetricSpec, ModuleSpec

NAN = math.nan


def scores_beside(logits, target, task, reduce, beside=None):
    """Triples of score, hit and what stands beside the target."""
    told = list(distributions(logits, target, task))
    beside = [None] * len(told) if beside is None else flat(beside)
    reduce = reduce or ("top_label" if task == "multiclass" else "all")
    triples = []
    for (p, t), own in zip(told, beside, strict=True):
        if reduce == "top_label":
            top = p.index(max(p))
            looked_at = [(p[top], t[top])]
        else:
            looked_at = zip(p, t, strict=True) if task == "multiclass" else [(p[1], t[1])]
        triples += [(s, a, own) for s, a in looked_at]
    return triples


def error_of(pairs, n_bins, closed, norm="l1"):
    bins, _ = equal_width(pairs, n_bins, closed)
    error = error_of_bins(bins, norm, "count", False)
    return math.sqrt(error) if norm == "l2" else error


def partitioned_reference(
    logits,
    target,
    groups,
    num_groups,
    task="multiclass",
    n_bins=15,
    norm="l1",
    reduce=None,
    closed="left",
    return_parts=False,
):
    triples = scores_beside(logits, target, task, reduce, groups)
    inside = [[(s, a) for s, a, g in triples if g == group] for group in range(num_groups)]
    errors = [error_of(pairs, n_bins, closed, norm) if pairs else NAN for pairs in inside]
    counts = [len(pairs) for pairs in inside]
    there = [e for e in errors if not math.isnan(e)]
    error = sum(n * e for n, e in zip(counts, errors, strict=True) if n) / sum(counts)
    parts = {
        "error": error,
        "per_group": errors,
        "worst_group": max(there),
        "max_gap": max(there) - min(there),
        "count": [float(n) for n in counts],
    }
    return parts if return_parts else error


def proximity_reference(
    logits,
    target,
    proximity,
    task="multiclass",
    n_bins=10,
    n_proximity_bins=10,
    proximity_edges=None,
    reduce=None,
    closed="left",
    ties="split",
    return_parts=False,
):
    triples = sorted(scores_beside(logits, target, task, reduce, proximity), key=lambda triple: triple[2])
    n, count = len(triples), n_proximity_bins
    if proximity_edges is not None:
        edges = proximity_edges
        place = [sum(d >= e for e in edges[1:-1]) for _, _, d in triples]
    else:
        starts = [triples[min(round(m * (n / count)), n - 1)][2] for m in range(1, count)]
        together = [sum(d >= e for e in starts) for _, _, d in triples]
        place = [r * count // n for r in range(n)] if ties == "split" else together
        lowest = [
            min((t[2] for t, p in zip(triples, place, strict=True) if p == m), default=None) for m in range(count)
        ]
        edges = [0.0, *(next((d for d in lowest[m:] if d is not None), 1.0) for m in range(1, count)), 1.0]
    inside = [[(s, a) for (s, a, _), p in zip(triples, place, strict=True) if p == m] for m in range(count)]
    errors = [error_of(pairs, n_bins, closed) if pairs else NAN for pairs in inside]
    error = sum(len(pairs) * e for pairs, e in zip(inside, errors, strict=True) if pairs) / n
    parts = {
        "error": error,
        "per_bin": errors,
        "gap": [sum(a - s for s, a in pairs) / len(pairs) if pairs else NAN for pairs in inside],
        "count": [float(len(pairs)) for pairs in inside],
        "edges": edges,
    }
    return parts if return_parts else error


BANK = [[math.sin(3.0 * i + j * j) for j in range(4)] for i in range(12)]


def neighbours(module, inputs):
    """Proximity of the inputs, the third of them as the row 5 of the bank."""
    module.fit(torch.tensor(BANK, dtype=torch.float64).to(inputs["features"]))
    ids = torch.full((len(inputs["features"]),), -1)
    ids[2:3] = 5
    return module(inputs["features"], ids=ids)


def neighbours_reference(features, k=10, normalize=False, chunk_size=1024):
    def unit(row):
        return [v / math.hypot(*row) for v in row] if normalize else row

    found = []
    for position, x in enumerate(features):
        bank = [row for i, row in enumerate(BANK) if (position, i) != (2, 5)]
        distances = sorted(math.dist(unit(x), unit(row)) for row in bank)
        found.append(sum(math.exp(-d) for d in distances[:k]) / k)
    return found


def decomposed_reference(logits, target, task="multiclass", n_bins=15, reduce=None, closed="left"):
    """The parts as means over rows, each with the means of its bin; a chance is a hit and a miss by parts."""
    triples = scores_beside(logits, target, task, reduce)
    pairs = [(s, a) for s, a, _ in triples]
    bins, _ = equal_width(pairs, n_bins, closed)
    n, rate = len(pairs), sum(a for _, a in pairs) / len(pairs)
    told = dict.fromkeys(
        ("brier", "reliability", "resolution", "uncertainty", "within_variance", "within_covariance"), 0.0
    )
    for own in filter(None, bins):
        conf, acc = sum(s for s, _ in own) / len(own), sum(a for _, a in own) / len(own)
        for s, a in own:
            told["brier"] += (a * (s - 1) ** 2 + (1 - a) * s**2) / n
            told["reliability"] += (conf - acc) ** 2 / n
            told["resolution"] += (acc - rate) ** 2 / n
            told["uncertainty"] += rate * (1 - rate) / n
            told["within_variance"] += (s - conf) ** 2 / n
            told["within_covariance"] += 2 * (s - conf) * (a - acc) / n
    return told


def improvement_reference(
    logits, new_logits, target, task="multiclass", score="nll", relative=False, return_parts=False
):
    """Each row is scored by itself, before and after."""
    told = {}
    for name, of in (("nll", nll_reference), ("brier", brier_reference)):
        before, after = (
            [of(*row, task) for row in one_by_one(values, target, task)] for values in (logits, new_logits)
        )
        gains = [b - a for b, a in zip(before, after, strict=True)]
        n, mean = len(gains), sum(gains) / len(gains)
        error = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / n / n)
        told[name] = mean
        told[f"{name}_relative"] = n * mean / sum(before)
        told[f"{name}_stderr"] = error
        told[f"{name}_low"], told[f"{name}_high"] = mean - 1.96 * error, mean + 1.96 * error
    changes = change_reference(logits, new_logits, target, task, return_parts=True)
    told["accuracy"] = (changes["wrong_to_right"] - changes["right_to_wrong"]) / n
    told["change_rate"] = changes["rate"]
    return told if return_parts else told[f"{score}_relative" if relative else score]


def one_by_one(logits, target, task):
    if task == "multiclass":
        return [([z], [t]) for z, t in zip(logits, target, strict=True)]
    return [([z], [t]) for z, t in zip(flat(logits), flat(target), strict=True)]


def improved(inputs):
    return {**inputs, "new_logits": perfect(inputs)["logits"]}


def spoiled(inputs):
    return {**inputs, "new_logits": worst(inputs)["logits"]}


def coverage_reference(covered, groups, size, num_groups, alpha=0.1, min_count=30, return_parts=False):
    rows = [
        [(c, s) for c, g, s in zip(covered, groups, size, strict=True) if g == group] for group in range(num_groups)
    ]
    counts = [len(own) for own in rows]
    coverage = [sum(c for c, _ in own) / len(own) if own else NAN for own in rows]
    there = [c for c, n in zip(coverage, counts, strict=True) if n >= min_count]
    marginal = sum(c for own in rows for c, _ in own) / sum(counts)
    parts = {
        "marginal": marginal,
        "per_group": coverage,
        "worst": min(there),
        "disparity": max(abs(c - (1 - alpha)) for c in there),
        "range": max(there) - min(there),
        "gap": max(abs(c - marginal) for c in there),
        "size": [sum(s for _, s in own) / len(own) if own else NAN for own in rows],
        "count": [float(n) for n in counts],
        "excluded": [float(0 < n < min_count) for n in counts],
    }
    return parts if return_parts else min(there)


def certified_reference(
    logits,
    target,
    lipschitz,
    radius,
    delta=0.05,
    task="multiclass",
    n_bins=15,
    reduce=None,
    closed="left",
    return_parts=False,
):
    triples = scores_beside(logits, target, task, reduce, lipschitz)
    bins, edges = equal_width([(s, (a, slope)) for s, a, slope in triples], n_bins, closed)
    told = {"gap": [], "slack": [], "shift": []}
    for own in bins:
        n = len(own) or NAN
        told["gap"].append(abs(sum(a - s for s, (a, _) in own)) / n)
        told["slack"].append(math.sqrt(math.log(2 * n_bins / delta) / (2 * n)))
        told["shift"].append(radius * sum(slope for _, (_, slope) in own) / n)
    bound = [sum(terms) for terms in zip(*told.values(), strict=True)]
    error = sum(len(own) * b for own, b in zip(bins, bound, strict=True) if own) / len(triples)
    parts = {"error": error, "bound": bound, **told, "count": [float(len(own)) for own in bins], "edges": edges}
    return parts if return_parts else bound


BIN_ERRORS = (
    *ERRORS,
    BadCall(ValueError, "n_bins must be >= 1, got 0", {"n_bins": 0}),
    BadCall(ValueError, "reduce must be one of 'top_label', 'all', got 'classwise'", {"reduce": "classwise"}),
    BadCall(ValueError, "closed must be one of", {"closed": "both"}),
)

SPECS = (
    MetricSpec(
        cls=PartitionedCalibrationError,
        kind="classification_beside",
        function=partitioned_calibration_error,
        reference=partitioned_reference,
        configs=(
            {"num_groups": 3},
            {"num_groups": 4, "return_parts": True, "n_bins": 4, "closed": "right"},
            {"num_groups": 3, "task": "binary", "norm": "l2"},
            {"num_groups": 3, "task": "multilabel", "norm": "max", "n_bins": 3},
            {"num_groups": 3, "n_bins": 1},
            {"num_groups": 3, "reduce": "all", "n_bins": 4},
        ),
        kinds={2: "binary_beside", 3: "multilabel_beside", 4: "dense_beside"},
        golden=golden("PartitionedCalibrationError"),
        errors=(
            *BIN_ERRORS,
            BadCall(ValueError, "num_groups must be >= 1, got 0", {"num_groups": 0}),
            BadCall(ValueError, "norm must be one of 'l1', 'l2', 'max', got 'l3'", {"norm": "l3"}),
            BadCall(TypeError, "return_parts must be True or False, got 1", {"return_parts": 1}),
            BadCall(ValueError, "got 3 at index (1,)", inputs={"groups": torch.tensor([0, 3, 1, 1])}),
            BadCall(ValueError, "got -2 at index (0,)", inputs={"groups": torch.tensor([-2, 0, 1, 1])}),
            BadCall(TypeError, "groups must be int64", inputs={"groups": torch.zeros(4)}),
            BadCall(TypeError, "groups must be a tensor, got None", inputs={"groups": None}),
            BadCall(ValueError, "groups must have shape (4,)", inputs={"groups": torch.zeros(3, dtype=torch.int64)}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, math.inf),
        seeds=("000.40",),
    ),
    MetricSpec(
        cls=ProximityInformedECE,
        kind="classification_beside",
        function=proximity_informed_ece,
        reference=proximity_reference,
        configs=(
            {},
            {"n_bins": 3, "n_proximity_bins": 4, "return_parts": True},
            {"n_proximity_bins": 3, "proximity_edges": [0.0, 0.3, 0.6, 1.0], "return_parts": True, "closed": "right"},
            {"task": "binary", "n_proximity_bins": 2, "proximity_edges": [0.0, 0.5, 1.0]},
            {"task": "multilabel", "n_bins": 3, "ties": "together"},
            {"reduce": "all", "n_bins": 4, "n_proximity_bins": 2, "ties": "together"},
        ),
        kinds={3: "binary_beside", 4: "multilabel_beside"},
        golden=golden("ProximityInformedECE"),
        errors=(
            *BIN_ERRORS,
            BadCall(ValueError, "n_proximity_bins must be >= 1, got 0", {"n_proximity_bins": 0}),
            BadCall(ValueError, "ties must be one of 'split', 'together'", {"ties": "random"}),
            BadCall(ValueError, "proximity_edges must have 11 entries", {"proximity_edges": [0.0, 1.0]}),
            BadCall(
                ValueError,
                "proximity_edges must be in ascending order",
                {"n_proximity_bins": 3, "proximity_edges": [0.0, 0.6, 0.3, 1.0]},
            ),
            BadCall(
                ValueError,
                "proximity_edges must be >= 0 and <= 1, got 2",
                {"n_proximity_bins": 1, "proximity_edges": [0.0, 2]},
            ),
            BadCall(TypeError, "return_parts must be True or False, got 1", {"return_parts": 1}),
            BadCall(ValueError, "proximity must be in [0, 1], got 1.5", inputs={"proximity": torch.full((4,), 1.5)}),
            BadCall(ValueError, "proximity must be in [0, 1], got nan", inputs={"proximity": torch.full((4,), NAN)}),
            BadCall(TypeError, "proximity must be a floating point", inputs={"proximity": torch.ones(4).long()}),
            BadCall(ValueError, "proximity must have shape (4,)", inputs={"proximity": torch.ones(4, 1)}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(-1.0, math.inf),
        seeds=("000.49",),
    ),
    ModuleSpec(
        cls=NeighborProximity,
        kind="features",
        call=neighbours,
        reference=neighbours_reference,
        configs=({}, {"k": 3, "normalize": True, "chunk_size": 2}),
        errors=(
            BadCall(ValueError, "k must be >= 1, got 0", {"k": 0}),
            BadCall(ValueError, "bank_size must be > 10, the number of neighbours, got 10", {"bank_size": 10}),
            BadCall(ValueError, "features must have more rows than k=12", {"k": 12}),
            BadCall(TypeError, "normalize must be True or False, got 1", {"normalize": 1}),
            BadCall(ValueError, "seed must be >= 0, got -1", {"seed": -1}),
            BadCall(ValueError, "features must have shape (N, 4), as in fit", inputs={"features": torch.zeros(4, 3)}),
            BadCall(ValueError, "features must have shape (N, D)", inputs={"features": torch.zeros(4)}),
            BadCall(ValueError, "features must be finite, got nan", inputs={"features": torch.full((4, 4), NAN)}),
        ),
        seeds=("000.49",),
    ),
    MetricSpec(
        cls=BrierDecomposition,
        function=brier_decomposition,
        reference=decomposed_reference,
        configs=(
            {},
            {"n_bins": 4, "closed": "right"},
            {"task": "binary", "n_bins": 5},
            {"task": "multilabel", "n_bins": 3},
            {"reduce": "all", "n_bins": 1},
            {"task": "binary", "reduce": "top_label", "n_bins": 2},
        ),
        kinds={1: "soft_classification", 2: "binary", 3: "multilabel", 4: "dense", 5: "binary"},
        errors=BIN_ERRORS,
        seeds=("brier",),
    ),
    MetricSpec(
        cls=PostHocImprovement,
        kind="changed_classification",
        function=post_hoc_improvement,
        reference=improvement_reference,
        configs=(
            {},
            {"score": "brier", "relative": True},
            {"return_parts": True},
            {"task": "binary", "return_parts": True},
        ),
        kinds={3: "changed_binary"},
        golden=golden("PostHocImprovement"),
        errors=(
            *(call for call in ERRORS if "logits" not in call.inputs and "input_kind" not in call.config),
            BadCall(ValueError, "score must be one of 'nll', 'brier', got 'ece'", {"score": "ece"}),
            BadCall(TypeError, "relative must be True or False, got 1", {"relative": 1}),
            BadCall(ValueError, "new_logits must have shape (4, 5)", inputs={"new_logits": torch.ones(4)}),
            BadCall(
                ValueError,
                "new_logits must be finite, got nan at index (0, 0)",
                inputs={"new_logits": torch.full((4, 5), NAN)},
            ),
            BadCall(ValueError, "logits must be finite, got nan", inputs={"logits": torch.full((4, 5), NAN)}),
        ),
        perfect=improved,
        worst=spoiled,
        seeds=("000.51",),
    ),
    MetricSpec(
        cls=StratumCoverage,
        kind="coverage",
        function=stratum_coverage,
        reference=coverage_reference,
        configs=(
            {"num_groups": 3, "min_count": 1.0},
            {"num_groups": 4, "min_count": 1.0, "return_parts": True},
            {"num_groups": 3, "min_count": 2.0, "alpha": 0.3, "return_parts": True},
        ),
        sizes={2: (16, 40)},
        golden=golden("StratumCoverage"),
        errors=(
            BadCall(ValueError, "num_groups must be >= 1, got 0", {"num_groups": 0}),
            BadCall(ValueError, "alpha must be > 0 and < 1, got 1.0", {"alpha": 1.0}),
            BadCall(ValueError, "min_count must be > 0, got 0", {"min_count": 0}),
            BadCall(TypeError, "return_parts must be True or False, got 1", {"return_parts": 1}),
            BadCall(ValueError, "covered must be True or False", inputs={"covered": torch.tensor([0, 1, 2, 1])}),
            BadCall(ValueError, "got 3 at index (1,)", inputs={"groups": torch.tensor([0, 3, 1, 1])}),
            BadCall(TypeError, "groups must be int64", inputs={"groups": torch.zeros(4)}),
            BadCall(ValueError, "groups must have shape (4,)", inputs={"groups": torch.zeros(3).long()}),
            BadCall(ValueError, "size must have shape (4,)", inputs={"size": torch.ones(4, 1)}),
            BadCall(ValueError, "size must be finite and >= 0, got -1.0", inputs={"size": -torch.ones(4)}),
            BadCall(ValueError, "weight must be finite and >= 0, got nan", inputs={"weight": torch.full((4,), NAN)}),
        ),
        perfect=lambda inputs: {**inputs, "covered": torch.ones_like(inputs["covered"])},
        bounds=(0.0, math.inf),
        seeds=("000.11",),
    ),
    MetricSpec(
        cls=CertifiedBinCalibration,
        kind="classification_beside",
        function=certified_bin_calibration,
        reference=certified_reference,
        configs=(
            {"radius": 0.1},
            {"radius": 0.5, "delta": 0.1, "n_bins": 4, "closed": "right", "return_parts": True},
            {"radius": 0.0, "task": "binary", "n_bins": 5},
            {"radius": 1.0, "task": "multilabel", "n_bins": 3},
            {"radius": 0.2, "reduce": "all", "n_bins": 2, "return_parts": True},
        ),
        kinds={2: "binary_beside", 3: "multilabel_beside", 4: "dense_beside"},
        golden=golden("CertifiedBinCalibration"),
        errors=(
            *BIN_ERRORS,
            BadCall(ValueError, "radius must be >= 0, got -1", {"radius": -1}),
            BadCall(ValueError, "delta must be > 0 and < 1, got 0", {"delta": 0}),
            BadCall(TypeError, "return_parts must be True or False, got 1", {"return_parts": 1}),
            BadCall(ValueError, "lipschitz must be finite and >= 0, got -1.0", inputs={"lipschitz": -torch.ones(4)}),
            BadCall(TypeError, "lipschitz must be a floating point", inputs={"lipschitz": torch.ones(4).long()}),
            BadCall(ValueError, "lipschitz must have shape (4,)", inputs={"lipschitz": torch.ones(4, 1)}),
        ),
        seeds=("000.24",),
    ),
)
