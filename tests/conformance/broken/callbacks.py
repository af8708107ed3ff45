"""Callbacks that are broken on purpose."""

import numpy as np
from lightning.pytorch import Callback

from tests.conformance.broken import Broken
from trainkit._core.checks import check_integer
from trainkit.testing import BadCall, CallbackSpec


class Counter(Callback):
    """A good one: counts batches."""

    def __init__(self, every=1):
        self.check(every)
        self.every = every
        self.count = 0

    def check(self, every):
        check_integer(type(self).__name__, "every", every, minimum=1)

    @property
    def state_key(self):
        return self._generate_state_key(every=self.every)

    def on_train_batch_end(self, *args):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class CountsInNumpy(Counter):
    def state_dict(self):
        return {"count": np.int64(self.count)}


class OneKeyForAll(Counter):
    @property
    def state_key(self):
        return "OneKeyForAll"


class KeepsAnotherValue(Counter):
    def __init__(self, every=1):
        super().__init__(every)
        self.every = every + 1


class HoldsALambda(Counter):
    def __init__(self, every=1):
        super().__init__(every)
        self.due = lambda count: count % every == 0


class TakesAnything(Counter):
    def check(self, every):
        pass


def record(cls):
    return CallbackSpec(
        cls=cls,
        configs=({}, {"every": 3}),
        errors=(
            BadCall(ValueError, "every must be >= 1, got 0", {"every": 0}),
            BadCall(TypeError, "every must be an integer, got 1.5", {"every": 1.5}),
        ),
    )


GOOD = record(Counter)

BROKEN = (
    Broken("K1", record(CountsInNumpy)),
    Broken("K2", record(OneKeyForAll)),
    Broken("K3", record(KeepsAnotherValue)),
    Broken("K4", record(HoldsALambda)),
    Broken("K5", record(TakesAnything)),
)
