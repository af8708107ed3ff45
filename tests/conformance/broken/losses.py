"""Losses that are broken in one way each. They are importable, since ranks run in other processes."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conformance.broken import Broken
from trainkit._core.numerics import upcast
from trainkit.distributed import gather_rows, reduce_over_ranks
from trainkit.losses import FocalLoss, focal_loss
from trainkit.testing import BadCall, Golden, Invariance, LossSpec


def spec(cls, **fields):
    return LossSpec(cls=cls, **fields)


class WrongConstant(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        return 1.5 * super().forward(logits, target, weight=weight, mask=mask)


def wrong_constant_record():
    logits = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    return {"value": WrongConstant(gamma=1.0)(logits, torch.tensor([0]))}


class OtherDefault(FocalLoss):
    def __init__(
        self,
        gamma: float = 1.0,
        alpha: float | list[float] | None = None,
        detach_weight: bool = False,
        ignore_index: int = -100,
        reduction: str = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ):
        super().__init__(gamma, alpha, detach_weight, ignore_index, reduction, sync, validate_args)


class _SlightlyOff(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 1.01 * grad


class WrongGradient(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        return super().forward(_SlightlyOff.apply(logits), target, weight=weight, mask=mask)


class RoundedInSinglePrecision(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        if logits.dtype != torch.float64:
            logits = logits.bfloat16().to(logits.dtype)
        return super().forward(logits, target, weight=weight, mask=mask)


class FollowsAutocast(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        # logsumexp is on none of autocast's lists, and a matrix product is on the one that lowers.
        eye = torch.eye(logits.shape[-1], dtype=logits.dtype)
        return super().forward(logits @ eye, target, weight=weight, mask=mask)


class NaivePower(nn.Module):
    """The textbook formula: at p = 1 the power has an infinite gradient."""

    distributed = "local"

    def __init__(self, gamma: float = 0.5):
        super().__init__()
        self.gamma = gamma

    def extra_repr(self):
        return f"gamma={self.gamma}"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if len(logits) != len(target):
            raise ValueError("NaivePower: logits and target must have the same number of rows")
        logits = logits if logits.dtype == torch.float64 else logits.float()
        with torch.autocast("cpu", enabled=False):
            log_p = logits.log_softmax(1).gather(1, target[:, None]).squeeze(1)
            rows = -((1 - log_p.exp()) ** self.gamma) * log_p
        return reduce_over_ranks(rows, torch.ones_like(rows), "mean", call="NaivePower")


class NanOnEmpty(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        value = super().forward(logits, target, weight=weight, mask=mask)
        # Empty on this rank alone is fine: only a whole batch without rows shows the fault.
        return value + (logits.sum() * float("nan") if not logits.numel() and not dist.is_initialized() else 0.0)


class SumIsDouble(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        value = super().forward(logits, target, weight=weight, mask=mask)
        return 2 * value if self.reduction == "sum" else value


class RowsInReverse(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        value = super().forward(logits, target, weight=weight, mask=mask)
        # Seven rows: a size that no shard of the tests on ranks has.
        return value.flip(0) if self.reduction == "none" and len(logits) == 7 else value


class NotShiftInvariant(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        logits = upcast(logits)
        return super().forward(logits + 0.01 * logits.square(), target, weight=weight, mask=mask)


class IgnoredCount(FocalLoss):
    """Ignored targets add nothing to the value but count in the mean."""

    def forward(self, logits, target, *, weight=None, mask=None):
        rows = focal_loss(
            logits,
            target,
            weight=weight,
            mask=mask,
            gamma=self.gamma,
            ignore_index=self.ignore_index,
            reduction="none",
            validate_args=self.validate_args,
        )
        weights = torch.ones_like(rows) if weight is None else weight.to(rows.dtype)
        return reduce_over_ranks(rows, weights, self.reduction, call="IgnoredCount")


class WeightsDoNotCount(FocalLoss):
    """The mean divides by the number of targets in place of their weight."""

    def forward(self, logits, target, *, weight=None, mask=None):
        rows = focal_loss(logits, target, weight=weight, mask=mask, reduction="none", validate_args=self.validate_args)
        counts = (target != -100) if mask is None else (target != -100) & mask
        return reduce_over_ranks(rows, counts.to(rows.dtype), self.reduction, call="WeightsDoNotCount")


class BreaksTheGraph(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        torch._dynamo.graph_break()
        return super().forward(logits, target, weight=weight, mask=mask)


class KeepsTheBatch(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        self.last_size = len(logits)
        return super().forward(logits, target, weight=weight, mask=mask)


class ForgetsGamma(FocalLoss):
    def __setstate__(self, state):
        super().__setstate__({**state, "gamma": 2.0})


class GathersWithoutGradient(nn.Module):
    """The usual fault: every rank's rows are used, but only as constants."""

    distributed = "gather"

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if len(query) != len(key):
            raise ValueError("GathersWithoutGradient: query and key must have the same number of rows")
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        with torch.autocast("cpu", enabled=False):
            query, key = (F.normalize(x.to(dtype), dim=1, eps=1e-6) for x in (query, key))
            (keys,), sizes = gather_rows(key, call="GathersWithoutGradient")
            rank = dist.get_rank() if dist.is_initialized() else 0
            start = int(sizes[:rank].sum()) if len(sizes) > 1 else 0
            if len(sizes) > 1:
                keys = torch.cat([keys[:start].detach(), key, keys[start + len(key) :].detach()])
            logits = 5 * query @ keys.T
            rows = logits.logsumexp(1) - logits.diagonal(start)[: len(query)] if len(query) else query.sum(1)
        total = int(sizes.sum())
        return rows.sum() * (len(sizes) / max(total, 1)) + 0 * key.sum()


