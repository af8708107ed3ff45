"""Record of the callback that writes the report of a run."""

from trainkit.callbacks import RunReport
from trainkit.testing import BadCall, CallbackSpec

CLOCK = "the state holds when the run started and how long it took, which no two runs share"

SPECS = (
    CallbackSpec(
        cls=RunReport,
        configs=({}, {"every_n_epochs": 5}),
        passive=True,
        exempt={"K7": CLOCK, "K8": CLOCK, "K10": CLOCK},
        errors=(
            BadCall(ValueError, "every_n_epochs must be >= 1, got 0", {"every_n_epochs": 0}),
            BadCall(TypeError, "every_n_epochs must be an integer, got 0.5", {"every_n_epochs": 0.5}),
        ),
    ),
)
