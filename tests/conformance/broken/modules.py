"""Modules that are broken on purpose."""

import torch
from torch import nn

from tests.conformance.broken import Broken
from trainkit._core.checks import check_number, reject
from trainkit.distributed import all_reduce_sum
from trainkit.testing import BadCall, ModuleSpec


class Centre(nn.Module):
    """A good one: takes off the mean of the whole batch, keeps a running one, and scales."""

    distributed = "statistics"

    def __init__(self, momentum: float = 0.1):
        super().__init__()
        check_number(type(self).__name__, "momentum", momentum, minimum=0, maximum=1)
        self.momentum = momentum
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, 4))
        self.register_buffer("running", torch.zeros(4))

    def extra_repr(self):
        return f"momentum={self.momentum}"

    def check(self, features):
        if features.dim() != 2 or features.shape[1] != 4:
            reject(type(self).__name__, "features", "have shape (N, 4)", features)

    def mean(self, features):
        count = features.new_full((1,), features.shape[0])
        total = all_reduce_sum(torch.cat([features.sum(0), count]), call="Centre")
        return total[:-1] / total[-1].clamp_min(1), total[-1] > 0

    def learn(self, mean, seen):
        moved = self.running.lerp(mean.detach(), self.momentum)
        self.running.copy_(torch.where(seen, moved, self.running))

    def finish(self, centred):
        return centred * self.weight

    def forward(self, features):
        self.check(features)
        if not self.training:
            return self.finish(features - self.running)
        mean, seen = self.mean(features)
        self.learn(mean, seen)
        return self.finish(features - mean)


class AddsOne(Centre):
    def finish(self, centred):
        return super().finish(centred) + 1


class WrongGradient(Centre):
    def finish(self, centred):
        return super().finish(centred) + 0.5 * (centred - centred.detach())


class RoundsInFp32(Centre):
    def finish(self, centred):
        result = super().finish(centred)
        return result.bfloat16().float() if result.dtype == torch.float32 else result


class DividesByNothing(Centre):
    def mean(self, features):
        count = features.new_full((1,), features.shape[0])
        total = all_reduce_sum(torch.cat([features.sum(0), count]), call="Centre")
        return total[:-1] / total[-1], torch.tensor(True)


class ForgetsTheMean(Centre):
    def __init__(self, momentum: float = 0.1):
        super().__init__(momentum)
        self.register_buffer("running", torch.zeros(4), persistent=False)


class BreaksTheGraph(Centre):
    def finish(self, centred):
        torch._dynamo.graph_break()
        return super().finish(centred)


class LearnsInEvaluation(Centre):
    def forward(self, features):
        result = super().forward(features)
        if not self.training:
            self.learn(*self.mean(features))
        return result


class ChecksNothing(Centre):
    def check(self, features):
        pass


class CentresItsOwnRows(Centre):
    def mean(self, features):
        return features.sum(0) / max(features.shape[0], 1), torch.tensor(features.shape[0] > 0)


class ReadsTheStorage(Centre):
    def mean(self, features):
        return super().mean(features.as_strided(features.shape, (4, 1), 0))


def centre(features, momentum=0.1, state=None):
    means = [sum(column) / len(features) for column in zip(*features, strict=True)]
    return [[(x - m) * w for x, m, w in zip(row, means, state["weight"], strict=True)] for row in features]


def record(cls):
    return ModuleSpec(
        cls=cls,
        kind="features",
        configs=({}, {"momentum": 0.5}),
        reference=centre,
        errors=(
            BadCall(ValueError, "momentum must be >= 0 and <= 1, got 2", {"momentum": 2}),
            BadCall(ValueError, "features must have shape (N, 4)", inputs={"features": torch.zeros(2, 3)}),
        ),
    )


GOOD = record(Centre)

BROKEN = (
    Broken("N1", record(AddsOne)),
    Broken("N2", record(WrongGradient)),
    Broken("N3", record(RoundsInFp32)),
    Broken("N4", record(DividesByNothing)),
    Broken("N5", record(ForgetsTheMean)),
    Broken("N6", record(BreaksTheGraph)),
    Broken("N7", record(LearnsInEvaluation)),
    Broken("N8", record(ChecksNothing)),
    Broken("N9", record(CentresItsOwnRows)),
    Broken("N10", record(ReadsTheStorage)),
)
