"""Records of the calibration metrics that smooth or test instead of counting in fixed bins."""

import math

import torch

from tests.golden.bind import golden
from tests.specs.calibration_binned import groups_of_scores
from tests.specs.calibration_metrics import ERRORS, distributions
from trainkit.calibration.metrics import KDECalibrationError, kde_calibration_error
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
)
