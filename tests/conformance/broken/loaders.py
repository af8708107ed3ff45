"""Loaders that are broken on purpose."""

import torch
from torch.utils.data import RandomSampler

from tests.conformance.broken import Broken
from tests.specs.data import batches
from trainkit._core.checks import check_integer
from trainkit.data import IndexSampler, ResumableLoader
from trainkit.testing import BadCall, LoaderSpec


class Loader(ResumableLoader):
    """A good one, with the arguments that the others change something of."""

    def __init__(self, dataset, batch_size, shuffle=True, seed=0, num_workers=0):
        check_integer(type(self).__name__, "batch_size", batch_size, minimum=1)
        check_integer(type(self).__name__, "seed", seed, minimum=0)
        super().__init__(
            dataset,
            batch_size,
            sampler=self.rows(dataset, batch_size, shuffle, seed),
            seed=seed,
            num_workers=num_workers,
        )

    def rows(self, dataset, batch_size, shuffle, seed):
        return IndexSampler(dataset, batch_size, shuffle=shuffle, seed=seed)


class LeavesOrderToTorch(torch.utils.data.DataLoader):
    """No sampler of its own, so that Lightning puts one in."""

    def __init__(self, dataset, batch_size, shuffle=True, seed=0, num_workers=0):
        check_integer("LeavesOrderToTorch", "batch_size", batch_size, minimum=1)
        check_integer("LeavesOrderToTorch", "seed", seed, minimum=0)
        super().__init__(dataset, batch_size, sampler=RandomSampler(dataset))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class OtherSeed(Loader):
    def rows(self, dataset, batch_size, shuffle, seed):
        return IndexSampler(dataset, batch_size, shuffle=shuffle, seed=seed + 1)


class OneBehind(Loader):
    def state_dict(self):
        state = super().state_dict()
        return {**state, "position": state["position"] - (state["position"] > 1)}


class DrawsFreely(Loader):
    """Puts the global state back, but starts from it."""

    def __init__(self, dataset, batch_size, shuffle=True, seed=0, num_workers=0):
        super().__init__(dataset, batch_size, shuffle, seed, num_workers)
        self._batches.seed = int(
            torch.randint(2**31, (), generator=torch.Generator().manual_seed(torch.initial_seed()))
        )


class CountsWhatWasFetched(Loader):
    def state_dict(self):
        ahead = self.num_workers * (self.prefetch_factor or 0)
        state = super().state_dict()
        return {**state, "position": min(len(self), state["position"] + ahead)}


class ChecksNothing(Loader):
    def __init__(self, dataset, batch_size, shuffle=True, seed=0, num_workers=0):
        super().__init__(dataset, max(batch_size, 1), shuffle, max(seed, 0), num_workers)


class OneRank(Loader):
    def rows(self, dataset, batch_size, shuffle, seed):
        return IndexSampler(dataset, batch_size, num_replicas=1, rank=0, shuffle=shuffle, seed=seed)


def reference(rows, epoch, batch_size, shuffle=True, seed=0):
    return batches(rows, epoch, batch_size, shuffle, seed)


def record(cls):
    return LoaderSpec(
        cls=cls,
        configs=({"batch_size": 4}, {"batch_size": 6, "shuffle": False}),
        reference=reference,
        errors=(
            BadCall(ValueError, "batch_size must be >= 1, got 0", {"batch_size": 0}),
            BadCall(ValueError, "seed must be >= 0, got -1", {"seed": -1}),
        ),
    )


GOOD = record(Loader)

BROKEN = (
    Broken("D1", record(LeavesOrderToTorch)),
    Broken("D2", record(OtherSeed)),
    Broken("D3", record(OneBehind)),
    Broken("D4", record(DrawsFreely)),
    Broken("D5", record(CountsWhatWasFetched)),
    Broken("D6", record(ChecksNothing)),
    Broken("D7", record(OneRank)),
)
