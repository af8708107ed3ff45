"""Records of the metrics of selective prediction."""

import math

from tests.golden.bind import golden
from tests.specs.calibration_binned import certain, groups_of_scores, wrong
from tests.specs.calibration_metrics import ERRORS
from trainkit.calibration.metrics import (
    AUGRC,
    AURC,
    EAURC,
    SelectiveRisk,
    augrc,
    aurc,
    eaurc,
    selective_risk,
)
from trainkit.testing import BadCall, MetricSpec


def errors_in_order(logits, target, task="multiclass", ignore_index=-100):
    """Error of each prediction, the most confident first, with the mean of a tie in place of each of its errors.

    No target is ``ignore_index``.
    """
    (pairs,) = groups_of_scores(logits, target, task, None, "top_label")
    ordered = sorted((s for s, _ in pairs), reverse=True)
    tied = {s: [1 - a for own, a in pairs if own == s] for s in ordered}
    return [sum(tied[s]) / len(tied[s]) for s in ordered]


def risks(errors):
    return [sum(errors[:k]) / k for k in range(1, len(errors) + 1)]


def aurc_reference(logits, target, **options):
    found = risks(errors_in_order(logits, target, **options))
    return sum(found) / len(found)


def eaurc_reference(logits, target, **options):
    errors = errors_in_order(logits, target, **options)
    best = risks([0.0] * (len(errors) - round(sum(errors))) + [1.0] * round(sum(errors)))
    return max(0.0, aurc_reference(logits, target, **options) - sum(best) / len(best))


def augrc_reference(logits, target, **options):
    errors = errors_in_order(logits, target, **options)
    return sum(sum(errors[:k]) for k in range(1, len(errors) + 1)) / len(errors) ** 2


def risk_reference(logits, target, coverage, **options):
    errors = errors_in_order(logits, target, **options)
    return risks(errors)[math.ceil(round(coverage * len(errors), 9)) - 1]


CONFIGS = ({}, {"task": "binary"}, {"task": "multilabel"}, {"task": "multiclass"}, {"ignore_index": -1})
KINDS = {1: "binary", 2: "multilabel", 3: "dense", 4: "soft_classification"}
FLAG = BadCall(TypeError, "exact must be True or False, got 1", {"exact": 1})

SPECS = (
    MetricSpec(
        cls=AURC,
        function=aurc,
        reference=aurc_reference,
        configs=CONFIGS,
        kinds=KINDS,
        golden=golden("AURC"),
        errors=(*ERRORS, FLAG),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("AURC",),
    ),
    MetricSpec(
        cls=EAURC,
        function=eaurc,
        reference=eaurc_reference,
        configs=CONFIGS[:4],
        kinds={k: v for k, v in KINDS.items() if k < 4},
        errors=(*ERRORS, FLAG),
        perfect=certain,
        bounds=(0.0, 1.0),
        seeds=("AURC",),
    ),
    MetricSpec(
        cls=AUGRC,
        function=augrc,
        reference=augrc_reference,
        configs=CONFIGS,
        kinds=KINDS,
        golden=golden("AUGRC"),
        errors=(*ERRORS, FLAG),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("AURC",),
    ),
    MetricSpec(
        cls=SelectiveRisk,
        function=selective_risk,
        reference=risk_reference,
        configs=tuple({"coverage": c, **config} for c, config in zip((0.5, 0.8, 0.3, 1.0, 0.7), CONFIGS, strict=True)),
        kinds=KINDS,
        errors=(
            *ERRORS,
            FLAG,
            BadCall(ValueError, "coverage must be > 0 and <= 1, got 0", {"coverage": 0}),
            BadCall(ValueError, "coverage must be > 0 and <= 1, got 80", {"coverage": 80}),
            BadCall(TypeError, "coverage must be a number, got '80%'", {"coverage": "80%"}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("AURC",),
    ),
)
