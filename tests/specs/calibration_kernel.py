"""Records of the calibration metrics that smooth or test instead of counting in fixed bins."""

import math
from itertools import pairwise

import torch

from tests.golden.bind import golden
from tests.specs.calibration_binned import certain, groups_of_scores, wrong
from tests.specs.calibration_metrics import ERRORS, distributions
from trainkit.calibration.metrics import (
    KDECalibrationError,
    LabelConstrainedECE,
    SmoothCalibrationError,
    TestBasedCalibrationError,
    kde_calibration_error,
    label_constrained_ece,
    smooth_calibration_error,
    tce,
)
from trainkit.testing import BadCall, MetricSpec

WIDTHS = [10 ** (-5 + 4 * i / 14) for i in range(15)] + [0.2, 0.4, 0.6, 0.8, 1.0]


def inside(p):
    clamped = [min(max(v, 1e-6), 1 - 1e-6) for v in p]
    return p if clamped == p else [v / sum(clamped) for v in clamped]


def log_density(p, centre, h):
    alpha = [v / h + 1 for v in centre]
    kernel = sum((a - 1) * math.log(v) for a, v in zip(alpha, inside(p), strict=True))
    return kernel - sum(map(math.lgamma, alpha)) + math.lgamma(sum(alpha))


def log_sum(values):
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def others(values, i):
    return values[:i] + values[i + 1 :]


def likeliest(p):
    fits = []
    for h in WIDTHS:
        densities = [[log_density(p[i], q, h) for q in others(p, i)] for i in range(len(p))]
        fits.append((sum(map(log_sum, densities)), h))
    return max(fits)[1]


def kde_error(p, t, power, h):
    h = h or likeliest(p)
    total = 0.0
    for i, own in enumerate(p):
        logs = [log_density(own, q, h) for q in others(p, i)]
        shares = [math.exp(v - log_sum(logs)) for v in logs]
        columns = zip(*others(t, i), strict=True)
        found = [sum(s * v for s, v in zip(shares, column, strict=True)) for column in columns]
        total += sum(abs(r - v) ** power for r, v in zip(found, own[-len(found) :], strict=True))
    return total / len(p)


def kde_reference(logits, target, task="multiclass", reduce="canonical", p=1.0, bandwidth=None, max_samples=None):
    if reduce == "canonical":
        pairs = list(distributions(logits, target, task))
        return kde_error([own for own, _ in pairs], [t for _, t in pairs], p, bandwidth)
    classes = len(logits[0]) if task != "binary" else 1
    groups = groups_of_scores(logits, target, task, classes, reduce)
    return sum(kde_error([[1 - s, s] for s, _ in own], [[a] for _, a in own], p, bandwidth) for own in groups)


def of_one_class(inputs, sign=1):
    """Beyond doubt, and right, for targets that are all of one class: each row has others that are like it."""
    logits, target = inputs["logits"], torch.zeros_like(inputs["target"])
    sure = torch.full_like(logits, -40.0)
    if target.shape != logits.shape or (inputs["target"] % 1).any():
        sure[:, 0] = 40.0
    if target.is_floating_point() and (inputs["target"] % 1).any():
        target[:, 0] = 1.0
    return {**inputs, "logits": sign * sure, "target": target}


def of_one_other_class(inputs):
    return of_one_class(inputs, -1)


def rates_of(bins):
    return [sum(a for _, a in own) / len(own) for own in bins]


def pooled(pairs, n_min, n_max, last):
    """Bins of labels one by one, pooled until no neighbours are to be; ``last`` labels are one bin."""
    inner, tail = pairs[: len(pairs) - last], pairs[len(pairs) - last :]
    if not inner:
        return [pairs]
    bins = []
    for pair in inner:
        bins.append([pair])
        while len(bins) > 1:
            both = bins[-2] + bins[-1]
            first, second = rates_of(bins[-2:])
            if not (len(both) <= n_min or (len(both) <= n_max and first >= second)):
                break
            bins[-2:] = [both]
    if tail and len(bins[-1]) + last <= n_max:
        return [*bins[:-1], bins[-1] + tail]
    return bins + [tail] * bool(tail)


