"""Behaviours of the metrics of selective prediction that no property covers."""

import itertools
import math
import pickle

import pytest
import torch
from torchmetrics import MetricCollection

from trainkit.calibration.metrics import (
    AUGRC,
    AURC,
    EAURC,
    SelectiveRisk,
    _binned,
    augrc,
    aurc,
    eaurc,
    selective_risk,
)
from trainkit.calibration.metrics._risk_coverage import harmonic

AREAS = [aurc, eaurc, augrc]


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=1e-14)


def drawn(n=200, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, (0.5 * logits).softmax(1).multinomial(1, generator=g)[:, 0]


def binary(function, confidences, errors, **options):
    """Value for predictions of class 1, each with its confidence and whether it is wrong."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return function(p, 1 - torch.tensor(errors), task="binary", input_kind="probs", **options)


def in_order(errors):
    """The areas of errors in the order of confidence, from their definitions."""
    n = len(errors)
    cumulative = list(itertools.accumulate(errors))
    area = sum(e / k for k, e in enumerate(cumulative, 1)) / n
    ranked = list(itertools.accumulate(sorted(errors)))
    best = sum(e / k for k, e in enumerate(ranked, 1)) / n
    return {aurc: area, eaurc: area - best, augrc: sum(cumulative) / n**2}


def test_by_hand():
    confidences, errors = [0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1]
    close(binary(aurc, confidences, errors), (0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    close(binary(eaurc, confidences, errors), (1 / 2 + 1 / 3 + 1 / 2) / 4 - (1 / 3 + 1 / 2) / 4)
    close(binary(augrc, confidences, errors), (0 + 1 + 1 + 2) / 16)
    for coverage, risk in {0.25: 0, 0.26: 1 / 2, 0.5: 1 / 2, 0.75: 1 / 3, 1.0: 1 / 2}.items():
        close(binary(selective_risk, confidences, errors, coverage=coverage), risk)


def test_binary_predictions_are_confident_on_both_sides():
    p, target = torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0, 0, 1])
    close(aurc(p, target, task="binary", input_kind="probs"), (0 + 1 / 2 + 2 / 3) / 3)


@pytest.mark.parametrize("function", AREAS)
def test_ties_are_the_mean_over_all_orders(function):
    """A sort alone gives the order in which equal confidences came."""
    confidences, errors = [0.9, 0.7, 0.7, 0.7, 0.7, 0.6], [1, 0, 1, 1, 0, 0]
    orders = [[1, *middle, 0] for middle in itertools.permutations(errors[1:5])]
    expected = sum(in_order(order)[function] for order in orders) / len(orders)
    for order in orders:
        close(binary(function, confidences, order), expected)


@pytest.mark.parametrize("coverage", [0.2, 0.5, 0.6, 0.99])
def test_selective_risk_inside_of_a_tie_is_the_mean_over_all_orders(coverage):
    confidences, errors = [0.9, 0.7, 0.7, 0.7, 0.6], [1, 0, 1, 0, 0]
    k = math.ceil(coverage * 5)
    orders = [[1, *middle, 0] for middle in itertools.permutations(errors[1:4])]
    expected = sum(sum(order[:k]) / k for order in orders) / len(orders)
    for order in orders:
        close(binary(selective_risk, confidences, order, coverage=coverage), expected)


@pytest.mark.parametrize("function", AREAS)
def test_saturated_probabilities_do_not_depend_on_the_order_of_rows(function):
    logits = torch.tensor([[40.0, 0.0], [50.0, 0.0], [60.0, 0.0], [1.0, 0.0]])
    target = torch.tensor([1, 0, 0, 0])
    values = [function(logits[order], target[order]) for order in map(list, itertools.permutations(range(4)))]
    for value in values:
        close(value, values[0])


def test_rounding_does_not_add_a_row():
    """0.55 times 20 is more than 11 in floating point."""
    confidences = [1 - k / 50 for k in range(20)]
    close(binary(selective_risk, confidences, [0] * 11 + [1] * 9, coverage=0.55), 0.0)
    for k in range(1, 21):
        close(binary(selective_risk, confidences, [0] * (k - 1) + [1] + [0] * (20 - k), coverage=k / 20), 1 / k)


@pytest.mark.parametrize("start", [0, 1, 7, 62, 63, 64, 1000, 10**6])
def test_harmonic_is_the_sum(start):
    for count in (0, 1, 2, 5, 100):
        expected = math.fsum(1 / k for k in range(start + 1, start + count + 1))
        told = [torch.tensor(float(v), dtype=torch.float64) for v in (start, count)]
        close(harmonic(*told), expected, rtol=1e-12)


def test_large_samples_lose_nothing():
    g = torch.Generator().manual_seed(0)
    errors = torch.randint(2, (100000,), generator=g).tolist()
    confidences = torch.linspace(1, 0.51, 100000, dtype=torch.float64).tolist()
    expected = in_order(errors)
    for function in AREAS:
        close(binary(function, confidences, errors), expected[function], rtol=1e-11)


def test_best_area_is_that_of_the_rows_and_not_its_limit():
    confidences = [0.9, 0.8, 0.7, 0.6]
    assert binary(eaurc, confidences, [0, 0, 1, 1]) == 0
    limit = 0.5 + 0.5 * math.log(0.5)
    assert binary(aurc, confidences, [0, 0, 1, 1]) > limit + 0.05


@pytest.mark.parametrize("function", [*AREAS, selective_risk])
@pytest.mark.parametrize("exact", [True, False])
def test_weights_equal_repetition(function, exact):
    logits, target = drawn(20)
    times = torch.arange(20) % 4
    options = {"exact": exact, **({"coverage": 0.37} if function is selective_risk else {})}
    repeated = function(logits.repeat_interleave(times, 0), target.repeat_interleave(times), **options)
    close(function(logits, target, weight=times.double(), **options), repeated)
    assert function(logits, target, weight=torch.rand(20).double(), **options).isfinite()


def test_a_soft_target_gives_the_mean_over_labels_drawn_from_it():
    logits = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    soft = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    for function in (aurc, augrc):
        expected = sum(
            soft[torch.arange(3), torch.tensor(labels)].prod() * function(logits, torch.tensor(labels))
            for labels in itertools.product(range(2), repeat=3)
        )
        close(function(logits, soft), expected)
    assert eaurc(logits, soft) > 0


@pytest.mark.parametrize(("cells", "error"), [(2**14, 1e-4), (256, 5e-3)])
@pytest.mark.parametrize("cls", [AURC, EAURC, AUGRC])
def test_cells_say_that_they_approximate_and_are_close(monkeypatch, cells, error, cls):
    monkeypatch.setattr(_binned, "CELLS", cells)
    logits, target = drawn(2000)
    metric, sizes = cls(exact=False), []
    exact = cls()
    exact.update(logits, target)
    for rows in torch.arange(2000).split(700):
        metric.update(logits[rows], target[rows])
        sizes.append(len(pickle.dumps(metric)))
    assert "exact=False" in repr(metric)
    assert max(sizes) - sizes[0] < 100
    assert (metric.compute() - exact.compute()).abs() < error


@pytest.mark.parametrize("metric", [AURC(), EAURC(), AUGRC(), SelectiveRisk(0.5), AURC(exact=False)])
def test_nothing_to_average_is_nan_with_one_warning(metric):
    logits, target = drawn(4)
    metric.update(logits, torch.full((4,), -100))
    with pytest.warns(UserWarning, match=f"{type(metric).__name__}: the value is nan") as heard:
        assert metric.compute().isnan()
    assert len(heard) == 1
    metric.update(logits, target)
    assert metric.compute().isfinite()


@pytest.mark.parametrize("function", AREAS)
def test_all_right_all_wrong_and_one_row(function):
    logits, _ = drawn(5)
    right = logits.argmax(1)
    close(function(logits, right), 0.0)
    close(function(logits, (right + 1) % 4), {aurc: 1.0, eaurc: 0.0, augrc: 0.6}[function])
    close(function(logits[:1], (right[:1] + 1) % 4), float(function is not eaurc))


def test_a_collection_keeps_one_sample():
    collection = MetricCollection({"aurc": AURC(), "eaurc": EAURC(), "augrc": AUGRC(), "risk": SelectiveRisk(0.8)})
    logits, target = drawn()
    collection.update(logits, target)
    collection.update(logits, target)
    assert len(collection.compute_groups) == 1
    values = collection.compute()
    both = torch.cat([logits, logits]), torch.cat([target, target])
    close(values["eaurc"], eaurc(*both))
    close(values["risk"], selective_risk(*both, coverage=0.8))


def test_figure_of_few_rows_is_the_curve():
    metric = AURC(task="binary", input_kind="probs")
    metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64), torch.tensor([1, 0, 1, 0]))
    (axes,) = metric.figure(title="held out").axes
    best, curve = axes.marks
    assert axes.title == "AURC 0.3333"
    assert curve.x == best.x == (0.25, 0.5, 0.75, 1.0)
    assert curve.y == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert best.y == pytest.approx([0, 0, 1 / 3, 1 / 2])


def test_figure_of_many_rows_and_of_none():
    metric = AUGRC()
    metric.update(*drawn(3000))
    (axes,) = metric.figure().axes
    assert len(axes.marks[1].x) == 200
    assert axes.y_label == "generalized risk"
    assert axes.marks[1].y[-1] == axes.marks[0].y[-1]
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert SelectiveRisk(0.5).figure().axes[0].marks == ()


def test_plot_with_matplotlib():
    pytest.importorskip("matplotlib", reason="drawing with matplotlib needs the extra plots")
    metric = EAURC()
    metric.update(*drawn())
    _, axes = metric.plot()
    assert axes.get_ylabel() == "selective risk"
