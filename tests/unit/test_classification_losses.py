"""What no property covers: the formulas' special cases, equal forms, and constants of the configuration."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F

from trainkit._core.typing import TENSOR_NAMES
from trainkit.losses import (
    CombinedLoss,
    DualFocalLoss,
    FocalLoss,
    Ramp,
    SigmoidFocalLoss,
    SmoothedCrossEntropyLoss,
    dual_focal_loss,
    focal_loss,
    sigmoid_focal_loss,
    smoothed_cross_entropy_loss,
)
from trainkit.testing import LossSpec, cases_of, properties_for, run_property

WEIGHTS = [0.5, 2.0, 1.0, 0.0, 3.0]


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    return 2 * torch.randn(6, 5, generator=g, dtype=torch.float64), torch.tensor([0, 4, 2, 3, 1, 1])


def gradient(loss, logits, *args, **kwargs):
    leaf = logits.clone().requires_grad_()
    loss(leaf, *args, **kwargs).sum().backward()
    return leaf.grad


@pytest.mark.parametrize(
    "loss",
    [
        FocalLoss(gamma=1.5, alpha=WEIGHTS),
        SmoothedCrossEntropyLoss(class_weight=WEIGHTS),
        SmoothedCrossEntropyLoss(smoothing_mode="exclusive", class_weight=WEIGHTS),
        SmoothedCrossEntropyLoss(class_weight=WEIGHTS, weight_smoothing=True),
    ],
)
def test_a_one_hot_target_gives_the_value_of_the_index(loss, batch):
    logits, target = batch
    soft = F.one_hot(target, 5).double()
    torch.testing.assert_close(loss(logits, soft), loss(logits, target), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(loss, logits, soft), gradient(loss, logits, target), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_gradient_equals_its_closed_form(gamma, batch):
    logits, target = batch
    p = logits.softmax(1)
    own = p.gather(1, target[:, None])
    slope = gamma * own * (1 - own) ** (gamma - 1) * own.log() - (1 - own) ** gamma
    expected = slope * (F.one_hot(target, 5) - p)
    torch.testing.assert_close(
        gradient(FocalLoss(gamma, reduction="sum"), logits, target), expected, rtol=1e-10, atol=1e-14
    )


def test_a_detached_weight_scales_the_gradient_of_cross_entropy(batch):
    logits, target = batch
    p = logits.softmax(1)
    own = p.gather(1, target[:, None])
    expected = (1 - own) ** 2 * (p - F.one_hot(target, 5))
    detached = FocalLoss(2.0, detach_weight=True, reduction="sum")
    torch.testing.assert_close(gradient(detached, logits, target), expected, rtol=1e-10, atol=1e-14)
    assert torch.equal(detached(logits, target), FocalLoss(2.0, reduction="sum")(logits, target))


@pytest.mark.parametrize("loss", [focal_loss, dual_focal_loss])
def test_gamma_zero_is_cross_entropy(loss, batch):
    logits, target = batch
    torch.testing.assert_close(loss(logits, target, gamma=0.0), F.cross_entropy(logits, target), rtol=1e-15, atol=0)


def test_dual_focal_by_hand():
    """Against probabilities: the target on top, then the target below all others."""
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], dtype=torch.float64).log()
    target = torch.tensor([0, 2])
    rows = dual_focal_loss(logits, target, gamma=2.0, reduction="none")
    assert rows.tolist() == pytest.approx([0.8**2 * math.log(2), 0.9**2 * math.log(10)], rel=1e-14)
    rows = dual_focal_loss(logits, target, gamma=2.0, alpha=[0.5, 1.0, 3.0], reduction="none")
    assert rows.tolist() == pytest.approx([0.5 * 0.64 * math.log(2), 3 * 0.81 * math.log(10)], rel=1e-14)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 5.0])
def test_dual_focal_gradient_flows_through_the_runner_up(gamma, batch):
    logits, target = batch
    p = logits.softmax(1)
    own = p.gather(1, target[:, None])
    next_below, place = torch.where(p < own, p, 0.0).max(1, keepdim=True)
    one_hot = F.one_hot(target, 5).double()
    lead = own * (one_hot - p) - next_below * (torch.zeros_like(p).scatter(1, place, 1.0) - p)
    factor = 1 - own + next_below
    expected = gamma * factor ** (gamma - 1) * lead * own.log() - factor**gamma * (one_hot - p)
    torch.testing.assert_close(
        gradient(DualFocalLoss(gamma, reduction="sum"), logits, target), expected, rtol=1e-10, atol=1e-14
    )


def test_a_class_that_ties_with_the_target_is_not_its_runner_up():
    p = torch.tensor([[0.4, 0.4, 0.2], [0.4, 0.2, 0.4], [0.4, 0.3, 0.3]], dtype=torch.float64)
    target = torch.tensor([0, 1, 0])
    rows = dual_focal_loss(p.log(), target, gamma=1.0, reduction="none")
    expected = [0.8 * -math.log(0.4), 0.8 * -math.log(0.2), 0.9 * -math.log(0.4)]
    assert rows.tolist() == pytest.approx(expected, rel=1e-14)
    equal = dual_focal_loss(torch.full((1, 4), 1e4), torch.tensor([2]), gamma=1.0)
    assert equal.item() == pytest.approx(0.75 * math.log(4), rel=1e-6)


def test_tied_runners_up_pass_the_gradient_to_the_first():
    logits = torch.tensor([[2.0, 0.5, 0.5]], dtype=torch.float64)
    grad = gradient(DualFocalLoss(), logits, torch.tensor([0]))[0]
    assert grad[1] > grad[2]


@pytest.mark.parametrize("gamma", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dual_focal_is_finite_at_saturated_logits(gamma, dtype):
    logits = torch.tensor(
        [[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 1e4, -1e4], [1e4, 1e4, -1e4], [90.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        dtype=dtype,
    )
    leaf = logits.requires_grad_()
    rows = dual_focal_loss(leaf, torch.zeros(6, dtype=torch.int64), gamma=gamma, reduction="none")
    (grad,) = torch.autograd.grad(rows.sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), leaf)
    assert rows[:3].tolist() == [0.0, 20000.0, 10000.0]
    assert rows.isfinite().all()
    assert grad.isfinite().all()
    assert second.isfinite().all()


def test_one_alpha_is_that_of_class_one_of_two(batch):
    logits, target = batch[0][:, :2], batch[1] % 2
    assert torch.equal(FocalLoss(alpha=0.25)(logits, target), FocalLoss(alpha=[0.75, 0.25])(logits, target))
    with pytest.raises(ValueError, match="FocalLoss: alpha must have 5 entries, one for each class, got 0.25"):
        FocalLoss(alpha=0.25)(*batch)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_weighted_smoothing_is_that_of_torch(label_smoothing, batch):
    logits, target = batch
    weight = torch.tensor(WEIGHTS, dtype=torch.float64)
    for reduction in ("mean", "sum", "none"):
        got = smoothed_cross_entropy_loss(
            logits,
            target,
            label_smoothing=label_smoothing,
            class_weight=WEIGHTS,
            weight_smoothing=True,
            reduction=reduction,
        )
        expected = F.cross_entropy(logits, target, weight, label_smoothing=label_smoothing, reduction=reduction)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_sigmoid_focal_without_focus_is_binary_cross_entropy(batch):
    logits = batch[0]
    target = torch.rand(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    factor = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    got = sigmoid_focal_loss(logits, target, gamma=0.0, alpha=None, pos_weight=factor.tolist())
    expected = F.binary_cross_entropy_with_logits(logits, target, pos_weight=factor)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_soft_binary_target_has_an_exact_gradient(gamma):
    logits = torch.tensor([-3.0, -0.2, 0.5, 8.0], dtype=torch.float64)
    target = torch.tensor([0.3, 0.9, 0.1, 0.6], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: sigmoid_focal_loss(logits, t, gamma=gamma), target)


def test_normalizers_divide_the_sum():
    logits = torch.tensor([0.3, -1.0, 2.0, 0.1])
    target = torch.tensor([1.0, 1.0, 1.0, -100.0])
    total = SigmoidFocalLoss(reduction="sum")(logits, target)
    torch.testing.assert_close(SigmoidFocalLoss(normalizer="num_positive")(logits, target), total / 3)
    torch.testing.assert_close(SigmoidFocalLoss(normalizer=7.0)(logits, target), total / 7)
    none = torch.zeros(4)
    expected = SigmoidFocalLoss(reduction="sum")(logits, none)
    assert torch.equal(SigmoidFocalLoss(normalizer="num_positive")(logits, none), expected)
    assert torch.equal(sigmoid_focal_loss(logits, none, normalizer="num_positive"), expected)


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("normalizer", ["num_positive", 3.0])
def test_normalizers_count_all_ranks(normalizer, pool):
    spec = LossSpec(cls=SigmoidFocalLoss, kind="multilabel", configs=({"normalizer": normalizer},))
    (rule,) = [p for p in properties_for(spec) if p.id == "L16"]
    outcome = run_property(rule, cases_of(spec)[0], pool)
    assert outcome.status == "holds", outcome.fault


@pytest.mark.parametrize("loss", [FocalLoss(), DualFocalLoss(), SmoothedCrossEntropyLoss()])
def test_logits_without_batch_and_dense_logits(loss, batch):
    logits, target = batch
    torch.testing.assert_close(loss(logits[0], target[0]), loss(logits[:1], target[:1]))
    dense, labels = logits.view(2, 3, 5).movedim(2, 1), target.view(2, 3)
    torch.testing.assert_close(loss(dense, labels), loss(logits, target))


@pytest.mark.parametrize(
    "loss", [FocalLoss(0.5), DualFocalLoss(0.5), SmoothedCrossEntropyLoss(smoothing_mode="exclusive")]
)
def test_one_class_costs_nothing(loss):
    logits = torch.tensor([[3.0], [-1e4]], requires_grad=True)
    value = loss(logits, torch.tensor([0, 0]))
    value.backward()
    assert value.item() == 0.0
    assert not logits.grad.any()


def test_saturated_logits_give_the_exact_values():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]])
    target = torch.tensor([0, 0])
    for gamma in (0.0, 0.5, 2.0):
        rows = FocalLoss(gamma, reduction="none")(logits, target)
        assert rows.tolist() == [0.0, 20000.0]
    rows = SigmoidFocalLoss(0.5, alpha=None, reduction="none")(torch.tensor([1e4, -1e4]), torch.tensor([1.0, 1.0]))
    assert rows.tolist() == [0.0, 10000.0]


@pytest.mark.parametrize(
    ("loss", "rtol"),
    [
        (FocalLoss(), 0),
        (FocalLoss(alpha=WEIGHTS), 0),
        (SmoothedCrossEntropyLoss(), 0),
        # The exponential of a whole vector may round otherwise than that of its rest, as which a row may come.
        (DualFocalLoss(), 1e-14),
    ],
)
def test_nothing_of_an_ignored_row_reaches_value_or_gradient(loss, rtol, batch):
    logits, target = batch
    logits = logits.clone()
    logits[1] = math.nan
    logits[2] = math.inf
    ignored = target.clone()
    ignored[1] = -100
    mask = torch.tensor([True, True, False, True, True, True])
    keep = [0, 3, 4, 5]
    torch.testing.assert_close(loss(logits, ignored, mask=mask), loss(logits[keep], target[keep]), rtol=rtol, atol=0)
    grad = gradient(loss, logits, ignored, mask=mask)
    assert not grad[[1, 2]].any()
    torch.testing.assert_close(grad[keep], gradient(loss, logits[keep], target[keep]))


def test_nan_propagates_where_it_counts(batch):
    logits, target = batch
    logits = logits.clone()
    logits[0, 0] = math.nan
    assert FocalLoss()(logits, target).isnan()
    assert DualFocalLoss()(logits, target).isnan()
    assert SmoothedCrossEntropyLoss()(logits, target).isnan()
    assert SigmoidFocalLoss()(logits, torch.zeros(6, 5)).isnan()


def test_constants_keep_their_precision_and_belong_to_the_configuration(batch):
    logits, target = batch
    loss = FocalLoss(alpha=[0.1, 0.2, 0.3, 0.4, 0.7])
    value = loss(logits, target)
    cast = torch.nn.Sequential(loss).to(torch.bfloat16)[0]
    assert cast.alpha.dtype == torch.float64
    assert torch.equal(cast(logits, target), value)
    assert list(loss.state_dict()) == []


def test_value_checks_can_be_turned_off(batch):
    logits, target = batch
    weight = -torch.ones(6)
    with pytest.raises(ValueError, match="FocalLoss: weight must be finite and >= 0, got -1.0 at index"):
        FocalLoss()(logits, target, weight=weight)
    assert FocalLoss(validate_args=False)(logits, target, weight=weight).isfinite()


def test_small_integer_targets_are_indices(batch):
    logits, target = batch
    assert torch.equal(FocalLoss()(logits, target.to(torch.int32)), FocalLoss()(logits, target))


def test_combined_loss_names_the_part_that_lacks_a_tensor(batch):
    loss = CombinedLoss([(1.0, FocalLoss())])
    with pytest.raises(ValueError, match="FocalLoss: needs the tensor 'target', but only these were given: logits"):
        loss(batch[0])


def test_combined_loss_takes_the_whole_vocabulary():
    names = set(inspect.signature(CombinedLoss.forward).parameters) - {"self", "return_parts"}
    assert names == set(TENSOR_NAMES)


def test_combined_loss_reports_its_parts(batch):
    parts = [(0.5, FocalLoss()), (2.0, FocalLoss(gamma=0.0)), (Ramp(1.0, 0.0), SmoothedCrossEntropyLoss())]
    loss = CombinedLoss(parts)
    loss.set_progress(0.25)
    total, values = loss(*batch, return_parts=True)
    assert list(values) == ["FocalLoss", "FocalLoss_1", "SmoothedCrossEntropyLoss"]
    expected = 0.5 * values["FocalLoss"] + 2.0 * values["FocalLoss_1"] + 0.75 * values["SmoothedCrossEntropyLoss"]
    torch.testing.assert_close(total, expected)
    other = CombinedLoss(parts)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(*batch), total)
    with pytest.raises(ValueError, match="CombinedLoss: progress must be >= 0 and <= 1, got 1.5"):
        loss.set_progress(1.5)


@pytest.mark.parametrize(
    ("ramp", "progress", "weight"),
    [
        (Ramp(1.0, 3.0), 0.0, 1.0),
        (Ramp(1.0, 3.0), 0.5, 2.0),
        (Ramp(1.0, 3.0, begin=0.2, until=0.4), 0.1, 1.0),
        (Ramp(1.0, 3.0, begin=0.2, until=0.4), 0.35, 2.5),
        (Ramp(1.0, 3.0, begin=0.2, until=0.4), 0.9, 3.0),
        (Ramp(0.0, 1.0, shape="cosine"), 0.25, (1 - math.cos(math.pi / 4)) / 2),
    ],
)
def test_ramps(ramp, progress, weight):
    assert ramp(torch.tensor(progress, dtype=torch.float64)).item() == pytest.approx(weight, rel=1e-12)


def test_ramps_say_what_is_wrong():
    with pytest.raises(ValueError, match="Ramp: until must be > 0.5 and <= 1, got 0.4"):
        Ramp(0.0, 1.0, begin=0.5, until=0.4)
    with pytest.raises(ValueError, match="Ramp: shape must be one of 'linear', 'cosine', got 'step'"):
        Ramp(0.0, 1.0, shape="step")
