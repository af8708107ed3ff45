"""Callbacks for Lightning that attach to any ``LightningModule``."""

from trainkit.callbacks.calibration_monitor import *
from trainkit.callbacks.non_finite_guard import *
from trainkit.callbacks.post_hoc_calibration import *
from trainkit.callbacks.publish_figure import *
from trainkit.callbacks.run_report import *
from trainkit.callbacks.step_seed import *
