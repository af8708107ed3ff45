"""Calibrators that are broken on purpose."""

import math

import torch
from torch import nn

from tests.conformance.broken import Broken
from tests.specs.calibration_calibrators import temperature_reference
from trainkit.calibration.calibrators import TemperatureScaling
from trainkit.distributed import all_reduce_sum
from trainkit.testing import BadCall, CalibratorSpec


class Bisection(nn.Module):
    """A good one that knows nothing of trainkit's base: a temperature between 1/100 and 100, by bisection."""

    argmax_preserving = True

    def __init__(self, rounds: int = 60):
        super().__init__()
        if rounds < 1:
            raise ValueError(f"Bisection: rounds must be >= 1, got {rounds}")
        self.rounds = rounds
        self.register_buffer("log_temperature", torch.tensor(math.nan, dtype=torch.float64))

    def extra_repr(self):
        return f"rounds={self.rounds}, temperature={math.exp(self.log_temperature):.6g}"

    def _apply(self, fn, recurse=True):
        return self

    def fit(self, logits, target):
        if target.is_floating_point() or logits.shape[:1] != target.shape:
            raise ValueError(f"Bisection: target must have {len(logits)} classes, got shape {tuple(target.shape)}")
        if not all_reduce_sum(torch.tensor([len(target)]), call="Bisection.count"):
            raise ValueError("Bisection: target must hold a row, got none")
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            z = logits.double() - logits.double().amax(1, keepdim=True)
            low, high = -math.log(100), math.log(100)
            for _ in range(self.rounds):
                middle = (low + high) / 2
                u = math.exp(-middle)
                slope = ((u * z).softmax(1) * z).sum() - z.gather(1, target[:, None]).sum()
                above = all_reduce_sum(slope.reshape(1), call="Bisection.fit") > 0
                low, high = (middle, high) if above else (low, middle)
            self.log_temperature = torch.tensor((low + high) / 2, dtype=torch.float64)
        return self

    def forward(self, logits):
        if not torch.compiler.is_compiling() and self.log_temperature.isnan():
            raise RuntimeError("Bisection: fit must come before forward")
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return wide / self.log_temperature.exp().to(wide.dtype)

    def predict_proba(self, logits):
        return self(logits).softmax(1)


class SlightlyOff(TemperatureScaling):
    def fit(self, logits, target, *, weight=None):
        super().fit(logits, target, weight=weight)
        self.temperature = 1.001 * self.temperature
        return self


class AnswersUnfitted(TemperatureScaling):
    def _check_input(self, logits):
        pass


class LosesMass(TemperatureScaling):
    def predict_proba(self, logits):
        return 0.999 * super().predict_proba(logits)


class PrefersTheFirst(TemperatureScaling):
    def _transform(self, logits):
        bias = torch.zeros_like(logits)
        bias[:, 0] = 0.02
        return super()._transform(logits) + bias


class HalfWay(TemperatureScaling):
    def fit(self, logits, target, *, weight=None):
        super().fit(logits, target, weight=weight)
        self.temperature = self.temperature.sqrt()
        return self


class DoesNothing(TemperatureScaling):
    def _transform(self, logits):
        return logits + 0 * self.temperature.to(logits.dtype)


class ForgetsTheTemperature(TemperatureScaling):
    def register_fitted(self, name, identity):
        super().register_fitted(name, identity)
        self._non_persistent_buffers_set.add(name)


class AveragesFits(TemperatureScaling):
    def fit(self, logits, target, *, weight=None):
        before, again = self.temperature, bool(self.fitted)
        super().fit(logits, target, weight=weight)
        if again:
            self.temperature = (before + self.temperature) / 2
        return self


class GivesUpAtTheBound(TemperatureScaling):
    def fit(self, logits, target, *, weight=None):
        super().fit(logits, target, weight=weight)
        if not self.converged:
            self.temperature = torch.full_like(self.temperature, math.nan)
        return self


class RoundsSinglePrecision(TemperatureScaling):
    def fit(self, logits, target, *, weight=None):
        rounded = logits.bfloat16() if logits.dtype == torch.float32 else logits
        return super().fit(rounded, target, weight=weight)


class FitsItsOwnRows(TemperatureScaling):
    def __init__(self, sync: bool = True):
        super().__init__(sync=False)


class CutsLongTargets(TemperatureScaling):
    def fit(self, logits, target, *, weight=None):
        rows = min(len(logits), len(target))
        return super().fit(logits[:rows], target[:rows], weight=None if weight is None else weight[:rows])


class BreaksTheGraph(TemperatureScaling):
    def _transform(self, logits):
        torch._dynamo.graph_break()
        return super()._transform(logits)


class DropsWeights(TemperatureScaling):
    def fit(self, logits, target, *, weight=None):
        return super().fit(logits, target)


def spec(cls, reference=None):
    return CalibratorSpec(
        cls=cls,
        reference=reference,
        errors=(BadCall(ValueError, "logits must have shape (N, C, ...)", inputs={"logits": torch.ones(4)}),),
    )


def bisection_reference(logits, target, rounds=60):
    fit = temperature_reference(logits, target, t_min=0.01, t_max=100.0)
    return {"log_temperature": math.log(fit["temperature"])}


GOOD = CalibratorSpec(
    cls=Bisection,
    reference=bisection_reference,
    configs=({}, {"rounds": 50}),
    errors=(BadCall(ValueError, "rounds must be >= 1, got 0", {"rounds": 0}),),
)

BROKEN = (
    Broken("C1", spec(SlightlyOff, temperature_reference)),
    Broken("C2", spec(AnswersUnfitted)),
    Broken("C3", spec(LosesMass)),
    Broken("C4", spec(PrefersTheFirst)),
    Broken("C5", spec(HalfWay)),
    Broken("C6", spec(DoesNothing)),
    Broken("C7", spec(ForgetsTheTemperature)),
    Broken("C8", spec(AveragesFits)),
    Broken("C9", spec(GivesUpAtTheBound)),
    Broken("C10", spec(RoundsSinglePrecision)),
    Broken("C11", spec(FitsItsOwnRows)),
    Broken("C12", spec(CutsLongTargets)),
    Broken("C13", spec(BreaksTheGraph)),
    Broken("C14", spec(DropsWeights)),
)
