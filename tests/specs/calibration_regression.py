"""Records of the metrics of predicted distributions, quantiles and intervals."""

import math
from itertools import pairwise

import torch

from tests.golden.bind import golden
from trainkit.calibration.metrics import (
    EnsembleCRPS,
    IntervalScore,
    MixtureCRPS,
    NormalCRPS,
    PITCalibrationError,
    QuantileCalibrationError,
    QuantileScore,
    WeightedIntervalScore,
    ensemble_crps,
    interval_score,
    mixture_crps,
    normal_crps,
    pit_calibration_error,
    quantile_calibration_error,
    quantile_score,
    weighted_interval_score,
)
from trainkit.testing import BadCall, MetricSpec

LEVELS = [0.1, 0.25, 0.5, 0.75, 0.9]


def mean(values):
    return sum(values) / len(values)


def distance(m, s):
    """E|X| of a normal distribution."""
    return m * math.erf(m / s / math.sqrt(2)) + 2 * s * math.exp(-((m / s) ** 2) / 2) / math.sqrt(2 * math.pi)


def of_terms(rows, return_parts):
    """Rows of error, spread and sharpness."""
    error, spread, sharpness = (mean(column) for column in zip(*rows, strict=True))
    parts = {"crps": error - spread, "error": error, "spread": spread, "sharpness": sharpness}
    return parts if return_parts else parts["crps"]


def mixture_row(probs, means, stds, y):
    parts = list(zip(probs, means, stds, strict=True))
    error = sum(p * distance(y - m, s) for p, m, s in parts)
    spread = sum(p * q * distance(m - n, math.hypot(s, t)) for p, m, s in parts for q, n, t in parts) / 2
    centre = sum(p * m for p, m, _ in parts)
    return error, spread, math.sqrt(sum(p * (s * s + m * m) for p, m, s in parts) - centre**2)


def normal_reference(mean, std, target, return_parts=False):
    rows = [mixture_row([1.0], [m], [s], y) for m, s, y in zip(mean, std, target, strict=True)]
    return of_terms(rows, return_parts)


def mixture_reference(probs, mean, std, target, return_parts=False):
    return of_terms([mixture_row(*row) for row in zip(probs, mean, std, target, strict=True)], return_parts)


def ensemble_reference(samples, target, fair=False, return_parts=False):
    rows = []
    for members, y in zip(samples, target, strict=True):
        m = len(members)
        error = mean([abs(x - y) for x in members])
        spread = sum(abs(a - b) for a in members for b in members) / (2 * m * (m - 1 if fair else m))
        centre = mean(members)
        rows.append((error, spread, math.sqrt(sum((x - centre) ** 2 for x in members) / (m - 1 if fair else m))))
    return of_terms(rows, return_parts)


def crossings(quantiles):
    return float(sum(any(a > b for a, b in pairwise(row)) for row in quantiles))


def quantile_reference(quantiles, target, levels, return_parts=False):
    per_level = [
        mean([max(tau * (y - q), (1 - tau) * (q - y)) for q, y in zip(column, target, strict=True)])
        for tau, column in zip(levels, zip(*quantiles, strict=True), strict=True)
    ]
    score = mean(per_level)
    return {"score": score, "per_level": per_level, "crossings": crossings(quantiles)} if return_parts else score


def interval_row(low, high, y, alpha):
    return high - low, 2 / alpha * max(0.0, y - high), 2 / alpha * max(0.0, low - y)


def interval_reference(lower, upper, target, alpha=0.1, return_parts=False):
    rows = list(zip(lower, upper, target, strict=True))
    parts = {
        "score": mean([sum(interval_row(low, high, y, alpha)) for low, high, y in rows]),
        "coverage": mean([float(low <= y <= high) for low, high, y in rows]),
        "width": mean([high - low for low, high, _ in rows]),
        "crossings": crossings(zip(lower, upper, strict=True)),
    }
    return parts if return_parts else parts["score"]


