"""Properties of modules that are no loss, N1 to N10."""

from trainkit.testing.modules import behaviour, ranks
from trainkit.testing.properties import collect

PROPERTIES = collect(behaviour, ranks)
