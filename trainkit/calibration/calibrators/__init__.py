"""Calibrators: modules that are fitted to held-out predictions and then correct the predictions of a model."""

from trainkit.calibration.calibrators._base import *
from trainkit.calibration.calibrators.temperature_scaling import *
