"""Faults that other libraries' calibration metrics have, and bad input, for every metric that takes predictions.

The metrics are found in the package, so that a new one is held to the same.
"""

import inspect
import math
import warnings

import pytest
import torch
from torch import nn

from trainkit.calibration import metrics
from trainkit.calibration.metrics import (
    AURC,
    ECE,
    KSCalibrationError,
    ProximityInformedECE,
    ReliabilityDiagram,
    ThresholdedACE,
)
from trainkit.testing.metrics.common import leaves_of, same

EXTRA = {
    "num_classes": 3,
    "num_groups": 2,
    "coverage": 0.5,
    "risk": 0.5,
    "radius": 0.1,
}
BESIDE = ("groups", "proximity", "lipschitz")


def predictors():
    """Every metric of logits and target, with whatever else it requires."""
    for name in metrics_named():
        cls = getattr(metrics, name)
        given, taken = inspect.signature(cls).parameters, inspect.signature(cls.update).parameters
        if "input_kind" in given and {"logits", "target"} <= set(taken) and "new_logits" not in taken:
            required = [p.name for p in given.values() if p.default is p.empty]
            classes = ["num_classes"] * ("num_classes" in given)
            yield pytest.param(cls, {k: EXTRA[k] for k in {*required, *classes}}, id=name)


def metrics_named():
    return sorted(n for n, value in vars(metrics).items() if inspect.isclass(value) and hasattr(value, "update"))


def beside(metric, rows):
    """What an update takes beside predictions, target and weight."""
    taken = inspect.signature(type(metric).update).parameters
    values = {
        "groups": torch.arange(rows) % 2,
        "proximity": torch.linspace(0.1, 0.9, rows),
        "lipschitz": torch.ones(rows),
    }
    return {name: values[name] for name in BESIDE if name in taken}


def updated(metric, probs, target, **options):
    metric.update(probs, target, **beside(metric, len(target)), **options)
    return metric


def rows(n=60, seed=0):
    g = torch.Generator().manual_seed(seed)
    probs = torch.randn(n, 3, generator=g, dtype=torch.float64).mul(2).softmax(1)
    return probs, torch.randint(3, (n,), generator=g)


def finite(value):
    """No infinity, and nan only in the bins of a diagram, of which some are empty."""
    parts = [part for _, part in leaves_of(value)]
    return not any(part.isinf().any() or (part.numel() == 1 and part.isnan()) for part in parts)


EVERY = pytest.mark.parametrize(("cls", "config"), list(predictors()))


def test_the_family_is_found():
    assert len(list(predictors())) >= 15


@EVERY
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("input_kind", ["logits", "probs"])
def test_what_is_no_number_raises_and_leaves_the_state(cls, config, bad, input_kind):
    probs, target = rows()
    metric = updated(cls(**config, input_kind=input_kind), probs, target)
    before = {name: state.clone() for name, state in metric.metric_state.items()}
    broken = probs.clone()
    broken[7, 1] = bad
    with pytest.raises(ValueError, match=f"{cls.__name__}: logits must"):
        updated(metric, broken, target)
    for name, state in before.items():
        assert torch.equal(getattr(metric, name), state)


@EVERY
def test_probabilities_that_are_none_raise(cls, config):
    probs, target = rows()
    for wrong, rule in ((2 * probs, r"in \[0, 1\]"), (probs - 0.5, r"in \[0, 1\]"), (0.5 * probs, "that sum to 1")):
        with pytest.raises(ValueError, match=f"{cls.__name__}: logits must hold probabilities {rule}"):
            updated(cls(**config, input_kind="probs"), wrong, target)


@EVERY
def test_targets_that_are_no_class_raise(cls, config):
    probs, target = rows()
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=f"{cls.__name__}: target must"):
            updated(cls(**config, input_kind="probs"), probs, target.index_fill(0, torch.tensor([3]), wrong))


@EVERY
def test_certain_predictions_one_class_and_one_row_are_finite(cls, config):
    probs, _ = rows()
    certain = torch.eye(3, dtype=torch.float64)[torch.arange(60) % 3]
    with warnings.catch_warnings():
        # Of certain predictions that are wrong the likelihood is clamped, and says so; what is left out of itself
        # needs a second row.
        warnings.simplefilter("ignore")
        zeros = torch.zeros(60, dtype=torch.int64)
        assert finite(updated(cls(**config, input_kind="probs"), certain, zeros).compute())
        assert finite(updated(cls(**config, input_kind="probs"), certain, torch.arange(60) % 3).compute())
        assert finite(updated(cls(**config, input_kind="probs"), probs, zeros).compute())
        equal = torch.full((60, 3), 1 / 3, dtype=torch.float64)
        assert finite(updated(cls(**config, input_kind="probs"), equal, torch.arange(60) % 3).compute())


