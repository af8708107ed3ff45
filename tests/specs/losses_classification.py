"""Records of the classification losses and of their combination."""

import math

import torch

from tests.golden.bind import golden
from trainkit.losses import (
    CombinedLoss,
    DualFocalLoss,
    FocalLoss,
    Ramp,
    SigmoidFocalLoss,
    SmoothedCrossEntropyLoss,
    dual_focal_loss,
    focal_loss,
    sigmoid_focal_loss,
    smoothed_cross_entropy_loss,
)
from trainkit.testing import BadCall, Invariance, LossSpec


def log_softmax(row):
    top = max(row)
    total = top + math.log(sum(math.exp(z - top) for z in row))
    return [z - total for z in row]


def positions(logits, target):
    """Class logits and target of every position, dense inputs flattened."""
    for z, t in zip(logits, target, strict=True):
        if not isinstance(z[0], list):
            yield z, t
            continue
        height, width = len(z[0]), len(z[0][0])
        for i in range(height):
            for j in range(width):
                yield [plane[i][j] for plane in z], t[i][j]


def distribution(target, classes):
    return target if isinstance(target, list) else [float(k == target) for k in range(classes)]


def reduced(rows, weights, reduction):
    if reduction == "none":
        return rows
    return sum(rows) / (sum(weights) if reduction == "mean" else 1)


def reshaped(rows, target):
    """Rows in the nesting of an integer target."""
    if isinstance(target[0], list) and isinstance(target[0][0], list):
        return torch.tensor(rows, dtype=torch.float64).view(len(target), len(target[0]), len(target[0][0]))
    return rows


def focal_reference(logits, target, gamma=2.0, alpha=None, reduction="mean"):
    rows = []
    for z, t in positions(logits, target):
        log_p = log_softmax(z)
        factor = alpha or [1.0] * len(z)
        t = distribution(t, len(z))
        rows.append(sum(t[k] * factor[k] * (1 - math.exp(log_p[k])) ** gamma * -log_p[k] for k in range(len(z))))
    value = reduced(rows, [1.0] * len(rows), reduction)
    return reshaped(value, target) if reduction == "none" else value


def dual_focal_reference(logits, target, gamma=5.0, alpha=None, reduction="mean"):
    rows = []
    for z, y in positions(logits, target):
        log_p = log_softmax(z)
        runner_up = max((math.exp(log_p[k]) for k in range(len(z)) if z[k] < z[y]), default=0.0)
        factor = alpha[y] if alpha else 1.0
        rows.append(factor * (1 - math.exp(log_p[y]) + runner_up) ** gamma * -log_p[y])
    value = reduced(rows, [1.0] * len(rows), reduction)
    return reshaped(value, target) if reduction == "none" else value


def smoothed_reference(
    logits,
    target,
    label_smoothing=0.1,
    smoothing_mode="inclusive",
    class_weight=None,
    weight_smoothing=False,
    reduction="mean",
):
    rows, weights = [], []
    for z, t in positions(logits, target):
        classes = len(z)
        log_p = log_softmax(z)
        factor = class_weight or [1.0] * classes
        t = distribution(t, classes)
        own = sum(t[k] * factor[k] for k in range(classes))
        if smoothing_mode == "inclusive":
            on, off = 1 - label_smoothing + label_smoothing / classes, label_smoothing / classes
        else:
            on, off = 1 - label_smoothing, label_smoothing / (classes - 1)
        # Linear in t: one term for each class that the target may be.
        row = 0.0
        for y in range(classes):
            for k in range(classes):
                weight = factor[k] if weight_smoothing else factor[y]
                row += t[y] * weight * (on if k == y else off) * -log_p[k]
        rows.append(row)
        weights.append(own)
    value = reduced(rows, weights, reduction)
    return reshaped(value, target) if reduction == "none" else value


def flat(values):
    return [x for v in values for x in flat(v)] if isinstance(values, list) else [values]


