"""Properties of metrics, M1 to M12."""

from trainkit.testing.metrics import behaviour, values
from trainkit.testing.properties import collect

PROPERTIES = collect(values, behaviour)