def wis_reference(quantiles, target, levels, return_parts=False):
    """Intervals from the outermost inwards, and the median."""
    rows = []
    for q, y in zip(quantiles, target, strict=True):
        intervals = [(2 * levels[k], interval_row(q[k], q[-1 - k], y, 2 * levels[k])) for k in range(len(q) // 2)]
        wide, under, over = (sum(alpha / 2 * own[part] for alpha, own in intervals) for part in range(3))
        median = q[len(q) // 2]
        under, over = under + 0.5 * max(0.0, y - median), over + 0.5 * max(0.0, median - y)
        rows.append([value / (len(q) // 2 + 0.5) for value in (wide + under + over, wide, under, over)])
    names = ("score", "dispersion", "underprediction", "overprediction")
    parts = dict(zip(names, (mean(column) for column in zip(*rows, strict=True)), strict=True))
    return {**parts, "crossings": crossings(quantiles)} if return_parts else parts["score"]


def quantile_error_reference(quantiles, target, levels, p=1, return_parts=False):
    observed = [
        mean([float(y <= row[k]) for row, y in zip(quantiles, target, strict=True)]) for k in range(len(levels))
    ]
    error = mean([abs(o - tau) ** p for o, tau in zip(observed, levels, strict=True)])
    return {"error": error, "observed": observed, "crossings": crossings(quantiles)} if return_parts else error


def pit_reference(pit, p=1, n_levels=100, form="grid"):
    if form == "sorted":
        return mean([abs(u - i / (len(pit) + 1)) ** p for i, u in enumerate(sorted(pit), 1)])
    levels = [(m + 0.5) / n_levels for m in range(n_levels)]
    return mean([abs(mean([float(u <= a) for u in pit]) - a) ** p for a in levels])


def sharp(inputs):
    """All of the distribution next to the target, below it."""
    changed = {name: inputs["target"] - 1e-3 for name in ("mean", "lower") if name in inputs}
    if "upper" in inputs:
        changed["upper"] = inputs["target"] + 1e-3
    if "std" in inputs:
        changed["std"] = torch.full_like(inputs["std"], 1e-3)
    for name in ("samples", "quantiles", "mean"):
        if name in inputs and inputs[name].dim() > 1:
            offsets = torch.linspace(-1e-3, 1e-3, inputs[name].shape[1], dtype=torch.float64)
            changed[name] = (inputs["target"].unsqueeze(1) + offsets).to(inputs[name].dtype)
    return {**inputs, **changed}


def far(inputs):
    names = ("mean", "samples", "quantiles", "lower", "upper")
    return {**inputs, **{name: inputs[name] + 50 for name in names if name in inputs}}


def uniform(inputs):
    n = len(inputs["pit"])
    return {"pit": (torch.arange(n, dtype=torch.float64) + 0.5) / n}


def nan(*shape):
    return torch.full(shape, math.nan)


ERRORS = (
    BadCall(ValueError, "target must be finite, got nan at index (0,)", inputs={"target": nan(4)}),
    BadCall(TypeError, "target must be a floating point tensor", inputs={"target": torch.ones(4, dtype=torch.int64)}),
    BadCall(ValueError, "target must have shape (N, ...)", inputs={"target": torch.tensor(1.0)}),
    BadCall(ValueError, "weight must have shape (4,) to match target", inputs={"weight": torch.ones(4, 1)}),
    BadCall(ValueError, "weight must be finite and >= 0, got -1.0", inputs={"weight": -torch.ones(4)}),
    BadCall(TypeError, "return_parts must be True or False, got 1", {"return_parts": 1}),
    BadCall(TypeError, "validate_args must be True or False, got None", {"validate_args": None}),
)
STDS = (
    BadCall(ValueError, "std must be > 0 and finite, got 0.0 at index (0,)", inputs={"std": torch.zeros(4)}),
    BadCall(ValueError, "std must be > 0 and finite, got -1.0 at index (0,)", inputs={"std": -torch.ones(4)}),
    BadCall(ValueError, "std must be > 0 and finite, got nan at index (0,)", inputs={"std": nan(4)}),
)
QUANTILES = (
    *ERRORS,
    BadCall(ValueError, "quantiles must be finite, got nan at index (0, 0)", inputs={"quantiles": nan(4, 5)}),
    BadCall(ValueError, "quantiles must have shape (N, 5, ...)", inputs={"quantiles": torch.ones(4, 3)}),
    BadCall(ValueError, "quantiles must have shape (4, K)", inputs={"quantiles": torch.ones(3, 5)}),
    BadCall(TypeError, "levels must be a list of numbers, got 0.5", {"levels": 0.5}),
    BadCall(TypeError, "levels must be a number, got '0.5'", {"levels": ["0.5"]}),
    BadCall(ValueError, "levels must hold one number at least, got []", {"levels": []}),
    BadCall(ValueError, "levels must be > 0 and < 1, got 1.0", {"levels": [0.5, 1.0]}),
    BadCall(ValueError, "levels must ascend, got [0.5, 0.5]", {"levels": [0.5, 0.5]}),
)
POWER = (
    BadCall(ValueError, "p must be >= 1, got 0", {"p": 0}),
    BadCall(ValueError, "p must be 1 or 2, got 3", {"p": 3}),
    BadCall(TypeError, "p must be an integer, got 1.5", {"p": 1.5}),
)

SPECS = (
    MetricSpec(
        cls=NormalCRPS,
        kind="normal",
        function=normal_crps,
        reference=normal_reference,
        configs=({}, {"return_parts": True}),
        golden=golden("CRPS.normal"),
        errors=(
            *ERRORS,
            *STDS,
            BadCall(ValueError, "mean must have shape (4,) to match target", inputs={"mean": torch.ones(4, 1)}),
        ),
        perfect=sharp,
        worst=far,
        bounds=(0.0, math.inf),
        seeds=("000.64",),
    ),
    MetricSpec(
        cls=MixtureCRPS,
        kind="mixture",
        function=mixture_crps,
        reference=mixture_reference,
        configs=({}, {"return_parts": True}),
        errors=(
            *ERRORS,
            BadCall(ValueError, "std must be > 0 and finite, got 0.0", inputs={"std": torch.zeros(4, 3)}),
            BadCall(ValueError, "sum to 1, got 3.0 at index (0,)", inputs={"probs": torch.ones(4, 3)}),
            BadCall(ValueError, "hold probabilities >= 0, got -", inputs={"probs": torch.tensor([[-1.0, 1, 1]] * 4)}),
            BadCall(ValueError, "probs must have shape (4, K)", inputs={"probs": torch.ones(4)}),
            BadCall(ValueError, "mean must have shape (4, 3) to match probs", inputs={"mean": torch.ones(4, 2)}),
        ),
        perfect=sharp,
        worst=far,
        bounds=(0.0, math.inf),
        seeds=("000.64",),
    ),
    MetricSpec(
        cls=EnsembleCRPS,
        kind="ensemble",
        function=ensemble_crps,
        reference=ensemble_reference,
        configs=({}, {"fair": True}, {"return_parts": True}, {"fair": True, "return_parts": True}),
        golden=golden("CRPS.ensemble"),
        errors=(
            *ERRORS,
            BadCall(TypeError, "fair must be True or False, got 1", {"fair": 1}),
            BadCall(ValueError, "two members at least for fair=True", {"fair": True}, {"samples": torch.ones(4, 1)}),
            BadCall(ValueError, "samples must have shape (4, K)", inputs={"samples": torch.ones(4, 0)}),
            BadCall(ValueError, "samples must be finite, got inf", inputs={"samples": torch.full((4, 2), math.inf)}),
        ),
        perfect=sharp,
        worst=far,
        seeds=("000.64", "001.23"),
    ),
    MetricSpec(
        cls=QuantileScore,
        kind="quantiles",
        function=quantile_score,
        reference=quantile_reference,
        configs=({"levels": LEVELS}, {"levels": [0.1, 0.2, 0.3, 0.4, 0.9], "return_parts": True}),
        golden=golden("PinballLoss"),
        errors=QUANTILES,
        perfect=sharp,
        worst=far,
        bounds=(0.0, math.inf),
        seeds=("000.64",),
    ),
    MetricSpec(
        cls=WeightedIntervalScore,
        kind="quantiles",
        function=weighted_interval_score,
        reference=wis_reference,
        configs=({"levels": LEVELS}, {"levels": [0.05, 0.2, 0.5, 0.8, 0.95], "return_parts": True}),
        errors=(
            *QUANTILES,
            BadCall(ValueError, "levels must hold 0.5 and, with each level, one minus it", {"levels": [0.1, 0.9]}),
            BadCall(ValueError, "levels must hold 0.5 and, with each level", {"levels": [0.1, 0.5, 0.8]}),
        ),
        perfect=sharp,
        worst=far,
        bounds=(0.0, math.inf),
        seeds=("000.64",),
    ),
    MetricSpec(
        cls=IntervalScore,
        kind="interval",
        function=interval_score,
        reference=interval_reference,
        configs=({}, {"alpha": 0.5}, {"return_parts": True}),
        golden=golden("IntervalScore"),
        errors=(
            *ERRORS,
            BadCall(ValueError, "alpha must be > 0 and < 1, got 0", {"alpha": 0}),
            BadCall(ValueError, "alpha must be > 0 and < 1, got 90", {"alpha": 90}),
            BadCall(ValueError, "lower must be finite, got nan", inputs={"lower": nan(4)}),
            BadCall(ValueError, "upper must be finite, got inf", inputs={"upper": torch.full((4,), math.inf)}),
        ),
        perfect=sharp,
        worst=far,
        bounds=(0.0, math.inf),
        seeds=("000.64",),
    ),
    MetricSpec(
        cls=QuantileCalibrationError,
        kind="quantiles",
        function=quantile_calibration_error,
        reference=quantile_error_reference,
        configs=({"levels": LEVELS}, {"levels": LEVELS, "p": 2}, {"levels": LEVELS, "return_parts": True}),
        golden=golden("PinballLoss"),
        errors=(*QUANTILES, *POWER),
        bounds=(0.0, 1.0),
        seeds=("000.64",),
    ),
    MetricSpec(
        cls=PITCalibrationError,
        kind="pit",
        function=pit_calibration_error,
        reference=pit_reference,
        configs=(
            {},
            {"p": 2, "n_levels": 10},
            {"form": "sorted"},
            {"form": "sorted", "p": 2},
        ),
        golden=golden("PITCalibrationError"),
        errors=(
            *POWER,
            BadCall(ValueError, "pit must be in [0, 1], got nan at index (0,)", inputs={"pit": nan(4)}),
            BadCall(ValueError, "pit must be in [0, 1], got 2.0", inputs={"pit": torch.full((4,), 2.0)}),
            BadCall(TypeError, "pit must be a floating point tensor", inputs={"pit": torch.ones(4).int()}),
            BadCall(ValueError, "pit must have shape (N, ...)", inputs={"pit": torch.tensor(0.5)}),
            BadCall(ValueError, "weight must have shape (4,) to match pit", inputs={"weight": torch.ones(4, 1)}),
            BadCall(ValueError, "weight must be finite and >= 0, got -1.0", inputs={"weight": -torch.ones(4)}),
            BadCall(ValueError, "form must be one of 'grid', 'sorted', got 'exact'", {"form": "exact"}),
            BadCall(ValueError, "n_levels must be >= 1, got 0", {"n_levels": 0}),
        ),
        perfect=uniform,
        worst=lambda inputs: {"pit": torch.zeros_like(inputs["pit"])},
        bounds=(0.0, 0.75),
        seeds=("000.64",),
    ),
)
