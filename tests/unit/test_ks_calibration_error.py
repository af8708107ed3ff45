"""Behaviours of the Kolmogorov-Smirnov calibration error that no property covers."""

import pickle

import pytest
import torch
from torchmetrics import MetricCollection

from trainkit.calibration.metrics import KSCalibrationError, _binned, ks_calibration_error


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=1e-14)


def drawn(n=200, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, (0.5 * logits).softmax(1).multinomial(1, generator=g)[:, 0]


def binary(scores, hits, **options):
    scores = torch.tensor(scores, dtype=torch.float64)
    return ks_calibration_error(scores, torch.tensor(hits), task="binary", input_kind="probs", **options)


def test_by_hand_with_sign():
    # h is -0.1, 0.5 and 0.6, in thirds.
    close(binary([0.9, 0.1, 0.4], [1, 0, 1]), 0.2)
    close(binary([0.9, 0.1, 0.4], [1, 0, 1], signed=True), 0.2)
    close(binary([0.8, 0.7], [0, 1], signed=True), -0.25)
    close(binary([0.8, 0.7], [0, 0], signed=True), -0.75)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_ties_are_read_behind_their_last_row(order):
    """The paper's code reads h at every row and gives 0.25 when the two hits come first."""
    hits = [[1, 1, 0, 0][i] for i in order]
    close(binary([0.5] * 4, hits), 0.0)
    close(binary([0.5] * 4, hits, exact=False), 0.0)


def test_saturated_probabilities_are_ties():
    logits = torch.tensor([[40.0, 0.0], [50.0, 0.0], [60.0, 0.0], [70.0, 0.0]])
    for target in (torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 1])):
        close(ks_calibration_error(logits, target), 0.5)


def test_top_k_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]], dtype=torch.float64)
    target = torch.tensor([1, 1, 2])
    # Scores 0.8, 0.8, 0.9 with hits 1, 0, 0: of the equal second places the first class counts.
    close(ks_calibration_error(p, target, top_k=2, input_kind="probs"), 1.5 / 3)
    close(ks_calibration_error(p, target, top_k=3, input_kind="probs"), 0.0)


def test_classwise_is_the_mean_of_one_against_the_rest():
    logits, target = drawn()
    p = logits.softmax(1)
    each = [ks_calibration_error(p[:, k], (target == k).long(), task="binary", input_kind="probs") for k in range(4)]
    options = {"reduce": "classwise", "num_classes": 4}
    close(ks_calibration_error(logits, target, per_class=True, **options), torch.stack(each), rtol=1e-9)
    close(ks_calibration_error(logits, target, **options), torch.stack(each).mean(), rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"exact": False}, {"reduce": "classwise", "num_classes": 4}, {"top_k": 2}])
def test_weights_equal_repetition(options):
    logits, target = drawn(20)
    times = torch.arange(20) % 4
    repeated = ks_calibration_error(logits.repeat_interleave(times, 0), target.repeat_interleave(times), **options)
    close(ks_calibration_error(logits, target, weight=times.double(), **options), repeated)


@pytest.mark.parametrize(("cells", "error"), [(2**14, 1e-8), (256, 1e-3), (8, 1.0)])
@pytest.mark.parametrize("options", [{}, {"reduce": "classwise", "num_classes": 4}])
def test_cells_say_that_they_approximate_from_below(monkeypatch, cells, error, options):
    monkeypatch.setattr(_binned, "CELLS", cells)
    metric, sizes = KSCalibrationError(exact=False, **options), []
    logits, target = drawn(2000)
    for rows in torch.arange(2000).split(700):
        metric.update(logits[rows], target[rows])
        sizes.append(len(pickle.dumps(metric)))
    assert "exact=False" in repr(metric)
    assert max(sizes) - sizes[0] < 100
    exact = ks_calibration_error(logits, target, **options)
    assert exact - error <= metric.compute() <= exact + 1e-12


def test_a_calibrated_model_has_an_error_that_falls_with_the_root_of_n():
    g = torch.Generator().manual_seed(0)
    errors = []
    for n in (400, 40000):
        p = torch.rand(n, generator=g, dtype=torch.float64)
        errors.append(binary(p.tolist(), torch.bernoulli(p, generator=g).long().tolist()))
    assert errors[0] < 2 / 20
    assert errors[1] < 2 / 200


@pytest.mark.parametrize("exact", [True, False])
def test_nothing_to_average_is_nan_with_one_warning(exact):
    metric = KSCalibrationError(exact=exact)
    logits, target = drawn(4)
    metric.update(logits, torch.full((4,), -100))
    with pytest.warns(UserWarning, match="KSCalibrationError: the value is nan") as heard:
        assert metric.compute().isnan()
    assert len(heard) == 1
    metric.update(logits, target)
    assert metric.compute().isfinite()


def test_a_class_without_targets_or_without_scores_is_finite():
    logits, _ = drawn(10)
    options = {"reduce": "classwise", "num_classes": 4, "per_class": True}
    assert ks_calibration_error(logits, torch.zeros(10, dtype=torch.int64), **options).isfinite().all()
    target = torch.zeros(10, 4, dtype=torch.int64)
    target[:, 2] = -100
    assert ks_calibration_error(logits, target, task="multilabel", **options)[2] == 0


def test_a_collection_keeps_one_sample():
    collection = MetricCollection({"ks": KSCalibrationError(), "signed": KSCalibrationError(signed=True)})
    logits, target = drawn()
    collection.update(logits, target)
    collection.update(logits, target)
    assert len(collection.compute_groups) == 1
    close(collection.compute()["ks"], ks_calibration_error(logits, target))


def test_figure_shows_the_largest_gap():
    metric = KSCalibrationError()
    metric.update(*drawn(1000))
    (axes,) = metric.figure(title="held out").axes
    _, curve, gap = axes.marks
    assert axes.title == f"KS calibration error {float(metric.compute()):.4f}"
    assert abs(gap.y[1] - gap.y[0]) == pytest.approx(float(metric.compute()))
    assert (gap.x[1], gap.y[1]) in zip(curve.x, curve.y, strict=True)
    assert len(curve.x) <= 203
    assert list(curve.x) == sorted(curve.x)


def test_figure_of_one_class_and_of_nothing():
    metric = KSCalibrationError(reduce="classwise", num_classes=4, per_class=True)
    metric.update(*drawn())
    assert metric.figure(2).axes[0].title == f"KS calibration error {float(metric.compute()[2]):.4f}"
    with pytest.raises(ValueError, match="class_index must name one of 4 classes, got None"):
        metric.figure()
    empty = KSCalibrationError(exact=False)
    assert [mark.label for mark in empty.figure().axes[0].marks] == ["calibrated"]
    with pytest.raises(ValueError, match="class_index must be None"):
        empty.figure(1)


def test_plot_with_matplotlib():
    pytest.importorskip("matplotlib", reason="drawing with matplotlib needs the extra plots")
    metric = KSCalibrationError()
    metric.update(*drawn())
    _, axes = metric.plot()
    assert axes.get_ylabel() == "cumulative accuracy"
