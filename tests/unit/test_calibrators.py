"""Behaviours of the calibrators that no property covers."""

import copy
import io
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainkit.calibration.calibrators import (
    Calibrator,
    NotFittedError,
    TemperatureScaling,
    _temperature,
    temperature_scaling,
)
from trainkit.calibration.calibrators._rows import Solution
from trainkit.calibration.metrics import ECE, BrierScore, ClasswiseECE, NegativeLogLikelihood
from trainkit.testing import as_tensor
from trainkit.testing.calibrators.fits import fit_on_rank


def over_confident(n=400, classes=5, temperature=2.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    gumbel = -(-torch.rand(n, classes, generator=g, dtype=torch.float64).log()).log()
    return logits, (logits / temperature + gumbel).argmax(1)


LOGITS, TARGET = over_confident()
FITTED = TemperatureScaling().fit(LOGITS, TARGET)


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(as_tensor(got).double(), as_tensor(expected).double(), rtol=rtol, atol=1e-14)


def test_temperature_is_where_the_slope_vanishes():
    u = (1 / FITTED.temperature).requires_grad_()
    value = F.cross_entropy(u * LOGITS, TARGET)
    (slope,) = torch.autograd.grad(value, u)
    assert abs(float(slope)) < 1e-13
    close(FITTED.nll, value.detach())
    assert 1.7 < float(FITTED.temperature) < 2.4
    assert FITTED.converged
    assert int(FITTED.iterations) <= 8


def test_two_classes_in_closed_form():
    """Three right and one wrong at a margin of 2: the calibrated odds are 3 to 1."""
    logits = torch.tensor([[2.0, 0.0]] * 4, dtype=torch.float64)
    calibrator = TemperatureScaling().fit(logits, torch.tensor([0, 0, 0, 1]))
    close(calibrator.temperature, 2 / math.log(3))
    close(calibrator.predict_proba(logits[:1]), [[0.75, 0.25]])
    single = TemperatureScaling(task="binary").fit(logits[:, 0], torch.tensor([1, 1, 1, 0]))
    close(single.temperature, 2 / math.log(3))
    close(single.predict_proba(logits[:, :1]), torch.full((4, 1), 0.75))


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e30, 1e-30])
def test_temperature_scales_with_the_logits(factor):
    scaled = TemperatureScaling().fit(factor * LOGITS, TARGET)
    close(scaled.temperature, factor * FITTED.temperature)
    assert scaled.converged


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_logits_far_from_zero(shift):
    close(TemperatureScaling().fit(LOGITS + shift, TARGET).temperature, FITTED.temperature, rtol=1e-9)


