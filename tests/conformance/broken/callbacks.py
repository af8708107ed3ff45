"""Callbacks that are broken on purpose."""

import numpy as np
import torch
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


class CountsSteps(Counter):
    """Does not expect a run of one batch."""

    def on_fit_end(self, trainer, pl_module):
        if trainer.fast_dev_run:
            raise RuntimeError("no run of one batch, please")


class StartsAgain(Counter):
    """Forgets what it loaded as soon as the training goes on."""

    def on_train_start(self, *args):
        self.count = 0


class CountsByRank(Counter):
    def on_train_end(self, trainer, pl_module):
        self.count += trainer.global_rank


class LeavesInEvaluation(Counter):
    def on_train_end(self, trainer, pl_module):
        pl_module.net[1].eval()


class CountsTogether(Counter):
    """Two of them in one trainer add to one number."""

    total = 0

    def on_fit_start(self, *args):
        CountsTogether.total = self.count

    def on_train_batch_end(self, *args):
        CountsTogether.total += 1
        self.count = self.total


class DrawsNumbers(Counter):
    def on_train_batch_start(self, *args):
        torch.rand(())


class LosesItself(Counter):
    """A copy that is taken once it has counted starts from zero."""

    def __deepcopy__(self, memo):
        return type(self)(self.every)


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
        passive=True,
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
    Broken("K6", record(CountsSteps)),
    Broken("K7", record(StartsAgain)),
    Broken("K8", record(CountsByRank)),
    Broken("K9", record(LeavesInEvaluation)),
    Broken("K10", record(CountsTogether)),
    Broken("K11", record(DrawsNumbers)),
    Broken("K12", record(LosesItself)),
)