def label_bins(pairs, strategy="pavabc", n_min=10, n_max=1000, n_bins=10):
    """Bins of scores of which no two are equal, and their edges."""
    pairs = sorted(pairs)
    edges = None
    if strategy == "uniform":
        edges = [b / n_bins for b in range(n_bins + 1)]
        bins = [[] for _ in range(n_bins)]
        for s, a in pairs:
            bins[sum(s >= e for e in edges[1:-1])].append((s, a))
    elif strategy == "quantile":
        starts = [min(round(b * (len(pairs) / n_bins)), len(pairs) - 1) for b in range(1, n_bins)]
        bins = [[] for _ in range(n_bins)]
        for r, pair in enumerate(pairs):
            bins[sum(r >= start for start in starts)].append(pair)
    elif strategy == "pava":
        bins = pooled(pairs, 0, len(pairs) + 1, 0)
    else:
        bins = pooled(pairs, n_min, n_max, min(n_min, len(pairs)))
    if edges is None and all(bins):
        edges = [0.0, *((a[-1][0] + b[0][0]) / 2 for a, b in pairwise(bins)), 1.0]
    return bins, edges


def binomial_pvalue(hits, n, p):
    chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    return sum(c for c in chances if c <= chances[hits] * (1 + 1e-7))


def t_pvalue(hits, n, p):
    """Two tails of the density of t, by the midpoint rule in its angle."""
    rate = hits / n
    if rate in (0, 1):
        return float(n < 2 or p == rate)
    t, freedom = abs(p - rate) * math.sqrt(n / (rate * (1 - rate))), n - 1
    steps = 20000
    start = math.atan(t / math.sqrt(freedom))
    width = (math.pi / 2 - start) / steps
    area = sum(math.cos(start + (i + 0.5) * width) ** (freedom - 1) for i in range(steps)) * width
    return 2 * area * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


def parts_of(value, bins, edges, **more):
    conf = [sum(s for s, _ in own) / len(own) if own else math.nan for own in bins]
    positives = [int(sum(a for _, a in own)) for own in bins]
    return {"value": value, "edges": edges, "count": [*map(len, bins)], "positives": positives, "conf": conf, **more}


def tce_reference(
    logits,
    target,
    task="multiclass",
    num_classes=None,
    reduce=None,
    siglevel=0.05,
    test="binom",
    return_parts=False,
    **binning,
):
    pvalue = binomial_pvalue if test == "binom" else t_pvalue
    values = []
    for pairs in groups_of_scores(logits, target, task, num_classes, reduce):
        bins, edges = label_bins(pairs, **binning)
        rejected = []
        for own in bins:
            hits = int(sum(a for _, a in own))
            rejected.append(sum(pvalue(hits, len(own), s) <= siglevel for s, _ in own))
        values.append(100 * sum(rejected) / len(pairs))
        if return_parts:
            return parts_of(values[0], bins, edges, rejected=rejected)
    return sum(values) / len(values)


def lce_reference(
    logits, target, task="multiclass", num_classes=None, reduce=None, norm="l1", return_parts=False, **binning
):
    values = []
    for pairs in groups_of_scores(logits, target, task, num_classes, reduce):
        bins, edges = label_bins(pairs, **binning)
        gaps = [(abs(sum(s - a for s, a in own)) / len(own), len(own) / len(pairs)) for own in bins]
        if norm == "max":
            values.append(max(gap for gap, _ in gaps))
        else:
            power = 1 if norm == "l1" else 2
            values.append(sum(share * gap**power for gap, share in gaps) ** (1 / power))
        if return_parts:
            return parts_of(values[0], bins, edges)
    return sum(values) / len(values)


def split(pairs):
    """Residuals and counts by thousandths, each divided between the two nearest."""
    nodes = {}
    for s, a in pairs:
        left = min(int(s * 1000), 999)
        for node, share in ((left, 1 - (s * 1000 - left)), (left + 1, s * 1000 - left)):
            residual, count = nodes.get(node, (0.0, 0.0))
            nodes[node] = residual + share * (s - a), count + share
    mirrored = {-node: sums for node, sums in nodes.items()} | {2000 - node: sums for node, sums in nodes.items()}
    return {**mirrored, **nodes}


