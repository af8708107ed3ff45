"""CPU seconds as a quiet core would have taken them: a neighbour on the same core nearly doubles the count."""

import statistics
import time
from collections.abc import Sequence

QUIET = 0.0055
"""CPU seconds that the yardstick takes on a quiet core."""
SHORT = 0.2


def yardstick() -> float:
    """CPU seconds of a fixed piece of work, the middle one of a few."""

    def once() -> float:
        start = time.process_time()
        {str(i): [i] for i in range(20_000)}
        return time.process_time() - start

    return statistics.median(once() for _ in range(5))


def quiet_seconds(seconds: float, before: Sequence[float] = ()) -> float:
    """Seconds on a quiet core, from yardsticks before and one now; short ones, which don't matter, as they are."""
    return seconds if seconds < SHORT else seconds * QUIET / statistics.fmean([*before, yardstick()])