def sigmoid_reference(logits, target, gamma=2.0, alpha=0.25, pos_weight=None, normalizer=None, reduction="mean"):
    z, t = flat(logits), flat(target)
    classes = len(logits[0]) if logits and isinstance(logits[0], list) else 1
    rows = []
    for i, (x, y) in enumerate(zip(z, t, strict=True)):
        p = 1 / (1 + math.exp(-x))
        factor = pos_weight or 1.0
        factor = factor[i % classes] if isinstance(factor, list) else factor
        entropy = -factor * y * math.log(p) - (1 - y) * math.log(1 - p)
        balance = 1.0 if alpha is None else alpha * y + (1 - alpha) * (1 - y)
        rows.append(balance * (1 - (p * y + (1 - p) * (1 - y))) ** gamma * entropy)
    if reduction == "none":
        return torch.tensor(rows, dtype=torch.float64).view(torch.tensor(logits).shape)
    if reduction == "sum":
        return sum(rows)
    divisor = {None: len(rows), "num_positive": max(sum(t), 1)}.get(normalizer, normalizer)
    return sum(rows) / divisor


def combined_reference(logits, target, parts):
    total = 0.0
    for weight, loss in parts:
        factor = weight.start if isinstance(weight, Ramp) else weight
        if isinstance(loss, FocalLoss):
            total += factor * focal_reference(logits, target, loss.gamma)
        else:
            total += factor * smoothed_reference(logits, target, loss.label_smoothing)
    return total


SHIFT = Invariance("adding 3 to all logits", lambda x: {**x, "logits": x["logits"] + 3})
ALPHA = [0.5, 1.0, 1.5, 0.75, 1.0]
BAD_TARGET = torch.tensor([0, 1, 7, 0])

