"""Calibration of stored predictions before and after one temperature."""

import numpy as np
import torch
from trainkit.recipes.data.sets import locate

from trainkit.calibration.calibrators import TemperatureScaling
from trainkit.calibration.metrics import ECE, BrierScore, NegativeLogLikelihood

__all__ = ["score"]


def score(seed: int, calibrate: bool, logits: str = "resnet20_logits", n_bins: int = 15) -> dict[str, float]:
    """Scores on one half of the rows; the temperature is fitted on the other half, and the seed draws the halves."""
    with np.load(locate(logits), allow_pickle=False) as stored:
        x, y = torch.from_numpy(stored["logits"]).double(), torch.from_numpy(stored["y"]).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    fitted, scored = order[: len(x) // 2], order[len(x) // 2 :]
    shown = x[scored]
    if calibrate:
        shown = TemperatureScaling().fit(x[fitted], y[fitted])(shown)
    values = {}
    for name, metric in (("ece", ECE(n_bins=n_bins)), ("nll", NegativeLogLikelihood()), ("brier", BrierScore())):
        metric.update(shown, y[scored])
        values[f"test/{name}"] = float(metric.compute())
    return {**values, "test/accuracy": float((shown.argmax(1) == y[scored]).double().mean())}
