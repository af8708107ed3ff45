"""Pictures of the README, one of each kind, drawn from generated data: ``python -m tests.pictures`` writes them."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from trainkit.calibration.metrics import (
    AURC,
    ECE,
    BootstrapInterval,
    BrierDecomposition,
    CertifiedBinCalibration,
    GroupedMetric,
    KSCalibrationError,
    MaNo,
    PITCalibrationError,
    QuantileCalibrationError,
    ReliabilityDiagram,
    RewardModelCalibrationError,
    SmoothCalibrationError,
    StratumCoverage,
    TestBasedCalibrationError,
    entropy_strata,
    fit_linear,
    normal_pit,
)
from trainkit.figures import Figure, to_svg

__all__ = ["FOLDER", "PICTURES", "picture"]

FOLDER = Path(__file__).parent


def _overconfident(rows: int = 4000) -> tuple[Tensor, Tensor, Tensor]:
    """Logits that are 1.8 times too large, their targets, and three groups of which the last is the worst."""
    g = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(rows, 4, generator=g, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)
    groups = torch.arange(rows) % 3
    return logits * (1 + 0.8 * groups / 2).unsqueeze(1), target, groups


def _fed(metric):
    logits, target, _ = _overconfident()
    metric.update(logits, target)
    return metric


def _reward_model() -> Figure:
    g = torch.Generator().manual_seed(1)
    gap = torch.randn(2000, generator=g, dtype=torch.float64)
    chosen = torch.where(torch.rand(2000, generator=g, dtype=torch.float64) < gap.sigmoid(), gap, -gap)
    metric = RewardModelCalibrationError(n_bins=10)
    metric.update(2 * chosen, torch.zeros(2000, dtype=torch.float64))
    return metric.figure()


def _forecast() -> tuple[Tensor, Tensor, Tensor]:
    """Means, standard deviations that are 1.6 times too small, and targets."""
    g = torch.Generator().manual_seed(2)
    mean, noise = torch.randn(2, 2000, generator=g, dtype=torch.float64)
    return mean, torch.full_like(mean, 1 / 1.6), mean + noise


def _pit() -> Figure:
    metric = PITCalibrationError()
    metric.update(normal_pit(*_forecast()))
    return metric.figure()


def _quantiles() -> Figure:
    mean, std, target = _forecast()
    levels = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]
    metric = QuantileCalibrationError(levels)
    metric.update(mean.unsqueeze(1) + std.unsqueeze(1) * torch.special.ndtri(torch.tensor(levels).double()), target)
    return metric.figure()


def _groups() -> Figure:
    logits, target, groups = _overconfident()
    metric = GroupedMetric(ECE(), num_groups=3)
    metric.update(logits, target, groups=groups)
    return metric.figure()


def _strata() -> Figure:
    """Sets of the probable classes that hold 0.9 of the probability, by the entropy of an overconfident model."""
    logits, target, _ = _overconfident()
    probs = logits.softmax(1)
    ordered, order = probs.sort(1, descending=True)
    kept = ordered.cumsum(1) - ordered < 0.9
    covered = ((order == target.unsqueeze(1)) & kept).any(1)
    metric = StratumCoverage(num_groups=4)
    groups, _ = entropy_strata(logits, num_groups=4)
    metric.update(covered, groups=groups, size=kept.sum(1).double())
    return metric.figure()


def _certified() -> Figure:
    """Slopes as of a smooth model, at its own predictions."""
    logits, target, _ = _overconfident()
    confidence = logits.softmax(1).amax(1)
    metric = CertifiedBinCalibration(radius=0.1, n_bins=10)
    metric.update(logits, target, lipschitz=2 * confidence * (1 - confidence))
    return metric.figure()


def _accuracy_line() -> Figure:
    """Score and accuracy of one model on six sets with more and more noise."""
    g = torch.Generator().manual_seed(3)
    scores, accuracies = [], []
    for noise in (1.2, 1.6, 2.0, 2.5, 3.2, 4.5):
        target = torch.arange(1500) % 5
        logits = 4 * torch.eye(5, dtype=torch.float64)[target]
        logits = logits / noise + torch.randn(1500, 5, generator=g, dtype=torch.float64)
        metric = MaNo()
        metric.update(logits)
        scores.append(metric.compute().item())
        accuracies.append((logits.argmax(1) == target).double().mean().item())
    return fit_linear(scores, accuracies).figure()


PICTURES: dict[str, Callable[[], Figure]] = {
    "reliability": lambda: _fed(ReliabilityDiagram(n_bins=10)).figure(),
    "smooth_reliability": lambda: _fed(SmoothCalibrationError()).figure(),
    "ks": lambda: _fed(KSCalibrationError()).figure(),
    "test_based": lambda: _fed(TestBasedCalibrationError()).figure(),
    "risk_coverage": lambda: _fed(AURC()).figure(),
    "bootstrap": lambda: _fed(BootstrapInterval(ECE())).figure(),
    "groups": _groups,
    "brier": lambda: _fed(BrierDecomposition(n_bins=10)).figure(),
    "strata": _strata,
    "certified": _certified,
    "accuracy_line": _accuracy_line,
    "reward_model": _reward_model,
    "pit": _pit,
    "quantiles": _quantiles,
}


def picture(name: str) -> str:
    """One picture as SVG."""
    return to_svg(PICTURES[name]())
