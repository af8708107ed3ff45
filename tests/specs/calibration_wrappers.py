"""Records of the metrics that go around another."""

import math

import numpy as np
import torch

from tests.specs.calibration_binned import error_reference
from tests.specs.calibration_metrics import brier_reference
from trainkit.calibration.metrics import ECE, BootstrapInterval, BrierScore, GroupedMetric
from trainkit.testing import BadCall, MetricSpec


def grouped_reference(logits, target, groups, metric, num_groups):
    own = {BrierScore: brier_reference, ECE: error_reference}[type(metric)]
    values = []
    for group in range(num_groups):
        rows = [i for i, g in enumerate(groups) if g == group]
        values.append(own([logits[i] for i in rows], [target[i] for i in rows]) if rows else math.nan)
    return values


def interval_reference(
    logits, target, index, metric, n_resamples, n_blocks=100, confidence=0.95, method="basic", seed=0
):
    """Rows drawn again and again, and the metric of each draw on its own; every index is below ``n_blocks``."""
    words = [int.from_bytes(b"bootstrap", "little"), seed, 0]
    start = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) % 2**63
    blocks = sorted(set(index))
    shape = (n_resamples, len(blocks))
    drawn = torch.randint(len(blocks), shape, generator=torch.Generator().manual_seed(start)).tolist()
    own = {BrierScore: brier_reference, ECE: error_reference}[type(metric)]

    def value(chosen):
        rows = [i for block in chosen for i, number in enumerate(index) if number == block]
        return own([logits[i] for i in rows], [target[i] for i in rows])

    whole = value(blocks)
    resampled = [value([blocks[k] for k in draw]) for draw in drawn]
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    ends = (low, high) if method == "percentile" else (2 * whole - high, 2 * whole - low)
    return {"value": whole, "low": ends[0], "high": ends[1]}


SPECS = (
    MetricSpec(
        cls=BootstrapInterval,
        reference=interval_reference,
        kind="indexed_classification",
        configs=(
            {"metric": BrierScore(), "n_resamples": 12},
            {"metric": ECE(), "n_resamples": 10, "confidence": 0.8, "method": "percentile"},
            {"metric": BrierScore(), "n_resamples": 8, "n_blocks": 40, "seed": 3},
        ),
        errors=(
            BadCall(TypeError, "metric must be a metric, got 'ece'", {"metric": "ece"}),
            BadCall(TypeError, "metric must have no interval yet", {"metric": BootstrapInterval(BrierScore())}),
            BadCall(ValueError, "n_blocks must be >= 2, got 1", {"n_blocks": 1}),
            BadCall(ValueError, "n_resamples must be >= 2, got 1", {"n_resamples": 1}),
            BadCall(ValueError, "confidence must be > 0 and < 1, got 95", {"confidence": 95}),
            BadCall(ValueError, "method must be one of 'basic', 'percentile', got 'bca'", {"method": "bca"}),
            BadCall(ValueError, "seed must be >= 0, got -1", {"seed": -1}),
            BadCall(ValueError, "index must hold 4 integers", {}, {"index": torch.zeros(4)}),
            BadCall(
                ValueError,
                "index must hold 4 integers, one for each row, got [0",
                {},
                {"index": [0, 1, 2, 3]},
            ),
        ),
        seeds=("BootstrapInterval",),
    ),
    MetricSpec(
        cls=GroupedMetric,
        reference=grouped_reference,
        kind="classification_beside",
        configs=(
            {"metric": BrierScore(), "num_groups": 3},
            {"metric": ECE(), "num_groups": 4},
        ),
        errors=(
            BadCall(TypeError, "metric must be a metric, got 'ece'", {"metric": "ece"}),
            BadCall(TypeError, "metric must be inside of this", {"metric": BootstrapInterval(BrierScore())}),
            BadCall(ValueError, "num_groups must be >= 1, got 0", {"num_groups": 0}),
            BadCall(ValueError, "groups must be in [0, 1), or -1 for what is left out, got ", {"num_groups": 1}),
        ),
        seeds=("GroupedMetric",),
    ),
)