def smooth_error(nodes, sigma):
    def at(node):
        total = [0.0, 0.0]
        for other, sums in nodes.items():
            if abs(node - other) <= 500:
                kernel = math.exp(-(((node - other) / 1000) ** 2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
                total = [t + kernel * v for t, v in zip(total, sums, strict=True)]
        return total

    mesh = max(200, round(10 / sigma))
    residual, mass = 0.0, 0.0
    for i in range(mesh):
        place = 1000 * i / (mesh - 1)
        left = min(int(place), 999)
        share = place - left
        (r0, d0), (r1, d1) = at(left), at(left + 1) if share else (0.0, 0.0)
        residual += abs((1 - share) * r0 + share * r1)
        mass += (1 - share) * d0 + share * d1 + 1e-4
    return residual / mass


def least_width(nodes):
    low, high = 0.0, 1.0
    for _ in range(10):
        middle = (low + high) / 2
        if middle < 0.001 or middle < smooth_error(nodes, middle):
            low = middle
        else:
            high = middle
    return high


def smooth_reference(logits, target, task="multiclass", num_classes=None, reduce=None, sigma=None, return_parts=False):
    grids = [split(pairs) for pairs in groups_of_scores(logits, target, task, num_classes, reduce)]
    widths = [sigma or least_width(nodes) for nodes in grids]
    value = sum(map(smooth_error, grids, widths)) / len(grids)
    return {"value": value, "sigma": widths if len(widths) > 1 else widths[0]} if return_parts else value


def surely_wrong(inputs):
    """Beyond doubt, and for another class."""
    sure = certain(inputs)["logits"]
    return {**inputs, "logits": -sure if inputs["target"].shape == sure.shape else sure.roll(1, 1)}


def at_the_rate(inputs):
    """Equal probabilities, of classes that come equally often."""
    target = inputs["target"]
    classes = 2 if target.is_floating_point() else inputs["logits"].shape[1]
    labels = torch.arange(target.numel()).view_as(target) % classes
    return {"logits": torch.zeros_like(inputs["logits"]), "target": labels.to(target.dtype)}


CLASSES = {"reduce": "classwise", "num_classes": 5}
SOFT = torch.full((4, 5), 0.2)
LABEL_ERRORS = (
    *ERRORS,
    BadCall(ValueError, "num_classes must be given for reduce='classwise', got None", {"reduce": "classwise"}),
    BadCall(ValueError, "n_min must be >= 1, got 0", {"n_min": 0}),
    BadCall(ValueError, "n_max must be at least twice n_min=10, got 19", {"n_max": 19}),
    BadCall(TypeError, "official_compat must be True or False, got 1", {"official_compat": 1}),
    BadCall(ValueError, "return_parts must be False for reduce='classwise'", {**CLASSES, "return_parts": True}),
    BadCall(ValueError, "target must be 0 or 1, since labels are counted, got 0.2", inputs={"target": SOFT}),
    BadCall(ValueError, "weight must be whole, since labels are counted, got 0.5", inputs={"weight": SOFT[:, 0] + 0.3}),
)

KINDS = {1: "binary", 2: "multilabel", 3: "dense", 4: "soft_classification", 5: "binary"}

SPECS = (
    MetricSpec(
        cls=KDECalibrationError,
        function=kde_calibration_error,
        reference=kde_reference,
        configs=(
            {},
            {"task": "binary", "bandwidth": 0.1},
            {"task": "multilabel", "reduce": "classwise", "bandwidth": 0.05},
            {"reduce": "top_label", "p": 2.0, "bandwidth": 0.02},
            {"reduce": "classwise", "p": 1.5},
            {"task": "binary", "reduce": "top_label", "max_samples": None},
        ),
        kinds=KINDS,
        sizes={2: (2, 7), 3: (2, 7), 4: (2, 7)},
        smallest=2,
        golden=golden(*(f"KDECalibrationError.{kind}" for kind in ("canonical", "marginal", "top_label"))),
        errors=(
            *ERRORS,
            BadCall(ValueError, "reduce must be one of 'canonical', 'classwise', 'top_label'", {"reduce": "marginal"}),
            BadCall(ValueError, "p must be >= 1, got 0.5", {"p": 0.5}),
            BadCall(ValueError, "bandwidth must be > 0, got 0.0", {"bandwidth": 0.0}),
            BadCall(ValueError, "max_samples must be >= 2, got 1", {"max_samples": 1}),
            BadCall(TypeError, "seed must be an integer, got None", {"seed": None}),
        ),
        perfect=of_one_class,
        worst=of_one_other_class,
        bounds=(0.0, 5.0),
        seeds=("000.20",),
    ),
    MetricSpec(
        cls=TestBasedCalibrationError,
        function=tce,
        reference=tce_reference,
        configs=(
            {},
            {"task": "binary", "n_min": 2, "n_max": 5, "siglevel": 0.3},
            {"task": "binary", "strategy": "pava", "siglevel": 0.4, "test": "t"},
            {"task": "multilabel", "strategy": "uniform", "n_bins": 4, "siglevel": 0.2},
            {**CLASSES, "strategy": "quantile", "n_bins": 3, "siglevel": 0.3},
            {"reduce": "all", "n_min": 3, "n_max": 12, "siglevel": 0.1},
        ),
        kinds={1: "binary", 2: "binary", 3: "multilabel", 4: "dense"},
        # A t-test of one label rejects nothing, whatever was predicted.
        sizes={2: (2, 7, 16)},
        golden=golden(*(f"TestBasedCalibrationError.{kind}" for kind in ("pavabc", "uniform", "quantile"))),
        errors=(
            *LABEL_ERRORS,
            BadCall(ValueError, "strategy must be one of 'pavabc', 'pava', 'uniform'", {"strategy": "equal_mass"}),
            BadCall(ValueError, "n_bins must be >= 1, got 0", {"n_bins": 0}),
            BadCall(ValueError, "siglevel must be > 0 and < 1, got 5", {"siglevel": 5}),
            BadCall(ValueError, "test must be one of 'binom', 't', got 'z'", {"test": "z"}),
        ),
        perfect=at_the_rate,
        worst=surely_wrong,
        bounds=(0.0, 100.0),
        seeds=("000.67",),
    ),
    MetricSpec(
        cls=LabelConstrainedECE,
        function=label_constrained_ece,
        reference=lce_reference,
        configs=(
            {},
            {"task": "binary", "n_min": 2, "n_max": 5, "norm": "max"},
            {**CLASSES, "n_min": 2, "n_max": 5, "norm": "l2"},
            {"task": "multilabel", "n_min": 3, "n_max": 7},
        ),
        kinds={1: "binary", 2: "dense", 3: "multilabel"},
        golden=golden("LabelConstrainedECE.pavabc"),
        errors=(*LABEL_ERRORS, BadCall(ValueError, "norm must be one of 'l1', 'l2', 'max'", {"norm": "l3"})),
        perfect=certain,
        bounds=(0.0, 1.0),
        seeds=("000.67",),
    ),
    MetricSpec(
        cls=SmoothCalibrationError,
        function=smooth_calibration_error,
        reference=smooth_reference,
        configs=(
            {},
            {"task": "binary", "return_parts": True},
            {**CLASSES, "sigma": 0.1},
            {"task": "multilabel", "sigma": 0.05, "return_parts": True},
            {"task": "binary", "reduce": "top_label"},
            {"sigma": 0.2},
        ),
        kinds={1: "binary", 2: "dense", 3: "multilabel", 4: "binary", 5: "soft_classification"},
        sizes={0: (1, 2, 7), 2: (1, 2)},
        golden=golden("SmoothCalibrationError", "SmoothCalibrationError.fixed_sigma"),
        errors=(
            *ERRORS,
            BadCall(ValueError, "reduce must be one of 'top_label', 'classwise', 'all', got 'max'", {"reduce": "max"}),
            BadCall(ValueError, "num_classes must be given for reduce='classwise', got None", {"reduce": "classwise"}),
            BadCall(ValueError, "sigma must be >= 0.001, got 0.0005", {"sigma": 0.0005}),
            BadCall(TypeError, "return_parts must be True or False, got 1", {"return_parts": 1}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("smECE",),
    ),
)
