"""Properties of optimizers, O1 to O19."""

from trainkit.testing.optimizers import behaviour, fits, groups, ranks, state, values
from trainkit.testing.properties import collect

PROPERTIES = collect(behaviour, fits, groups, ranks, state, values)
"""Properties of optimizers: trajectories, state, groups, closures, precision, Lightning and ranks."""
