"""Calibration metrics: ``torchmetrics.Metric`` classes with functional forms, exact over batches and ranks."""

from trainkit.calibration.metrics.adaptive_calibration_error import *
from trainkit.calibration.metrics.aurc import *
from trainkit.calibration.metrics.binned_calibration_error import *
from trainkit.calibration.metrics.brier_decomposition import *
from trainkit.calibration.metrics.brier_score import *
from trainkit.calibration.metrics.certified_bin_calibration import *
from trainkit.calibration.metrics.confidence_lipschitz import *
from trainkit.calibration.metrics.expected_calibration_error import *
from trainkit.calibration.metrics.ks_calibration_error import *
from trainkit.calibration.metrics.negative_log_likelihood import *
from trainkit.calibration.metrics.partitioned_calibration_error import *
from trainkit.calibration.metrics.post_hoc_improvement import *
from trainkit.calibration.metrics.proximity_informed_ece import *
from trainkit.calibration.metrics.reliability_diagram import *
from trainkit.calibration.metrics.selective_risk import *
from trainkit.calibration.metrics.strata import *
from trainkit.calibration.metrics.stratum_coverage import *
from trainkit.calibration.metrics.top_one_change_rate import *
