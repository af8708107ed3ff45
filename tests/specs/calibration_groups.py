"""Records of the metrics that look at groups, at neighbours, at changes and at bins one by one."""

import math

import torch

from tests.golden.bind import golden
from tests.specs.calibration_binned import certain, equal_width, error_of_bins, wrong
from tests.specs.calibration_metrics import ERRORS, distributions, flat
from trainkit.calibration.metrics import PartitionedCalibrationError, partitioned_calibration_error
from trainkit.testing import BadCall, MetricSpec

NAN = math.nan


def scores_beside(logits, target, task, reduce, beside):
    """Triples of score, hit and what stands beside the target."""
    reduce = reduce or ("top_label" if task == "multiclass" else "all")
    triples = []
    for (p, t), own in zip(distributions(logits, target, task), flat(beside), strict=True):
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
)
