"""Calibration metrics: ``torchmetrics.Metric`` classes with functional forms, exact over batches and ranks."""

from trainkit.calibration.metrics.adaptive_calibration_error import *
from trainkit.calibration.metrics.aurc import *
from trainkit.calibration.metrics.binned_calibration_error import *
from trainkit.calibration.metrics.bootstrap_interval import *
from trainkit.calibration.metrics.brier_score import *
from trainkit.calibration.metrics.ensemble_crps import *
from trainkit.calibration.metrics.expected_calibration_error import *
from trainkit.calibration.metrics.grouped_metric import *
from trainkit.calibration.metrics.interval_score import *
from trainkit.calibration.metrics.ks_calibration_error import *
from trainkit.calibration.metrics.label_ranking_calibration_error import *
from trainkit.calibration.metrics.log_me import *
from trainkit.calibration.metrics.mano import *
from trainkit.calibration.metrics.mixture_crps import *
from trainkit.calibration.metrics.negative_log_likelihood import *
from trainkit.calibration.metrics.normal_crps import *
from trainkit.calibration.metrics.pit_calibration_error import *
from trainkit.calibration.metrics.pit_values import *
from trainkit.calibration.metrics.quantile_calibration_error import *
from trainkit.calibration.metrics.quantile_score import *
from trainkit.calibration.metrics.reliability_diagram import *
from trainkit.calibration.metrics.reward_model_calibration_error import *
from trainkit.calibration.metrics.selective_risk import *
from trainkit.calibration.metrics.top_one_change_rate import *
