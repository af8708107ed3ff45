"""Records of the calibrators."""

import math

import torch

from tests.golden.bind import golden
from trainkit.calibration.calibrators import TemperatureScaling, temperature_scaling
from trainkit.testing import BadCall, CalibratorSpec

FLOOR = 1e-12


def flat(values):
    return [v for value in values for v in flat(value)] if isinstance(values, list) else [values]


def softmax(row):
    exps = [math.exp(z - max(row)) for z in row]
    return [e / sum(exps) for e in exps]


def as_logit(value, input_kind):
    """A prediction of class 1 alone as its log-odds."""
    if input_kind == "logits":
        return value
    p = value if input_kind == "probs" else math.exp(value)
    return math.log(max(p, FLOOR)) - math.log(max(1 - p, FLOOR))


def as_logits(row, input_kind):
    return [math.log(max(p, FLOOR)) for p in row] if input_kind == "probs" else row


def rows_of(logits, target, task, input_kind):
    """Logits and target distribution of every target."""
    if task != "multiclass":
        for z, t in zip(flat(logits), flat(target), strict=True):
            yield [0.0, as_logit(z, input_kind)], [1 - t, t]
        return
    for z, t in zip(logits, target, strict=True):
        planes = [flat(plane) for plane in z]
        soft = isinstance(t, list) and len(flat(t)) == len(z)
        for position, own in enumerate([t] if soft else flat(t)):
            row = as_logits([plane[position] for plane in planes], input_kind)
            yield row, own if soft else [float(k == own) for k in range(len(row))]


def slope(rows, u):
    """Derivative of the negative log-likelihood in u = 1/T."""
    total = 0.0
    for z, t in rows:
        p = softmax([u * value for value in z])
        total += sum((a - b) * value for a, b, value in zip(p, t, z, strict=True))
    return total


def temperature_reference(logits, target, task="multiclass", input_kind="logits", t_min=None, t_max=None):
    """Bisection on the slope, which grows with u."""
    rows = list(rows_of(logits, target, task, input_kind))
    centred = [value - sum(z) / len(z) for z, _ in rows for value in z]
    spread = math.sqrt(sum(value**2 for value in centred) / len(centred))
    low, high = 1 / (t_max or 1e3 * spread), 1 / (t_min or spread / 1e3)
    if slope(rows, low) >= 0:
        high = low
    elif slope(rows, high) <= 0:
        low = high
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if slope(rows, middle) > 0 else (middle, high)
    u = math.sqrt(low * high)
    nll = [
        -sum(chance * math.log(p) for chance, p in zip(t, softmax([u * v for v in z]), strict=True)) for z, t in rows
    ]
    return {"temperature": 1 / u, "nll": sum(nll) / len(nll), "n_fit": len(rows), "fitted": True}


SPECS = (
    CalibratorSpec(
        cls=TemperatureScaling,
        function=temperature_scaling,
        fitted="temperature",
        reference=temperature_reference,
        configs=(
            {},
            {"t_min": 0.05, "t_max": 20.0},
            {"input_kind": "probs"},
            {"task": "binary"},
            {"task": "multilabel", "input_kind": "log_probs"},
            {"t_min": 1.0},
        ),
        kinds={1: "soft_classification", 3: "binary", 4: "multilabel", 5: "dense"},
        golden=golden("TemperatureScaling", "TemperatureScaling.antisignal"),
        errors=(
            BadCall(ValueError, "t_min must be > 0, got 0", {"t_min": 0.0}),
            BadCall(ValueError, "t_max must be > t_min=2.0, got 2.0", {"t_min": 2.0, "t_max": 2.0}),
            BadCall(TypeError, "t_max must be a number, got '9'", {"t_max": "9"}),
            BadCall(ValueError, "task must be one of", {"task": "regression"}),
            BadCall(TypeError, "sync must be True or False, got 1", {"sync": 1}),
            BadCall(ValueError, "logits must be finite, got nan", inputs={"logits": torch.full((4, 5), math.nan)}),
            BadCall(ValueError, "got 7 at index (1,)", inputs={"target": torch.tensor([0, 7, 1, 1])}),
            BadCall(ValueError, "logits must have shape (N, C, ...)", inputs={"logits": torch.ones(4)}),
            BadCall(TypeError, "logits must be a floating point tensor", inputs={"logits": torch.ones(4, 5).long()}),
            BadCall(ValueError, "weight must be finite and >= 0, got -1.0", inputs={"weight": -torch.ones(4)}),
            BadCall(ValueError, "target must hold an entry that counts", inputs={"target": torch.full((4,), -100)}),
            BadCall(
                ValueError,
                "logits must hold one number for each target of task='binary'",
                {"task": "binary"},
                {"logits": torch.ones(4, 2), "target": torch.ones(4)},
            ),
        ),
        seeds=("TS",),
    ),
)
