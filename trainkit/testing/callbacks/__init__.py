"""Properties of callbacks, from their state alone to fits on two ranks."""

from trainkit.testing.callbacks import fits, ranks, state
from trainkit.testing.properties import collect

PROPERTIES = collect(state, fits, ranks)
