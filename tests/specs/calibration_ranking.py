"""Records of the metrics of rankings, of accuracy without labels and of features."""

from tests.specs.calibration_binned import certain, wrong
from tests.specs.calibration_metrics import ERRORS
from tests.specs.calibration_selective import CONFIGS, FLAG, KINDS, errors_in_order, risks
from trainkit.calibration.metrics import CoverageAtRisk, coverage_at_risk
from trainkit.testing import BadCall, MetricSpec


def coverage_reference(logits, target, risk, **options):
    found = risks(errors_in_order(logits, target, **options))
    return max((k / len(found) for k, r in enumerate(found, 1) if r <= risk + 1e-12), default=0.0)


SPECS = (
    MetricSpec(
        cls=CoverageAtRisk,
        function=coverage_at_risk,
        reference=coverage_reference,
        configs=tuple({"risk": r, **config} for r, config in zip((0.7, 0.4, 0.5, 0.0, 0.75), CONFIGS, strict=True)),
        kinds=KINDS,
        errors=(
            *ERRORS,
            FLAG,
            BadCall(ValueError, "risk must be >= 0 and <= 1, got -0.1", {"risk": -0.1}),
            BadCall(ValueError, "risk must be >= 0 and <= 1, got 5", {"risk": 5}),
            BadCall(TypeError, "risk must be a number, got '5%'", {"risk": "5%"}),
        ),
        perfect=certain,
        worst=wrong,
        bounds=(0.0, 1.0),
        seeds=("AURC",),
    ),
)
