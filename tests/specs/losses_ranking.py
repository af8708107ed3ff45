"""Records of the ranking losses."""

import math

import torch

from tests.golden.bind import golden
from trainkit.losses import BPRLoss, PairwiseAUCLoss, bpr_loss, pairwise_auc_loss
from trainkit.testing import BadCall, Invariance, LossSpec


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def auc_reference(scores, target, surrogate="logistic", margin=1.0, temperature=1.0):
    total, pairs = 0.0, 0
    for s, t in zip(scores, target, strict=True):
        for other, u in zip(scores, target, strict=True):
            if t != 1 or u != 0:
                continue
            x = (other - s) / temperature
            late = max(0.0, margin + x)
            total += {
                "logistic": softplus(x),
                "hinge": late,
                "squared_hinge": late * late,
                "square": (margin + x) ** 2,
            }[surrogate]
            pairs += 1
    return total / pairs if pairs else 0.0


def bpr_reference(scores, negatives, reduction="mean"):
    rows = [sum(softplus(x - s) for x in own) / len(own) for s, own in zip(scores, negatives, strict=True)]
    if reduction == "none":
        return rows
    return sum(rows) / (len(rows) if reduction == "mean" else 1)


def shifted(*names):
    return lambda x: {**x, **{name: x[name] + 3 for name in names}}


def flipped(x):
    """Reversing the order and the classes asks the same of every pair."""
    return {**x, "scores": -x["scores"], "target": 1 - x["target"]}


SPECS = (
    LossSpec(
        cls=PairwiseAUCLoss,
        function=pairwise_auc_loss,
        kind="scores",
        configs=(
            {},
            {"surrogate": "squared_hinge", "margin": 0.5, "temperature": 0.3},
            {"surrogate": "hinge"},
            {"surrogate": "square", "margin": 2.0},
        ),
        golden=golden("MannWhitneyLoss.scores"),
        reference=auc_reference,
        invariances=(
            Invariance("adding 3 to all scores", shifted("scores")),
            Invariance("reversing scores and classes", flipped),
        ),
        errors=(
            BadCall(ValueError, "surrogate must be one of 'logistic', 'hinge'", {"surrogate": "cubic"}),
            BadCall(ValueError, "margin must be >= 0, got -1.0", {"margin": -1.0}),
            BadCall(ValueError, "temperature must be > 0, got 0.0", {"temperature": 0.0}),
            BadCall(
                ValueError,
                "target must be 0, 1 or equal ignore_index=-100, got 2 at index (1,)",
                inputs={"target": torch.tensor([0, 2, 1, 0])},
            ),
            BadCall(ValueError, "scores must have shape (N,)", inputs={"scores": torch.zeros(4, 1)}),
            BadCall(
                TypeError,
                "scores must be a floating point tensor",
                inputs={"scores": torch.zeros(4, dtype=torch.int64)},
            ),
            BadCall(
                ValueError,
                "weight must be finite and >= 0, got -1.0 at index (1,)",
                inputs={"weight": torch.tensor([1.0, -1, 1, 1])},
            ),
            BadCall(TypeError, "mask must be a boolean tensor", inputs={"mask": torch.ones(4)}),
        ),
        seeds=("000.15",),
    ),
    LossSpec(
        cls=BPRLoss,
        function=bpr_loss,
        kind="ranking",
        configs=({}, {"reduction": "sum"}, {"reduction": "none"}),
        golden=golden("BPRLoss"),
        reference=bpr_reference,
        invariances=(Invariance("adding 3 to all scores", shifted("scores", "negatives")),),
        errors=(
            BadCall(ValueError, "reduction must be one of 'mean', 'sum', 'none', got 'avg'", {"reduction": "avg"}),
            BadCall(ValueError, "scores must have shape (N,)", inputs={"scores": torch.zeros(4, 1)}),
            BadCall(
                ValueError,
                "negatives must have shape (4,) or (4, K) to match scores",
                inputs={"negatives": torch.zeros(3, 2)},
            ),
            BadCall(ValueError, "negatives must have shape (4,) or (4, K)", inputs={"negatives": torch.zeros(4, 0)}),
            BadCall(ValueError, "weight must be finite and >= 0", inputs={"weight": torch.full((4,), math.inf)}),
        ),
    ),
)
