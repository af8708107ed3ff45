"""Calls for the golden records of calibration."""

from collections.abc import Mapping
from typing import Any

import torch

from trainkit.calibration.metrics import BrierScore, NegativeLogLikelihood


def value(metric, record: Mapping[str, Any]):
    logits = torch.tensor(record["inputs"]["logits"], dtype=torch.float64)
    metric.update(logits, torch.tensor(record["inputs"]["labels"]))
    return metric.compute()


def brier(record):
    forms = {"value": "full", "top_label": "top_label", "halved": "half"}
    return {name: value(BrierScore(form=form), record) for name, form in forms.items()}


def negative_log_likelihood(record):
    return {"value": value(NegativeLogLikelihood(), record)}


NAMES = {"BrierScore": brier, "NegativeLogLikelihood": negative_log_likelihood}
