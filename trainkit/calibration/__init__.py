"""Calibration: how far predicted probabilities can be trusted.

The metrics are in ``trainkit.calibration.metrics``, what corrects predictions in ``trainkit.calibration.calibrators``.
"""

from trainkit.calibration.proximity import *
