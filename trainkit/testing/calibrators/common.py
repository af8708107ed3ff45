"""What the properties of calibrators share: over-confident predictions with their targets, and fits to them."""

import warnings
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainkit.testing.case import Case
from trainkit.testing.spec import CalibratorSpec

__all__ = [
    "CalibratorCase",
    "Data",
    "data_for",
    "doubtful_fit",
    "fit",
    "is_single",
    "is_soft",
    "logits_for",
    "offered",
    "rows_of",
]

CalibratorCase: TypeAlias = Case[CalibratorSpec]
Data: TypeAlias = dict[str, Tensor]

TRUE_TEMPERATURE = 2.5
"""What the drawn logits would have to be divided by, to be calibrated."""


def is_single(case: CalibratorCase) -> bool:
    """Whether a prediction is that of class 1, and no distribution over dimension 1."""
    return _kind_name(case) in ("binary", "multilabel")


def is_soft(case: CalibratorCase) -> bool:
    """Whether targets are distributions."""
    return _kind_name(case) == "soft_classification"


def _kind_name(case: CalibratorCase) -> str:
    return case.spec.kinds.get(case.index, case.spec.kind)


def _happened(case: CalibratorCase, logits: Tensor, g: torch.Generator) -> Tensor:
    """Targets that follow the calibrated probabilities; soft ones lie around them."""
    z = logits / TRUE_TEMPERATURE
    if is_single(case):
        return (torch.rand(z.shape, generator=g, dtype=torch.float64) < z.sigmoid()).to(z.dtype)
    if is_soft(case):
        return (z + 0.5 * torch.randn(z.shape, generator=g, dtype=torch.float64)).softmax(1)
    gumbel = -torch.rand(z.shape, generator=g, dtype=torch.float64).clamp_min(1e-12).log()
    return (z - gumbel.log()).argmax(1)


def offered(case: CalibratorCase, logits: Tensor) -> Tensor:
    """Logits as predictions of the kind that the configuration takes."""
    kind = case.setting("input_kind") if case.has("input_kind") else "logits"
    if kind == "logits":
        return logits
    log_p = torch.nn.functional.logsigmoid(logits) if is_single(case) else logits.log_softmax(1)
    return log_p.exp() if kind == "probs" else log_p


def logits_for(case: CalibratorCase, n: int, seed: int = 0) -> Tensor:
    """Logits of an over-confident model, whatever the configuration takes, in float64."""
    g = torch.Generator().manual_seed(1000 * seed + n)
    return 1.5 * case.kind.draw(g, n, torch.float64)["logits"]


def data_for(case: CalibratorCase, n: int, seed: int = 0) -> Data:
    """``logits`` and ``target`` of an over-confident model, in float64."""
    logits = logits_for(case, n, seed)
    target = _happened(case, logits, torch.Generator().manual_seed(1000 * seed + n + 1))
    return case.seen({"logits": offered(case, logits), "target": target}, torch.float64)


def rows_of(data: Data, rows: Any) -> Data:
    """Some rows of every tensor."""
    return {k: v[rows] for k, v in data.items()}


def fit(case: CalibratorCase, data: Data) -> Any:
    """A new calibrator, fitted."""
    return case.make().fit(**data)


def doubtful_fit(case: CalibratorCase, data: Data) -> Any:
    """A new calibrator, fitted to data that it may warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fit(case, data)
