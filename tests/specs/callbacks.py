"""Records of callbacks."""

from torch import nn

from trainkit.calibration.calibrators import TemperatureScaling
from trainkit.calibration.metrics import MCE
from trainkit.callbacks import CalibrationMonitor, NonFiniteGuard, PostHocCalibration, StepSeed
from trainkit.testing import BadCall, CallbackSpec

SPECS = (
    CallbackSpec(
        cls=CalibrationMonitor,
        passive=True,
        configs=(
            {},
            {"metrics": {"mce": MCE(n_bins=5)}, "stages": ["validate"], "every_n_epochs": 2, "prefix": "own"},
        ),
        errors=(
            BadCall(ValueError, "stages must be one of 'validate', 'test', got 'train'", {"stages": ["train"]}),
            BadCall(ValueError, "every_n_epochs must be >= 1, got 0", {"every_n_epochs": 0}),
            BadCall(TypeError, "metrics must be a mapping of names to metrics or None", {"metrics": ["ece"]}),
            BadCall(
                TypeError,
                "metrics['a'] must have update and compute, got Identity()",
                {"metrics": {"a": nn.Identity()}},
            ),
            BadCall(TypeError, "outputs must be a mapping of names, a function or None, got 'y'", {"outputs": "y"}),
            BadCall(TypeError, "outputs must map names to names", {"outputs": {"logits": 0}}),
        ),
    ),
    CallbackSpec(
        cls=PostHocCalibration,
        passive=True,
        configs=(
            {},
            {"calibrator": TemperatureScaling(t_max=1000.0), "holdout": 0.3, "max_rows": 15, "prefix": "own"},
        ),
        errors=(
            BadCall(ValueError, "holdout must be >= 0 and < 1, got 1", {"holdout": 1}),
            BadCall(ValueError, "max_rows must be >= 1, got 0", {"max_rows": 0}),
            BadCall(TypeError, "calibrator must be a Calibrator or None, got 'temp'", {"calibrator": "temp"}),
            BadCall(TypeError, "outputs must be a mapping of names, a function or None, got 3", {"outputs": 3}),
        ),
    ),
    CallbackSpec(
        cls=NonFiniteGuard,
        passive=True,
        configs=({}, {"gradients": True}),
        errors=(
            BadCall(TypeError, "gradients must be True or False, got 1", {"gradients": 1}),
            BadCall(TypeError, "gradients must be True or False, got 'all'", {"gradients": "all"}),
        ),
    ),
    CallbackSpec(
        cls=StepSeed,
        configs=({}, {"seed": 7}),
        errors=(
            BadCall(ValueError, "seed must be >= 0, got -1", {"seed": -1}),
            BadCall(TypeError, "seed must be an integer, got 1.5", {"seed": 1.5}),
        ),
    ),
)