class NoAnnotation(FocalLoss):
    def __init__(
        self,
        gamma: torch.Generator = 2.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ):
        super().__init__(gamma, None, False, ignore_index, reduction, sync, validate_args)


class AcceptsAnything(FocalLoss):
    def __init__(
        self,
        gamma: float = 2.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ):
        super().__init__(max(gamma, 0.0), None, False, ignore_index, reduction, sync, validate_args)


class IgnoresStrides(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        logits = logits.as_strided(logits.shape, torch.empty(logits.shape, device="meta").stride())
        return super().forward(logits, target, weight=weight, mask=mask)


class _DropsSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.detach()


class SilentSecondDerivative(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        return super().forward(_DropsSecond.apply(logits), target, weight=weight, mask=mask)


class Useless(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        return -super().forward(logits, target, weight=weight, mask=mask)


SHIFT = Invariance("adding 3 to all logits", lambda x: {**x, "logits": x["logits"] + 3})
RECORD = Golden("two equal logits", {"value": 0.34657359027997264}, wrong_constant_record)

BROKEN = (
    Broken("L1", spec(WrongConstant, golden=(RECORD,))),
    Broken("L2", spec(OtherDefault, function=focal_loss)),
    Broken("L3", spec(WrongGradient)),
    Broken("L4", spec(RoundedInSinglePrecision)),
    Broken("L5", spec(FollowsAutocast)),
    Broken("L6", spec(NaivePower)),
    Broken("L7", spec(NanOnEmpty)),
    Broken("L8", spec(SumIsDouble)),
    Broken("L9", spec(RowsInReverse)),
    Broken("L10", spec(NotShiftInvariant, invariances=(SHIFT,))),
    Broken("L11", spec(IgnoredCount)),
    Broken("L12", spec(WeightsDoNotCount)),
    Broken("L13", spec(BreaksTheGraph)),
    Broken("L14", spec(KeepsTheBatch)),
    Broken("L15", spec(ForgetsGamma, configs=({"gamma": 1.0},))),
    Broken("L16", spec(GathersWithoutGradient, kind="pairs")),
    Broken("L17", spec(NoAnnotation)),
    Broken(
        "L18", spec(AcceptsAnything, errors=(BadCall(ValueError, "gamma must be >= 0, got -1.0", {"gamma": -1.0}),))
    ),
    Broken("L19", spec(IgnoresStrides)),
    Broken("L20", spec(SilentSecondDerivative)),
    Broken("L21", spec(Useless)),
)
