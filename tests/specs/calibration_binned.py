"""Records of the metrics of binned scores."""

import math
from functools import partial

import torch

from tests.golden.bind import golden
from tests.specs.calibration_metrics import ERRORS, distributions, perfect
from trainkit.calibration.metrics import (
    ECE,
    MCE,
    RMSCE,
    AdaptiveCalibrationError,
    BinnedCalibrationError,
    ClasswiseECE,
    KSCalibrationError,
    ReliabilityDiagram,
    ThresholdedACE,
    binned_calibration_error,
    ks_calibration_error,
    reliability_diagram,
)
from trainkit.testing import BadCall, MetricSpec


def groups_of_scores(logits, target, task, num_classes, reduce):
    """Pairs of score and hit, in one list for every set of bins."""
    groups = {}
    reduce = reduce or ("top_label" if task == "multiclass" else "all")
    for position, (p, t) in enumerate(distributions(logits, target, task)):
        if reduce == "top_label":
            top = p.index(max(p))
            groups.setdefault(0, []).append((p[top], t[top]))
            continue
        looked_at = enumerate(zip(p, t, strict=True)) if task == "multiclass" else [(position, (p[1], t[1]))]
        for k, pair in looked_at:
            label = 0 if reduce == "all" or task == "binary" else k % num_classes
            groups.setdefault(label, []).append(pair)
    return [groups[k] for k in sorted(groups)]


def equal_width(pairs, n_bins, closed):
    edges = [b / n_bins for b in range(n_bins + 1)]
    bins = [[] for _ in range(n_bins)]
    for s, a in pairs:
        bins[sum(s >= e if closed == "left" else s > e for e in edges[1:-1])].append((s, a))
    return bins, edges