@EVERY
def test_the_order_of_rows_with_ties_does_not_matter(cls, config):
    g = torch.Generator().manual_seed(3)
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    probs, target = probs[torch.randint(3, (60,), generator=g)], torch.randint(3, (60,), generator=g)
    metric, other = (cls(**config, input_kind="probs") for _ in range(2))
    if "ties" in inspect.signature(cls).parameters and getattr(metric, "binning", "") == "equal_mass":
        metric, other = (cls(**config, input_kind="probs", ties="together") for _ in range(2))
    others = beside(metric, 60)
    metric.update(probs, target, **others)
    order = torch.randperm(60, generator=g)
    other.update(probs[order], target[order], **{k: v[order] for k, v in others.items()})
    same("value of shuffled rows", other.compute(), metric.compute())


@EVERY
def test_rows_of_no_weight_are_not_there(cls, config):
    probs, target = rows()
    weight = (torch.arange(60) < 40).double()
    metric, short = (cls(**config, input_kind="probs") for _ in range(2))
    others = beside(metric, 60)
    metric.update(probs, target, weight=weight, **others)
    short.update(probs[:40], target[:40], **{k: v[:40] for k, v in others.items()})
    same("value with weights of zero", metric.compute(), short.compute())
    nothing = cls(**config, input_kind="probs")
    nothing.update(probs, target, weight=torch.zeros(60), **others)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        nothing.compute()
    assert len(heard) <= 1
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match=f"{cls.__name__}: weight must"):
            cls(**config, input_kind="probs").update(
                probs, target, weight=weight.index_fill(0, torch.tensor([2]), bad), **others
            )


@EVERY
def test_a_module_cast_to_bf16_keeps_the_state(cls, config):
    probs, target = rows()
    holder = nn.Module()
    holder.metric = updated(cls(**config, input_kind="probs"), probs, target)
    value = holder.metric.compute()
    dtypes = {name: state.dtype for name, state in holder.metric.metric_state.items()}
    holder.to(torch.bfloat16)
    assert {name: state.dtype for name, state in holder.metric.metric_state.items()} == dtypes
    same("value after the cast", holder.metric.compute(), value, rtol=0)


def test_confidence_one_has_no_bin_of_its_own():
    """Torchmetrics 1.9 puts it into an extra bin: 0.33 in place of 0.29."""
    probs = torch.tensor([1.0, 1.0, 0.95, 0.91, 0.97], dtype=torch.float64)
    target = torch.tensor([1, 0, 1, 1, 0])
    metric = ECE(task="binary", input_kind="probs", n_bins=10)
    metric.update(probs, target)
    assert metric.compute().item() == pytest.approx(abs(probs.sum().item() - 3) / 5, rel=1e-12)


def test_bf16_predictions_are_binned_by_their_own_values():
    probs, target = rows(2000)
    short = probs.max(1).values.bfloat16()
    metric = ECE(task="binary", input_kind="probs")
    metric.update(short, target.clamp_max(1))
    wide = ECE(task="binary", input_kind="probs")
    wide.update(short.double(), target.clamp_max(1))
    assert metric.compute() == wide.compute()


def test_a_perfect_predictor_has_a_floating_error_in_every_norm():
    """Torchmetrics 1.9 gives an integer on the CPU for l2."""
    from trainkit.calibration.metrics import BinnedCalibrationError

    for norm in ("l1", "l2", "max"):
        metric = BinnedCalibrationError(norm=norm, input_kind="probs")
        metric.update(torch.eye(3), torch.arange(3))
        value = metric.compute()
        assert value.dtype == torch.float64
        assert value == 0


@pytest.mark.parametrize(
    ("metric", "word"),
    [
        (KSCalibrationError(), "exact=True"),
        (KSCalibrationError(exact=False), "exact=False"),
        (AURC(exact=False), "exact=False"),
        (ThresholdedACE(num_classes=3, exact=False), "exact=False"),
    ],
)
def test_the_text_of_a_metric_says_whether_it_is_exact(metric, word):
    assert word in repr(metric)


def test_proximity_and_diagram_are_of_the_family():
    assert {ProximityInformedECE, ReliabilityDiagram} <= {param.values[0] for param in predictors()}