SPECS = (
    LossSpec(
        cls=FocalLoss,
        function=focal_loss,
        configs=(
            {},
            {"gamma": 0.5, "alpha": ALPHA},
            {"gamma": 3.0, "reduction": "sum"},
            {"gamma": 0.0, "reduction": "none"},
        ),
        kinds={1: "soft_classification", 2: "dense"},
        golden=golden("FocalLoss softmax"),
        reference=focal_reference,
        invariances=(SHIFT,),
        errors=(
            BadCall(ValueError, "gamma must be >= 0, got -1.0", {"gamma": -1.0}),
            BadCall(TypeError, "gamma must be a number, got 'two'", {"gamma": "two"}),
            BadCall(ValueError, "alpha must have 5 entries, one for each class, got 2", {"alpha": [0.5, 0.5]}),
            BadCall(ValueError, "alpha must be >= 0 and <= 1, got 1.5", {"alpha": 1.5}),
            BadCall(ValueError, "reduction must be one of 'mean', 'sum', 'none', got 'avg'", {"reduction": "avg"}),
            BadCall(TypeError, "sync must be True or False, got 1", {"sync": 1}),
            BadCall(
                ValueError, "target must be in [0, 5) or equal ignore_index=-100, got 7", inputs={"target": BAD_TARGET}
            ),
            BadCall(ValueError, "target must have shape (4,)", inputs={"target": torch.zeros(4, 1, dtype=torch.int64)}),
            BadCall(
                TypeError,
                "logits must be a floating point tensor",
                inputs={"logits": torch.zeros(4, 5, dtype=torch.int64)},
            ),
            BadCall(
                ValueError,
                "weight must be finite and >= 0, got -1.0 at index (1,)",
                inputs={"weight": torch.tensor([1.0, -1, 1, 1])},
            ),
            BadCall(TypeError, "mask must be a boolean tensor", inputs={"mask": torch.ones(4)}),
            BadCall(ValueError, "sum to 1, got 2.5", inputs={"target": torch.full((4, 5), 0.5)}),
        ),
        seeds=("focal",),
    ),
    LossSpec(
        cls=DualFocalLoss,
        function=dual_focal_loss,
        configs=(
            {},
            {"gamma": 0.5, "alpha": ALPHA},
            {"gamma": 2.0, "reduction": "sum"},
            {"gamma": 0.0, "reduction": "none"},
        ),
        kinds={1: "dense", 3: "dense"},
        golden=golden("DualFocalLoss"),
        reference=dual_focal_reference,
        invariances=(SHIFT,),
        errors=(
            BadCall(ValueError, "gamma must be >= 0, got -1.0", {"gamma": -1.0}),
            BadCall(ValueError, "alpha must have 5 entries, one for each class, got 2", {"alpha": [0.5, 0.5]}),
            BadCall(TypeError, "target must hold class indices, got", inputs={"target": torch.full((4, 5), 0.2)}),
            BadCall(ValueError, "target must be in [0, 5)", inputs={"target": BAD_TARGET}),
        ),
        seeds=("003.29",),
    ),
    LossSpec(
        cls=SigmoidFocalLoss,
        function=sigmoid_focal_loss,
        kind="binary",
        configs=(
            {},
            {"gamma": 0.5, "alpha": None, "pos_weight": [0.5, 1.0, 2.0, 3.0, 1.0]},
            {"gamma": 0.0, "alpha": 0.75, "reduction": "sum", "pos_weight": 2.0},
            {"gamma": 1.0, "reduction": "none"},
        ),
        kinds={1: "multilabel", 3: "multilabel"},
        golden=golden("SigmoidFocalLoss", "SigmoidFocalLoss extreme logits, gamma 0.5"),
        reference=sigmoid_reference,
        errors=(
            BadCall(ValueError, "gamma must be >= 0, got -0.5", {"gamma": -0.5}),
            BadCall(ValueError, "alpha must be >= 0 and <= 1, got 2.0", {"alpha": 2.0}),
            BadCall(
                ValueError, "normalizer must be None, 'num_positive' or a number > 0, got 'all'", {"normalizer": "all"}
            ),
            BadCall(ValueError, "normalizer must be > 0, got 0", {"normalizer": 0}),
            BadCall(ValueError, "pos_weight must be finite and >= 0, got -1.0", {"pos_weight": [-1.0]}),
            BadCall(ValueError, "pos_weight must be one number", {"pos_weight": [1.0, 2.0]}),
            BadCall(ValueError, "target must be in [0, 1]", inputs={"target": torch.tensor([0.0, 1.0, 2.0, 0.0])}),
            BadCall(ValueError, "target must have shape (4,)", inputs={"target": torch.zeros(4, 1)}),
        ),
        seeds=("focal",),
    ),
    LossSpec(
        cls=SmoothedCrossEntropyLoss,
        function=smoothed_cross_entropy_loss,
        configs=(
            {},
            {"smoothing_mode": "exclusive", "label_smoothing": 0.3, "class_weight": ALPHA},
            {"class_weight": ALPHA, "weight_smoothing": True, "reduction": "sum"},
            {"label_smoothing": 0.0, "class_weight": ALPHA},
            {"reduction": "none"},
        ),
        kinds={1: "dense", 2: "soft_classification", 3: "soft_classification"},
        golden=golden(
            "LabelSmoothingCrossEntropy(q=(1-e)onehot+e/K)",
            "LabelSmoothing, Mueller/official-MDCA variant q=e/(K-1) off-target",
            "weighted CE, weighted mean divides by sum of weights",
        ),
        reference=smoothed_reference,
        invariances=(SHIFT,),
        errors=(
            BadCall(ValueError, "label_smoothing must be >= 0 and <= 1, got 1.5", {"label_smoothing": 1.5}),
            BadCall(ValueError, "smoothing_mode must be one of 'inclusive', 'exclusive'", {"smoothing_mode": "other"}),
            BadCall(
                ValueError,
                "class_weight must be finite and >= 0, got -1.0 at index (0,)",
                {"class_weight": [-1.0, 1.0]},
            ),
            BadCall(
                ValueError, "class_weight must have 5 entries, one for each class, got 2", {"class_weight": [1.0, 1.0]}
            ),
            BadCall(ValueError, "target must be in [0, 5)", inputs={"target": BAD_TARGET}),
        ),
        seeds=("003.100",),
    ),
    LossSpec(
        cls=CombinedLoss,
        configs=(
            {"parts": [(1.0, SmoothedCrossEntropyLoss()), (0.5, FocalLoss())]},
            {"parts": [(Ramp(0.5, 1.0), FocalLoss(gamma=1.0)), (2, SmoothedCrossEntropyLoss(label_smoothing=0.0))]},
        ),
        reference=combined_reference,
        invariances=(SHIFT,),
        errors=(
            BadCall(ValueError, "parts must hold at least one pair of weight and loss, got []", {"parts": []}),
            BadCall(TypeError, "parts must hold pairs of weight and loss", {"parts": [FocalLoss()]}),
            BadCall(TypeError, "weight must be a number, got 'a'", {"parts": [("a", FocalLoss())]}),
            BadCall(
                ValueError,
                "parts must share one reduction, got ['mean', 'sum']",
                {"parts": [(1.0, FocalLoss()), (1.0, FocalLoss(reduction="sum"))]},
            ),
        ),
    ),
)
