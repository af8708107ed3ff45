"""Properties of calibrators, C1 to C14."""

from trainkit.testing.calibrators import behaviour, fits
from trainkit.testing.properties import collect

PROPERTIES = collect(fits, behaviour)