def test_logits_of_ten_thousand():
    logits = 1e4 * torch.tensor([[1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    calibrator = TemperatureScaling().fit(logits, torch.tensor([0, 0, 1, 1]))
    close(calibrator.temperature, 2e4 / math.log(3))
    close(calibrator.predict_proba(logits[:1]), [[0.75, 0.25]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_single_precision_gives_the_fit_of_double(dtype):
    """Another library's fit of fp32 probabilities stays at a temperature of exactly 1."""
    logits, target = over_confident(2000, 100, temperature=1 / 0.6)
    probs = logits.softmax(1).float()
    expected = temperature_scaling(probs.double(), target, input_kind="probs")
    assert abs(float(expected) - 1 / 0.6) < 0.1
    close(temperature_scaling(probs, target, input_kind="probs"), expected)
    rounded = logits.to(dtype)
    close(temperature_scaling(rounded, target), temperature_scaling(rounded.double(), target))


def test_kinds_of_input_agree():
    expected = FITTED.predict_proba(LOGITS)
    for kind, predictions in {"probs": LOGITS.softmax(1), "log_probs": LOGITS.log_softmax(1)}.items():
        calibrator = TemperatureScaling(input_kind=kind).fit(predictions, TARGET)
        close(calibrator.temperature, FITTED.temperature, rtol=1e-9)
        close(calibrator.predict_proba(predictions), expected, rtol=1e-8)


def test_probabilities_of_zero_and_one():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    calibrator = TemperatureScaling(input_kind="probs").fit(probs, torch.tensor([0, 1, 0, 1]))
    # Two of three sure predictions hold, so that the odds of the floor become 2 to 1.
    close(calibrator.temperature, -math.log(1e-12) / math.log(2))
    close(calibrator.predict_proba(probs)[0], [2 / 3, 1 / 3])
    single = TemperatureScaling(task="binary", input_kind="probs").fit(probs[:, 1], torch.tensor([0, 1, 0, 1]))
    close(single.predict_proba(torch.tensor([0.0, 1.0])), [1 / 3, 2 / 3], rtol=1e-6)


def test_dense_rows_with_ignored_ones():
    dense, target = LOGITS.view(20, 4, 5, 5).movedim(-1, 1), TARGET.view(20, 4, 5)
    close(temperature_scaling(dense, target), FITTED.temperature)
    ignored, garbage = target.clone(), dense.clone()
    ignored[:, 0], garbage[:, :, 0] = 255, math.nan
    calibrator = TemperatureScaling(ignore_index=255).fit(garbage, ignored)
    close(calibrator.temperature, temperature_scaling(dense[:, :, 1:], target[:, 1:]))
    assert int(calibrator.n_fit) == 300
    assert calibrator(dense).shape == dense.shape
    close(calibrator.predict_proba(dense).sum(1), torch.ones(20, 4, 5))


def test_blocks_are_those_of_one_reading():
    """A large fit is read in blocks, and an error names the place in the whole."""
    logits, target = LOGITS.repeat(500, 1), TARGET.repeat(500)
    assert logits.numel() > 2 * 2**18
    close(temperature_scaling(logits, target), FITTED.temperature)
    target[150_000] = 9
    with pytest.raises(ValueError, match=r"got 9 at index \(150000,\)"):
        temperature_scaling(logits, target)


@pytest.mark.parametrize(
    ("logits", "target", "bounds", "temperature", "words"),
    [
        ([[3.0, 0.0], [0.0, 2.0]], [0, 1], {"t_min": 0.01}, 0.01, "largest logit of its row"),
        ([[3.0, 0.0], [2.0, 0.0], [0.0, 2.5]], [1, 1, 0], {"t_max": 100.0}, 100.0, "speak against the targets"),
        ([[2.0, 0.0]] * 4, [0, 0, 0, 1], {"t_max": 1.5}, 1.5, "bound t_max=1.5 was reached"),
        ([[2.0, 0.0]] * 4, [0, 0, 0, 1], {"t_min": 4.0}, 4.0, "bound t_min=4 was reached"),
        ([[2.0, 0.0]] * 4, [0, 0, 0, 1], {"t_min": 4000.0}, 4000.0, "bound t_min=4000 was reached"),
        ([[1.0, 1.0]] * 3, [0, 0, 1], {}, 1.0, "logits of every row are equal"),
        ([[1.0, 1.0]] * 3, [0, 0, 1], {"t_min": 2.0}, 2.0, "logits of every row are equal"),
        ([[3.0, 0.0], [0.0, 3.0]], [0, 1], {}, 1.5e-3, "bound t_min=0.0015 was reached"),
    ],
)
def test_where_no_temperature_is_best(logits, target, bounds, temperature, words):
    calibrator = TemperatureScaling(**bounds)
    with pytest.warns(UserWarning, match=words) as heard:
        calibrator.fit(torch.tensor(logits), torch.tensor(target))
    assert heard[0].filename == __file__
    close(calibrator.temperature, temperature)
    assert not calibrator.converged
    close(calibrator.nll, F.cross_entropy(torch.tensor(logits).double() / temperature, torch.tensor(target)))


def test_bounds_that_hold_the_optimum_change_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bounds in ((0.01, 100.0), (1e-9, 1e9), (1.0, 3.0)):
            close(temperature_scaling(LOGITS, TARGET, t_min=bounds[0], t_max=bounds[1]), FITTED.temperature)


def test_nearly_separable_rows_find_their_optimum():
    """One wrong row in a thousand sure ones lies where the slope of the others has underflowed."""
    logits = torch.tensor([[900.0, 0.0]] * 999 + [[1.0, 0.0]], dtype=torch.float64)
    target = torch.tensor([0] * 999 + [1])
    calibrator = TemperatureScaling().fit(logits, target)
    u = (1 / calibrator.temperature).requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(u * logits, target), u)
    assert calibrator.converged
    assert abs(float(slope)) < 1e-9


def test_a_search_that_is_cut_short_says_so(monkeypatch):
    monkeypatch.setattr(_temperature, "MOST_ITERATIONS", 2)
    calibrator = TemperatureScaling()
    with pytest.warns(UserWarning, match="TemperatureScaling: it did not converge in 2 iterations; the temperature is"):
        calibrator.fit(LOGITS, TARGET)
    assert not calibrator.converged
    assert calibrator.predict_proba(LOGITS).isfinite().all()


def test_no_target_that_counts():
    for target, weight in ((torch.full((4,), -100), None), (TARGET[:4], torch.zeros(4))):
        with pytest.raises(ValueError, match="TemperatureScaling: target must hold an entry that counts"):
            TemperatureScaling().fit(LOGITS[:4], target, weight=weight)
    with pytest.raises(ValueError, match="temperature_scaling: target must"):
        temperature_scaling(LOGITS[:0], TARGET[:0])


def test_error_before_fit_has_a_name():
    with pytest.raises(NotFittedError, match="TemperatureScaling: fit must be called before forward"):
        TemperatureScaling()(LOGITS)


def test_forward_reads_no_nan():
    with pytest.raises(ValueError, match="logits must be finite, got nan"):
        FITTED(torch.full((2, 5), math.nan))
    calibrator = TemperatureScaling(validate_args=False).fit(LOGITS, TARGET)
    assert calibrator(torch.full((2, 5), math.nan)).isnan().all()


def test_state_in_a_module_that_is_cast_and_saved():
    model = nn.Sequential(nn.Linear(5, 5), TemperatureScaling())
    model[1].fit(LOGITS, TARGET)
    model.to(torch.bfloat16)
    assert model[1].temperature.dtype == torch.float64
    close(model[1].temperature, FITTED.temperature, rtol=0)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = nn.Sequential(nn.Linear(5, 5), TemperatureScaling()).half()
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    close(other[1].temperature, FITTED.temperature, rtol=0)
    assert int(other[1].n_fit) == 400
    text = f"temperature={float(FITTED.temperature):.6g}, n_fit=400, nll={float(FITTED.nll):.6g}, converged=True"
    assert text in repr(other)
    assert "not fitted" in repr(TemperatureScaling())


def test_fit_in_inference_mode_outlives_it():
    calibrator = TemperatureScaling()
    with torch.inference_mode():
        calibrator.fit(LOGITS.clone(), TARGET.clone())
    logits = LOGITS[:3].clone().requires_grad_()
    calibrator(logits).sum().backward()
    close(logits.grad, (1 / FITTED.temperature).expand(3, 5))
    calibrator.load_state_dict(FITTED.state_dict())


class ClassOffsets(Calibrator):
    """As many numbers as there are classes: the log-ratio of their frequency in targets and predictions."""

    offsets: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_fitted("offsets", torch.zeros(0))

    def _solve(self, rows):
        def figures(block):
            hit = F.one_hot(block.target, block.logits.shape[1]).double()
            return torch.stack([block.weight @ hit, block.weight @ block.logits.softmax(1)])

        observed, predicted = rows.total(figures)
        return Solution({"offsets": (observed / predicted).log()}, int(observed.sum()), observed.sum(), 1, "")

    def _transform(self, logits):
        return logits + self.offsets.to(logits.dtype).view(-1, *[1] * (logits.dim() - 2))


def test_state_whose_shape_comes_of_the_fit():
    calibrator = ClassOffsets().fit(LOGITS, TARGET)
    expected = (torch.bincount(TARGET, minlength=5) / LOGITS.softmax(1).sum(0)).log()
    close(calibrator.offsets, expected, rtol=1e-9)
    other = ClassOffsets()
    other.load_state_dict(calibrator.state_dict(), strict=True)
    close(other(LOGITS), LOGITS + expected, rtol=1e-9)
    other.load_state_dict(ClassOffsets().state_dict())
    assert other.offsets.shape == (0,)
    with pytest.raises(NotFittedError):
        other(LOGITS)


def test_soft_targets_where_none_are_taken():
    with pytest.raises(TypeError, match="ClassOffsets: target must hold class indices, got a tensor of shape"):
        ClassOffsets().fit(LOGITS, LOGITS.softmax(1))


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("split", [(200, 200), (1, 399), (400, 0)])
def test_ranks_fit_to_the_rows_of_all(pool, split):
    own = [
        {"logits": z.clone(), "target": t.clone()}
        for z, t in zip(LOGITS.split(list(split)), TARGET.split(list(split)), strict=True)
    ]
    for state in pool.run(fit_on_rank, [(TemperatureScaling, {}, rows) for rows in own]):
        close(state["temperature"], FITTED.temperature)
        assert int(state["n_fit"]) == 400


@pytest.mark.xdist_group("ranks")
def test_ranks_that_fit_alone(pool):
    halves = [{"logits": LOGITS[r::2].clone(), "target": TARGET[r::2].clone()} for r in range(2)]
    states = pool.run(fit_on_rank, [(TemperatureScaling, {"sync": False}, rows) for rows in halves])
    for state, rows in zip(states, halves, strict=True):
        close(state["temperature"], temperature_scaling(**rows), rtol=0)
    assert float(states[0]["temperature"]) != float(states[1]["temperature"])


def read(path):
    with np.load(path, allow_pickle=False) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def scores(predictions, target, kind):
    metrics = [NegativeLogLikelihood(input_kind=kind), BrierScore(input_kind=kind), ECE(input_kind=kind)]
    metrics.append(ClasswiseECE(num_classes=predictions.shape[1], input_kind=kind))
    for metric in metrics:
        metric.update(predictions, target)
    return [float(metric.compute()) for metric in metrics]


@pytest.mark.data
# Those of 20news hold zeros.
@pytest.mark.filterwarnings("ignore:NegativeLogLikelihood. 32 probabilities of targets below 1e-12 were clamped")
@pytest.mark.parametrize(
    ("name", "temperature", "before", "after"),
    [
        (
            "resnet20_cifar10_logits_akamaster.npz",
            2.3355,
            [0.3591, 0.1332, 0.0538, 0.0116],
            [0.2402, 0.1191, 0.0070, 0.0050],
        ),
        (
            "resnet56_cifar10_logits_akamaster.npz",
            2.4544,
            [0.3338, 0.1064, 0.0433, 0.0097],
            [0.2043, 0.0960, 0.0059, 0.0049],
        ),
        ("vgg16_cifar10_probs.npz", 1.7226, [0.2294, 0.0953, 0.0368, 0.0082], [0.1825, 0.0873, 0.0153, 0.0052]),
        ("oof_probs_20news.npz", 0.7463, [0.6562, 0.1905, 0.2025, 0.0191], [0.6332, 0.1485, 0.1216, 0.0121]),
    ],
)
def test_real_classifiers(data_file, name, temperature, before, after):
    """Over-confident and under-confident ones; computed elsewhere, from the same split."""
    stored = read(data_file(name))
    kind = "logits" if "logits" in stored else "probs"
    predictions, target = stored[kind], stored["y"].long()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(target)))
    fit, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    calibrator = TemperatureScaling(input_kind=kind).fit(predictions[fit], target[fit])
    assert float(calibrator.temperature) == pytest.approx(temperature, abs=6e-5)
    assert scores(predictions[held_out], target[held_out], kind) == pytest.approx(before, abs=6e-5)
    calibrated = calibrator(predictions[held_out])
    assert scores(calibrated, target[held_out], "logits") == pytest.approx(after, abs=6e-5)
    assert torch.equal(calibrated.argmax(1), predictions[held_out].argmax(1))
    copied = copy.deepcopy(calibrator)
    assert torch.equal(copied(predictions[held_out]), calibrated)
