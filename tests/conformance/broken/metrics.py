"""Metrics that are broken on purpose."""

import torch
from torchmetrics import Metric

from tests.conformance.broken import Broken
from tests.specs.calibration_metrics import brier_reference, perfect, worst
from trainkit.calibration.metrics import BrierScore, brier_score
from trainkit.testing import MetricSpec


class WrongFormula(BrierScore):
    def compute(self):
        return self.mean(self.total, 2 * self.weight_sum)


class OtherFunction(BrierScore):
    pass


def other_function(
    logits, target, *, task="multiclass", form="full", input_kind="logits", ignore_index=-100, validate_args=True
):
    value = brier_score(
        logits,
        target,
        task=task,
        form=form,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return value.float().double()


class ForwardGivesRunningValue(BrierScore):
    def forward(self, logits, target):
        self.update(logits, target)
        return self.compute()


class NeverSyncs(BrierScore):
    def sync(self, *args, **kwargs):
        return


class MergesHalf(BrierScore):
    def merge_state(self, incoming_state):
        self.total = self.total + incoming_state.total


class HidesHyperParameters(BrierScore):
    def extra_repr(self):
        return f"task={self.task}, form={self.form}"


class SavesItself(BrierScore):
    def add_sums(self, *names, shape=()):
        super().add_sums(*names, shape=shape)
        self.persistent(True)


class CastsItsState(BrierScore):
    _apply = Metric._apply


class CutsLongTargets(BrierScore):
    def update(self, logits, target):
        rows = min(len(logits), len(target))
        super().update(logits[:rows], target[:rows])


class ErrorToMaximize(BrierScore):
    higher_is_better = True


class KeepsHistory(BrierScore):
    def __init__(self, task="multiclass", form="full", input_kind="logits", ignore_index=-100, validate_args=True):
        super().__init__(task, form, input_kind, ignore_index, validate_args)
        self.history = []

    def update(self, logits, target):
        super().update(logits, target)
        self.history.append(float(self.total))


class DrawsNumbers(BrierScore):
    def update(self, logits, target):
        noise = 1e-300 * torch.rand(logits.shape[0], 1)
        super().update(logits + noise.to(logits.dtype), target)


def spec(cls, function=None):
    return MetricSpec(
        cls=cls, function=function, reference=brier_reference, perfect=perfect, worst=worst, bounds=(0.0, 2.0)
    )


BROKEN = (
    Broken("M1", spec(WrongFormula)),
    Broken("M2", spec(OtherFunction, other_function)),
    Broken("M3", spec(ForwardGivesRunningValue)),
    Broken("M4", spec(NeverSyncs)),
    Broken("M5", spec(MergesHalf)),
    Broken("M6", spec(HidesHyperParameters)),
    Broken("M7", spec(SavesItself)),
    Broken("M8", spec(CastsItsState)),
    Broken("M9", spec(CutsLongTargets)),
    Broken("M10", spec(ErrorToMaximize)),
    Broken("M11", spec(KeepsHistory)),
    Broken("M12", spec(DrawsNumbers)),
)
