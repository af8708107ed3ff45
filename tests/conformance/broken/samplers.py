"""Samplers that are broken on purpose."""

from itertools import islice

import torch
from torch.utils.data import DistributedSampler

from tests.conformance.broken import Broken
from trainkit._core.checks import check_integer, reject
from trainkit.testing import BadCall, SamplerSpec


class BatchSampler(DistributedSampler):
    """A good one: the rows of each batch go to the ranks in turn."""

    def __init__(self, dataset, batch_size, num_replicas=None, rank=None, shuffle=True, seed=0):
        one_process = num_replicas is None and not torch.distributed.is_initialized()
        ranks = {"num_replicas": 1, "rank": 0} if one_process else {"num_replicas": num_replicas, "rank": rank}
        super().__init__(dataset, **ranks, shuffle=shuffle, seed=seed)
        check_integer(type(self).__name__, "batch_size", batch_size, minimum=1)
        self.batch_size = batch_size
        self.position = self.start = 0
        self.check_ranks()

    def check_ranks(self):
        if self.batch_size % self.num_replicas:
            reject(type(self).__name__, "batch_size", f"be divisible by {self.num_replicas} ranks", self.batch_size)

    def order(self):
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        return torch.randperm(len(self.dataset), generator=generator).tolist()

    def rows(self):
        order = self.order()
        return order[: len(order) - len(order) % self.num_replicas][self.rank :: self.num_replicas]

    def __len__(self):
        return len(self.rows())

    def __iter__(self):
        # A loop that counts batches leaves the iterator of an epoch at its last index, not at its end.
        self.position, self.start = self.start, 0
        for index in islice(self.rows(), self.position, None):
            self.position += 1
            yield index

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]
        self.position = self.start = state["position"]


class YieldsTensors(BatchSampler):
    def __iter__(self):
        return map(torch.tensor, super().__iter__())


class BlocksOfRows(BatchSampler):
    def rows(self):
        order = self.order()
        each = len(order) // self.num_replicas
        return order[self.rank * each : (self.rank + 1) * each]


class SeedsGlobally(BatchSampler):
    def order(self):
        torch.manual_seed(1000 * self.seed + self.epoch)
        return torch.randperm(len(self.dataset)).tolist() if self.shuffle else super().order()


class CountsTheRemainder(BatchSampler):
    def __len__(self):
        return -(-len(self.dataset) // self.num_replicas)


class StartsTheEpochAgain(BatchSampler):
    def state_dict(self):
        return {"epoch": self.epoch, "position": 0}


class HoldsALambda(BatchSampler):
    def check_ranks(self):
        super().check_ranks()
        self.transform = lambda index: index


class TakesAnyBatchSize(BatchSampler):
    def check_ranks(self):
        pass


class NeedsAGroup(BatchSampler):
    def __init__(self, dataset, batch_size, num_replicas=None, rank=None, shuffle=True, seed=0):
        if num_replicas is None:
            num_replicas = torch.distributed.get_world_size()
        super().__init__(dataset, batch_size, num_replicas, rank, shuffle, seed)


class StartsWithTheNextEpoch(BatchSampler):
    def order(self):
        self.epoch += 1
        try:
            return super().order()
        finally:
            self.epoch -= 1


class FillsTheBatch(BatchSampler):
    def order(self):
        order = super().order()
        return order * self.batch_size if 0 < len(order) < self.batch_size else order


def reference(rows, epoch, batch_size, shuffle=True, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    return torch.randperm(rows, generator=generator).tolist() if shuffle else list(range(rows))


def record(cls, reference=None):
    bad = (BadCall(ValueError, "batch_size must be >= 1, got 0", {"batch_size": 0}),)
    configs = ({"batch_size": 4}, {"batch_size": 8, "shuffle": False})
    return SamplerSpec(cls=cls, configs=configs, errors=bad, reference=reference)


GOOD = record(BatchSampler, reference)

BROKEN = (
    Broken("S1", record(YieldsTensors)),
    Broken("S2", record(BlocksOfRows)),
    Broken("S3", record(SeedsGlobally)),
    Broken("S4", record(CountsTheRemainder)),
    Broken("S5", record(StartsTheEpochAgain)),
    Broken("S6", record(HoldsALambda)),
    Broken("S7", record(TakesAnyBatchSize)),
    Broken("S8", record(NeedsAGroup)),
    Broken("S9", record(FillsTheBatch)),
    Broken("S10", record(StartsWithTheNextEpoch, reference)),
)
