"""Behaviours of the calibration metrics that no property covers."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainkit._core.metric import StreamingMetric
from trainkit.calibration.calibrators import temperature_scaling
from trainkit.calibration.metrics import (
    BrierScore,
    NegativeLogLikelihood,
    NLLDecomposition,
    brier_score,
    negative_log_likelihood,
    nll_decomposition,
)
from trainkit.testing import as_tensor

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.3, 0.2, -0.4], [-1.0, 3.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
TARGET = torch.tensor([0, 2, 1, 1])
BINARY = torch.tensor([1.5, -0.3, 0.0, -2.0], dtype=torch.float64)
LABELS = torch.tensor([1, 1, 0, 0])
BOTH = pytest.mark.parametrize("function", [brier_score, negative_log_likelihood], ids=lambda f: f.__name__)


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(as_tensor(got).double(), as_tensor(expected).double(), rtol=rtol, atol=1e-14)


def value(metric, *batches):
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def test_values_of_forms_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    target = torch.tensor([0, 1])
    full = ((0.3**2 + 0.2**2 + 0.1**2) + (0.3**2 + 0.7**2 + 0.4**2)) / 2
    close(brier_score(p, target, input_kind="probs"), full)
    close(brier_score(p, target, input_kind="probs", form="half"), full / 2)
    close(brier_score(p, target, input_kind="probs", form="top_label"), (0.3**2 + 0.4**2) / 2)
    close(negative_log_likelihood(p, target, input_kind="probs"), -(math.log(0.7) + math.log(0.3)) / 2)


@BOTH
@pytest.mark.parametrize("shape", ["(N,)", "(N, 1)", "(N, 2)"])
def test_binary_is_two_classes(function, shape):
    two = torch.stack([torch.zeros_like(BINARY), BINARY], 1)
    logits = {"(N,)": BINARY, "(N, 1)": BINARY.unsqueeze(1), "(N, 2)": two}[shape]
    close(function(logits, LABELS, task="binary"), function(two, LABELS))


def test_binary_half_is_the_usual_square():
    close(brier_score(BINARY, LABELS, task="binary", form="half"), ((BINARY.sigmoid() - LABELS) ** 2).mean())
    close(brier_score(BINARY, LABELS, task="binary", form="top_label"), ((BINARY.sigmoid() - LABELS) ** 2).mean())


@BOTH
@pytest.mark.parametrize("target", [LABELS, LABELS.bool(), LABELS.double(), LABELS.to(torch.uint8)])
def test_binary_targets_of_any_dtype(function, target):
    close(function(BINARY, target, task="binary"), function(BINARY, LABELS, task="binary"))


@BOTH
def test_multilabel_is_the_mean_over_labels(function):
    target = F.one_hot(TARGET, 3)
    each = [function(LOGITS[:, label], target[:, label], task="binary") for label in range(3)]
    close(function(LOGITS, target, task="multilabel"), torch.stack(each).mean())


@BOTH
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_dense_shapes_are_flattened(function, task):
    dense = LOGITS.repeat(3, 1)[:12].view(2, 6, 3).movedim(-1, 1).reshape(2, 3, 2, 3)
    flat = dense.movedim(1, -1).reshape(-1, 3)
    target = torch.arange(12).view(2, 2, 3) % 3
    if task == "multilabel":
        target = F.one_hot(target, 3).movedim(-1, 1)
    rows = target.movedim(1, -1).reshape(-1, 3) if task == "multilabel" else target.reshape(-1)
    close(function(dense, target, task=task), function(flat, rows, task=task))


@BOTH
def test_kinds_of_input_agree(function):
    close(function(LOGITS.softmax(1), TARGET, input_kind="probs"), function(LOGITS, TARGET))
    close(function(LOGITS.log_softmax(1), TARGET, input_kind="log_probs"), function(LOGITS, TARGET))
    own = function(BINARY, LABELS, task="binary")
    close(function(BINARY.sigmoid(), LABELS, task="binary", input_kind="probs"), own)
    close(function(F.logsigmoid(BINARY), LABELS, task="binary", input_kind="log_probs"), own)


@BOTH
def test_logits_inside_the_unit_interval_stay_logits(function):
    logits = torch.tensor([[0.2, 0.8], [0.9, 0.1]], dtype=torch.float64)
    target = torch.tensor([0, 0])
    close(function(logits, target), function(logits.softmax(1), target, input_kind="probs"))
    assert not torch.isclose(function(logits, target), function(logits, target, input_kind="probs"))


@BOTH
def test_soft_targets_that_are_certain_equal_indices(function):
    close(function(LOGITS, F.one_hot(TARGET, 3).double()), function(LOGITS, TARGET))


@BOTH
def test_soft_targets_are_linear(function):
    """A target of (1/4, 0, 3/4) is one of class 0 and three of class 2."""
    soft = torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64)
    close(function(LOGITS[:1], soft), function(LOGITS[:1].repeat(4, 1), torch.tensor([0, 2, 2, 2])))


@BOTH
@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
def test_ignored_targets_count_for_nothing(function, task):
    logits, target = {
        "multiclass": (LOGITS, TARGET),
        "binary": (BINARY, LABELS),
        "multilabel": (LOGITS, F.one_hot(TARGET, 3)),
    }[task]
    kept = function(logits[:3], target[:3], task=task)
    ignored, garbage = target.clone(), logits.clone()
    ignored[3], garbage[3] = 255, math.nan
    close(function(garbage, ignored, task=task, ignore_index=255), kept)


@BOTH
def test_ignore_index_does_not_wrap_around_in_small_dtypes(function):
    """In uint8, -100 would be 156."""
    with pytest.raises(ValueError, match="got 156"):
        function(LOGITS, torch.tensor([0, 2, 1, 156], dtype=torch.uint8))


@BOTH
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_weights_equal_repetition(function, task):
    times = torch.tensor([1, 3, 2, 0])
    target = TARGET if task == "multiclass" else F.one_hot(TARGET, 3)
    weight = times if task == "multiclass" else times.unsqueeze(1).expand(4, 3)
    repeated = function(LOGITS.repeat_interleave(times, 0), target.repeat_interleave(times, 0), task=task)
    close(function(LOGITS, target, weight=weight.double(), task=task), repeated)


def test_per_class_is_the_mean_over_targets_of_the_class():
    metric = NegativeLogLikelihood(num_classes=4, per_class=True)
    logits = torch.cat([LOGITS, torch.zeros(4, 1, dtype=torch.float64)], 1)
    rows = -logits.log_softmax(1)[torch.arange(4), TARGET]
    got = value(metric, (logits[:1], TARGET[:1]), (logits[1:], TARGET[1:]))
    close(got[:3], torch.stack([rows[0], (rows[2] + rows[3]) / 2, rows[1]]))
    assert got[3].isnan()


def test_per_class_of_labels_is_one_value_a_label():
    target = F.one_hot(TARGET, 3)
    got = negative_log_likelihood(LOGITS, target, task="multilabel", num_classes=3, per_class=True)
    each = [negative_log_likelihood(LOGITS[:, k], target[:, k], task="binary") for k in range(3)]
    close(got, torch.stack(each))


def test_clamped_probabilities_are_counted_and_told_once():
    metric = NegativeLogLikelihood(input_kind="probs")
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    metric.update(sure, torch.tensor([1, 0, 0]))
    with pytest.warns(UserWarning, match="NegativeLogLikelihood: 1 probabilities of targets below 1e-12") as heard:
        got = metric.compute()
    assert len(heard) == 1
    close(got, (-math.log(1e-12) - math.log(0.5)) / 3, rtol=1e-6)
    metric.update(sure, torch.tensor([1, 1, 1]))
    metric.compute()
    assert metric.clamped == 3
    assert metric.clamped.dtype == torch.int64
    metric.reset()
    assert metric.clamped == 0
    with pytest.warns(UserWarning, match="2 probabilities"):
        negative_log_likelihood(sure, torch.tensor([1, 1, 0]), input_kind="probs")


def test_clamping_ignores_what_does_not_count():
    metric = NegativeLogLikelihood(input_kind="probs")
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    metric.update(sure, torch.tensor([1, 0]), weight=torch.tensor([0.0, 1.0]))
    close(metric.compute(), 0.0)
    assert metric.clamped == 0


def test_certain_log_probabilities_of_a_binary_task_are_clamped():
    metric = NegativeLogLikelihood(task="binary", input_kind="log_probs")
    metric.update(torch.zeros(2), torch.tensor([0, 1]))
    with pytest.warns(UserWarning, match="1 probabilities"):
        close(metric.compute(), -math.log(1e-12) / 2, rtol=1e-6)


def test_the_logarithm_of_zero_is_a_log_probability():
    log_p = torch.tensor([[0.0, -math.inf], [math.log(0.5)] * 2], dtype=torch.float64)
    target = torch.tensor([0, 1])
    close(negative_log_likelihood(log_p, target, input_kind="log_probs"), math.log(2) / 2)
    close(brier_score(log_p, target, input_kind="log_probs"), 0.25)
    with pytest.warns(UserWarning, match="1 probabilities"):
        close(negative_log_likelihood(log_p[:1], target[1:], input_kind="log_probs"), -math.log(1e-12))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="logits must hold log-probabilities <= 0"):
            brier_score(torch.tensor([[bad, 0.0]]), target[:1], input_kind="log_probs")


def test_extreme_logits_give_finite_likelihoods():
    close(negative_log_likelihood(torch.tensor([[1e4, -1e4]]), torch.tensor([1])), 2e4, rtol=1e-6)
    close(negative_log_likelihood(torch.tensor([1e4]), torch.tensor([0]), task="binary"), 1e4, rtol=1e-6)


@pytest.mark.parametrize("cls", [BrierScore, NegativeLogLikelihood])
@pytest.mark.parametrize("weight", [None, torch.zeros(4)])
def test_nothing_to_average_is_nan_with_one_warning(cls, weight):
    metric = cls()
    with pytest.warns(UserWarning, match="before the ``update``") as heard:
        assert metric.compute().isnan()
    assert len(heard) == 1
    metric.update(LOGITS, torch.full((4,), -100) if weight is None else TARGET, weight=weight)
    with pytest.warns(UserWarning, match=f"{cls.__name__}: the value is nan") as heard:
        assert metric.compute().isnan()
    assert len(heard) == 1


def test_a_module_cast_to_bf16_leaves_the_metric_in_fp64():
    model = nn.Sequential(nn.Linear(3, 3), BrierScore())
    metric = model[1]
    metric.update(LOGITS, TARGET)
    before = metric.total.clone()
    model.to(torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16
    assert metric.total.dtype == metric.weight_sum.dtype == torch.float64
    assert torch.equal(metric.total, before)
    assert metric.dtype == torch.float32
    close(metric.compute(), brier_score(LOGITS, TARGET))


def test_states_move_between_devices():
    metric = NegativeLogLikelihood().to("meta")
    assert metric.total.device.type == metric.device.type == "meta"
    assert metric.total.dtype == torch.float64
    metric.reset()
    assert metric.clamped.device.type == "meta"


def test_sums_of_a_million_rows_do_not_drift():
    metric = NegativeLogLikelihood()
    logits = torch.tensor([[0.1, 0.0]]).expand(250_000, 2)
    for _ in range(4):
        metric.update(logits, torch.zeros(250_000, dtype=torch.int64))
    close(metric.compute(), negative_log_likelihood(logits[:1], torch.tensor([0])), rtol=1e-12)


def test_values_are_not_checked_without_validation():
    p = torch.tensor([[0.9, 0.9]], dtype=torch.float64)
    close(brier_score(p, torch.tensor([0]), input_kind="probs", validate_args=False), 0.01 + 0.81)


@BOTH
def test_rounded_probabilities_pass(function):
    p = torch.randn(8, 100, generator=torch.Generator().manual_seed(0)).softmax(1)
    for dtype in (torch.bfloat16, torch.float16):
        function(p.to(dtype), torch.arange(8), input_kind="probs")


def test_a_copy_of_a_copy_updates_without_gradients():
    metric = pickle.loads(pickle.dumps(copy.deepcopy(BrierScore())))
    assert not metric(LOGITS.clone().requires_grad_(), TARGET).requires_grad


class Differentiable(StreamingMetric):
    is_differentiable = True

    def __init__(self, validate_args: bool = True) -> None:
        super().__init__(validate_args)
        self.add_sums("total", shape=(2,))
        self.add_counts("count")

    def update(self, logits):
        self.total = self.total + logits.square().sum(0)
        self.count = self.count + len(logits)

    def compute(self):
        return self.mean(self.total, self.count)


def test_a_differentiable_metric_keeps_the_graph_in_forward_only():
    metric, logits = Differentiable(), torch.ones(3, 2, requires_grad=True)
    metric(logits).sum().backward()
    close(logits.grad, torch.full((3, 2), 2 / 3))
    assert not metric.total.requires_grad
    metric.update(logits)
    assert not metric.compute().requires_grad


def computed_twice(rows):
    metric = BrierScore()
    values = []
    for target in (TARGET, TARGET.roll(1)):
        if rows:
            metric.update(LOGITS, target)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values.append(metric.compute())
    return values


@pytest.mark.xdist_group("ranks")
def test_a_rank_without_data_syncs_at_every_compute(pool):
    """With torchmetrics' cache it would give back its first value, and the other rank would wait for it."""
    for first, second in pool.run(computed_twice, [(4,), (0,)]):
        close(first, brier_score(LOGITS, TARGET))
        close(second, brier_score(LOGITS.repeat(2, 1), torch.cat([TARGET, TARGET.roll(1)])))


