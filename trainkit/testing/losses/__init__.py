"""Properties of losses, L1 to L21."""

from trainkit.testing.losses import batches, behaviour, ranks, values
from trainkit.testing.properties import collect

PROPERTIES = collect(values, batches, behaviour, ranks)