def equal_mass(pairs, n_bins, ties):
    ordered = sorted(pairs, key=lambda pair: pair[0])
    n = len(ordered)
    bins = [[] for _ in range(n_bins)]
    starts = [ordered[min(round(b * (n / n_bins)), n - 1)][0] for b in range(1, n_bins)]
    for r, (s, a) in enumerate(ordered):
        bins[r * n_bins // n if ties == "split" else sum(s >= e for e in starts)].append((s, a))
    return bins, None


def binned(pairs, n_bins, binning, closed="left", ties="split", threshold=0.0):
    kept = [(s, a) for s, a in pairs if s > threshold] if threshold else pairs
    if not kept:
        return [[] for _ in range(n_bins)], None
    return equal_width(kept, n_bins, closed) if binning == "equal_width" else equal_mass(kept, n_bins, ties)


def error_of_bins(bins, norm, weighting, debias):
    total, filled = sum(map(len, bins)), sum(map(bool, bins))
    terms = []
    for own in filter(None, bins):
        n = len(own)
        acc, conf = sum(a for _, a in own) / n, sum(s for s, _ in own) / n
        term = abs(acc - conf) ** (2 if norm == "l2" else 1)
        if debias:
            term = term - acc * (1 - acc) / (n - 1) if n > 1 else 0.0
        terms.append((n / total if weighting == "count" else 1 / filled, term))
    if norm == "max":
        return max(term for _, term in terms)
    return sum(share * term for share, term in terms)


def error_reference(
    logits,
    target,
    task="multiclass",
    num_classes=None,
    n_bins=15,
    norm="l1",
    binning="equal_width",
    reduce=None,
    threshold=0.0,
    debias=False,
    per_class=False,
    closed="left",
    ties="split",
    weighting="count",
):
    errors = []
    for pairs in groups_of_scores(logits, target, task, num_classes, reduce):
        bins, _ = binned(pairs, n_bins, binning, closed, ties, threshold)
        errors.append(error_of_bins(bins, norm, weighting, debias) if any(bins) else 0.0)

    def rooted(error):
        return math.sqrt(max(0.0, error)) if norm == "l2" else error

    return [rooted(e) for e in errors] if per_class else rooted(sum(errors) / len(errors))


def wilson(hits, n):
    """Where |acc - p| = 1.96 sqrt(p (1 - p) / n), by bisection on each side."""

    def outside(p):
        return (hits / n - p) ** 2 > 1.96**2 * p * (1 - p) / n

    ends = []
    for far in (0.0, 1.0):
        near = hits / n
        for _ in range(200):
            middle = (near + far) / 2
            near, far = (near, middle) if outside(middle) else (middle, far)
        ends.append(near)
    return ends


def diagram_of_bins(bins, edges):
    told = {name: [] for name in ("count", "conf", "acc", "gap", "wilson_lo", "wilson_hi")}
    for own in bins:
        n = len(own)
        acc = sum(a for _, a in own) / n if n else math.nan
        conf = sum(s for s, _ in own) / n if n else math.nan
        low, high = wilson(sum(a for _, a in own), n) if n else (math.nan, math.nan)
        for name, value in zip(told, (n, conf, acc, acc - conf, low, high), strict=True):
            told[name].append(float(value))
    if edges is None:
        lowest = [min((s for s, _ in own), default=None) for own in bins]
        edges = [0.0, *(next((s for s in lowest[b:] if s is not None), 1.0) for b in range(1, len(bins))), 1.0]
    return {"edges": edges, **told}


def diagram_reference(
    logits, target, task="multiclass", num_classes=None, n_bins=15, binning="equal_width", reduce=None, closed="left"
):
    every = [
        diagram_of_bins(*binned(pairs, n_bins, binning, closed))
        for pairs in groups_of_scores(logits, target, task, num_classes, reduce)
    ]
    if reduce != "classwise":
        return every[0]
    return {name: [own[name] for own in every] for name in every[0]}


def ks_reference(
    logits, target, task="multiclass", num_classes=None, reduce=None, top_k=1, signed=False, per_class=False
):
    if top_k > 1:
        pairs = []
        for p, t in distributions(logits, target, task):
            top = sorted(range(len(p)), key=lambda k: -p[k])[:top_k]
            pairs.append((min(1.0, sum(p[k] for k in top)), sum(t[k] for k in top)))
        groups = [pairs]
    else:
        groups = groups_of_scores(logits, target, task, num_classes, reduce)
    errors = []
    for pairs in groups:
        gaps = [sum(a - s for s, a in pairs if s <= end) / len(pairs) for end, _ in pairs]
        largest = max(gaps, key=abs)
        errors.append(largest if signed else abs(largest))
    return errors if per_class else sum(errors) / len(errors)


def certain(inputs):
    """Beyond doubt, so that the largest probability rounds to one."""
    sure = perfect(inputs)["logits"]
    soft = ((inputs["target"] > 0) & (inputs["target"] < 1)).any()
    return {**inputs, "logits": sure if soft else 40 * sure}


def wrong(inputs):
    return {**inputs, "logits": -certain(inputs)["logits"]}


def named(**fixed):
    return partial(error_reference, **fixed)


SCHEME_ERRORS = (
    *ERRORS,
    BadCall(ValueError, "n_bins must be >= 1, got 0", {"n_bins": 0}),
    BadCall(ValueError, "got nan at index (0, 0)", inputs={"logits": torch.full((4, 5), math.nan)}),
)
CHOICE_ERRORS = (
    BadCall(ValueError, "binning must be one of 'equal_width', 'equal_mass', got 'quantile'", {"binning": "quantile"}),
    BadCall(ValueError, "reduce must be one of 'top_label', 'classwise', 'all', got 'max'", {"reduce": "max"}),
    BadCall(ValueError, "num_classes must be given for reduce='classwise', got None", {"reduce": "classwise"}),
    BadCall(ValueError, "where num_classes=3", {"num_classes": 3}),
    BadCall(ValueError, "threshold must be >= 0 and < 1, got 1.0", {"threshold": 1.0}),
    BadCall(ValueError, "closed must be one of", {"closed": "both"}),
    BadCall(ValueError, "ties must be one of", {"ties": "random"}),
    BadCall(ValueError, "exact must be True for binning='equal_width'", {"exact": False}),
)
CLASSES = {"num_classes": 5, "reduce": "classwise"}
# A bin that weighs less than two counts nothing when its variance is taken off, so that one row has no worse value.
DEBIASED = {5: (8,)}

SPECS = (
    MetricSpec(
        cls=BinnedCalibrationError,
        function=binned_calibration_error,
        reference=error_reference,
        configs=(
            {},
            {**CLASSES, "per_class": True},
            {"norm": "max", "closed": "right", "n_bins": 4},
            {"task": "binary", "norm": "l2", "weighting": "uniform"},
            {"task": "multilabel", **CLASSES, "norm": "l2"},
            {"norm": "l2", "debias": True, "n_bins": 2},
            {"binning": "equal_mass", **CLASSES, "norm": "l2", "ties": "together", "n_bins": 4},
            {"binning": "equal_mass", "task": "binary", "reduce": "top_label", "threshold": 0.6, "n_bins": 3},
            {"reduce": "all", "threshold": 0.1, "weighting": "uniform"},
        ),
        kinds={1: "soft_classification", 2: "dense", 3: "binary", 4: "multilabel", 7: "binary"},
        sizes=DEBIASED | {7: (8,)},
        golden=golden(
            "CalibrationError.top_label",
            "CalibrationError.top_label_equal_mass",
            "CalibrationError.binary_edges",
            "CalibrationError.debiased_l2",
            "GeneralCalibrationError.ACE",
            "GeneralCalibrationError.RMSCE",
            "GeneralCalibrationError.SCE",
            "GeneralCalibrationError.SCE_l2",
        ),
        errors=(
            *SCHEME_ERRORS,
            *CHOICE_ERRORS,
            BadCall(ValueError, "norm must be one of 'l1', 'l2', 'max', got 'l3'", {"norm": "l3"}),
            BadCall(ValueError, "debias must be False for norm='l1'", {"debias": True}),
            BadCall(ValueError, "squared must be False for norm='l1'", {"squared": True}),
            BadCall(ValueError, "per_class must be False for reduce=None", {"per_class": True}),
            BadCall(ValueError, "weighting must be one of", {"weighting": "mass"}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=ReliabilityDiagram,
        function=reliability_diagram,
        reference=diagram_reference,
        configs=(
            {},
            {"task": "binary", "n_bins": 4, "closed": "right"},
            {**CLASSES, "n_bins": 3},
            {"binning": "equal_mass", "n_bins": 3},
        ),
        kinds={1: "binary"},
        errors=(*SCHEME_ERRORS, *CHOICE_ERRORS),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=KSCalibrationError,
        function=ks_calibration_error,
        reference=ks_reference,
        configs=(
            {},
            {**CLASSES, "per_class": True},
            {"top_k": 2},
            {"task": "binary"},
            {"task": "multilabel", **CLASSES},
            {"reduce": "all"},
            {"task": "binary", "reduce": "top_label"},
            {"signed": True},
        ),
        kinds={1: "soft_classification", 2: "dense", 3: "binary", 4: "multilabel", 6: "binary"},
        exempt={"M10@7": "a signed gap is best at zero, so that it has no better direction"},
        golden=golden("KSCalibrationError"),
        errors=(
            *ERRORS,
            BadCall(ValueError, "reduce must be one of 'top_label', 'classwise', 'all', got 'max'", {"reduce": "max"}),
            BadCall(ValueError, "num_classes must be given for reduce='classwise', got None", {"reduce": "classwise"}),
            BadCall(ValueError, "top_k must be >= 1, got 0", {"top_k": 0}),
            BadCall(ValueError, "top_k must be <= 5, the number of classes, got 6", {"top_k": 6}),
            BadCall(ValueError, "top_k must be 1 for reduce='all'", {"top_k": 2, "reduce": "all"}),
            BadCall(ValueError, "per_class must be False for reduce=None", {"per_class": True}),
            BadCall(ValueError, "signed must be False for the mean over classes", {**CLASSES, "signed": True}),
            BadCall(TypeError, "exact must be True or False, got 1", {"exact": 1}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(-1.0, 1.0),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=ECE,
        reference=named(),
        configs=({}, {"task": "binary", "n_bins": 5}),
        kinds={1: "binary"},
        errors=SCHEME_ERRORS,
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=MCE,
        reference=named(norm="max"),
        configs=({}, {"task": "multilabel", "n_bins": 5}),
        kinds={1: "multilabel"},
        errors=SCHEME_ERRORS,
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=RMSCE,
        reference=named(norm="l2", binning="equal_mass"),
        configs=({}, {"n_bins": 3}),
        errors=SCHEME_ERRORS,
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=ClasswiseECE,
        reference=named(reduce="classwise"),
        configs=({"num_classes": 5}, {"task": "multilabel", "num_classes": 5, "n_bins": 4}),
        kinds={1: "multilabel"},
        golden=golden("ClasswiseCalibrationError"),
        errors=(*SCHEME_ERRORS, BadCall(ValueError, "num_classes must be given", {"num_classes": None})),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=AdaptiveCalibrationError,
        reference=named(reduce="classwise", binning="equal_mass"),
        configs=({"num_classes": 5}, {"task": "binary", "n_bins": 4}),
        kinds={1: "binary"},
        golden=golden("AdaptiveCalibrationError"),
        errors=SCHEME_ERRORS,
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("000.14",),
    ),
    MetricSpec(
        cls=ThresholdedACE,
        reference=lambda threshold=0.01, **inputs: error_reference(
            **inputs, threshold=threshold, reduce="classwise", binning="equal_mass"
        ),
        configs=({"num_classes": 5}, {"num_classes": 5, "threshold": 0.2, "n_bins": 4}),
        errors=(*SCHEME_ERRORS, BadCall(ValueError, "threshold must be >= 0 and < 1, got 1.5", {"threshold": 1.5})),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("000.14",),
    ),
)