class TestNLLDecomposition:
    def test_parts_add_up_to_what_the_calibrator_and_the_score_give(self):
        parts = nll_decomposition(3 * LOGITS, TARGET)
        temperature = temperature_scaling(3 * LOGITS, TARGET)
        close(parts["temperature"], temperature)
        close(parts["refinement"], F.cross_entropy(3 * LOGITS / temperature, TARGET))
        close(parts["nll"], negative_log_likelihood(3 * LOGITS, TARGET))
        close(parts["refinement"] + parts["calibration"], parts["nll"])

    def test_scaling_the_logits_changes_the_calibration_part_alone(self):
        close(nll_decomposition(7 * LOGITS, TARGET)["refinement"], nll_decomposition(LOGITS, TARGET)["refinement"])

    def test_kinds_of_input_agree(self):
        wanted = nll_decomposition(LOGITS, TARGET)
        for kind, given in (("probs", LOGITS.softmax(1)), ("log_probs", LOGITS.log_softmax(1))):
            found = nll_decomposition(given, TARGET, input_kind=kind)
            for name, number in wanted.items():
                close(found[name], number)

    def test_certain_probabilities_are_raised_to_the_floor(self):
        p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
        parts = nll_decomposition(p, torch.tensor([0, 1, 1, 0]), input_kind="probs")
        close(parts["nll"], -(math.log(1e-12) + math.log(0.5)) / 4)
        # Of the three rows that a temperature changes, two are right.
        close(parts["refinement"], (-2 * math.log(2 / 3) - math.log(1 / 3) - math.log(0.5)) / 4, rtol=1e-9)

    def test_nothing_that_counts_gives_nan(self):
        metric = NLLDecomposition()
        metric.update(LOGITS, torch.full((4,), -100))
        with pytest.warns(UserWarning, match="NLLDecomposition: the value is nan"):
            assert all(math.isnan(number) for number in metric.compute().values())
