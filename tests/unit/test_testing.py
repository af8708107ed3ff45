"""The frame of the properties: comparing, exempting, shrinking, and reading kinds and families from a class."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.callbacks import Timer
from torch import nn

from trainkit.losses import FocalLoss
from trainkit.testing import (
    BadCall,
    Fault,
    LossSpec,
    cases_of,
    check,
    compare,
    family_of,
    properties_for,
    run_property,
    spec_for,
)


class FailsOnClassFour(FocalLoss):
    """Adds one to the value if any target is of class 4."""

    def forward(self, logits, target, *, weight=None, mask=None):
        rows = super().forward(logits, target, weight=weight, mask=mask)
        return rows + (rows.sum() * 0 + float((target == 4).any()) if rows.requires_grad or rows.dim() == 0 else 0.0)


class Warns(FocalLoss):
    def forward(self, logits, target, *, weight=None, mask=None):
        warnings.warn("slow", stacklevel=1)
        return super().forward(logits, target, weight=weight, mask=mask)


def rule_of(spec, name):
    return next(p for p in properties_for(spec) if p.id == name)


def outcome_of(spec, name):
    return run_property(rule_of(spec, name), cases_of(spec)[0])


def test_comparison_takes_no_nan_no_other_shape_and_no_other_keys():
    compare("x", 1.0 + 1e-12, 1.0)
    for got, expected in [(math.nan, math.nan), (torch.ones(2), torch.ones(1)), ({"a": 1}, {"b": 1}), (None, 1.0)]:
        with pytest.raises(Fault):
            compare("x", got, expected)
    compare("whole numbers", torch.tensor([1, 2]), [1, 2])
    with pytest.raises(Fault):
        compare("whole numbers", torch.tensor([2**60]), [2**60 + 1])


def test_plain_numbers_keep_all_their_digits():
    with pytest.raises(Fault):
        compare("x", torch.tensor(0.1 + 1e-10, dtype=torch.float64), 0.1)


def test_a_fault_says_where_what_and_with_which_input():
    spec = LossSpec(
        cls=FailsOnClassFour,
        reference=lambda logits, target: FocalLoss()(
            torch.tensor(logits, dtype=torch.float64), torch.tensor(target)
        ).item(),
    )
    outcome = outcome_of(spec, "L1")
    text = str(outcome.fault)
    assert outcome.status == "fault"
    for word in ("value against the reference", "rank 0 of 1", "dtype float64", "expected", "got", "smallest input"):
        assert word in text


def test_the_smallest_input_is_the_row_that_matters():
    spec = LossSpec(
        cls=FailsOnClassFour,
        reference=lambda logits, target: FocalLoss()(
            torch.tensor(logits, dtype=torch.float64), torch.tensor(target)
        ).item(),
    )
    case = replace(cases_of(spec)[0], sizes=(16,))
    outcome = run_property(rule_of(spec, "L1"), case)
    assert outcome.fault.inputs["target"].tolist() == [4]
    assert outcome.fault.shapes == "logits (1, 5), target (1,)"


def test_a_warning_of_a_part_is_a_fault():
    outcome = outcome_of(LossSpec(cls=Warns), "L4")
    assert outcome.status == "fault"
    assert "UserWarning: slow" in outcome.fault.got


def test_an_exemption_needs_a_property_that_applies_and_does_not_hold():
    reason = "the reason why this is left as it is"
    failing = LossSpec(cls=Warns, exempt={"L4": reason})
    assert outcome_of(failing, "L4").status == "exempt"
    assert outcome_of(failing, "L4").reason == reason
    assert outcome_of(LossSpec(cls=Warns, exempt={"L4@1": reason}), "L4").status == "fault"
    holding = outcome_of(LossSpec(cls=FocalLoss, exempt={"L4": reason}), "L4")
    assert holding.status == "fault"
    assert "L4 is exempt but holds" in holding.fault.what
    absent = outcome_of(LossSpec(cls=FocalLoss, exempt={"L10": reason}), "L10")
    assert absent.status == "fault"
    assert "L10 is exempt but does not apply" in absent.fault.what


def test_a_bad_call_must_raise_its_error_with_its_text():
    for bad, what in [
        (BadCall(ValueError, "gamma must be > 3", {"gamma": -1.0}), "gamma must be >= 0"),
        (BadCall(ValueError, "gamma", {"gamma": 1.0}), "no exception"),
    ]:
        outcome = outcome_of(LossSpec(cls=FocalLoss, errors=(bad,)), "L18")
        assert outcome.status == "fault"
        assert what in outcome.fault.got


class Scores(nn.Module):
    """Neither name nor signature says that this is a loss; what it returns does."""

    def forward(self, query, key):
        return (query * key).sum()


class Projects(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(4, 2)

    def forward(self, features):
        return self.map(features)


@pytest.mark.parametrize(
    ("cls", "family"),
    [
        (FocalLoss, "losses"),
        (nn.CrossEntropyLoss, "losses"),
        (Scores, "losses"),
        (Projects, "modules"),
        (torch.utils.data.DistributedSampler, "samplers"),
        (torch.utils.data.DataLoader, "loaders"),
        (Timer, "callbacks"),
        (torch.optim.SGD, "optimizers"),
    ],
)
def test_the_family_is_read_from_the_class(cls, family):
    assert family_of(cls) == family


def test_the_kind_is_read_from_the_signature():
    assert spec_for(FocalLoss).kind == "classification"
    assert spec_for(Scores).kind == "pairs"
    assert spec_for(Projects).kind == "features"
    configs = [dict(c) for c in spec_for(FocalLoss, init={"gamma": 1.0}).configs]
    assert configs == [{"gamma": 1.0}, {"gamma": 1.0, "reduction": "sum"}, {"gamma": 1.0, "reduction": "none"}]


class CallsTwice(torch.optim.SGD):
    """Sharpness-aware: the gradient where the gradient leads."""

    closure_calls = 2

    def __init__(self, params, lr: float = 0.1, rho: float = 0.05):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["rho"] = rho
        self.defaults["rho"] = rho

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        moved = [(p, p.clone(), group["rho"]) for group in self.param_groups for p in group["params"]]
        for p, _, rho in moved:
            if p.grad is not None:
                p.add_(p.grad, alpha=rho)
        with torch.enable_grad():
            closure()
        for p, before, _ in moved:
            p.copy_(before)
        super().step()
        return loss


def test_an_optimizer_that_needs_a_closure_is_given_one():
    spec = spec_for(CallsTwice)
    held = {outcome_of(spec, f"O{i}").status for i in (4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18)}
    assert held == {"holds"}
    wrong = outcome_of(replace(spec, cls=type("CallsOnce", (CallsTwice,), {"closure_calls": 1})), "O8")
    assert wrong.fault.what == "calls of the closure"


@pytest.mark.xdist_group("pools")
def test_check_runs_every_property_of_the_family():
    spec = spec_for(Projects)
    outcomes = list(check(Projects))
    assert [o.property.id for o in outcomes] == [p.id for p in properties_for(spec)]
    assert {o.status for o in outcomes} <= {"holds", "does not apply"}
