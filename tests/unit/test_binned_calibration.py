"""Behaviours of the metrics of binned scores that no property covers."""

import builtins
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryCalibrationError, MulticlassCalibrationError

from trainkit._core.binning import equal_mass_index, equal_width_edges, equal_width_index
from trainkit.calibration import _common
from trainkit.calibration.metrics import (
    ECE,
    MCE,
    RMSCE,
    BinnedCalibrationError,
    ReliabilityDiagram,
    _binned,
    binned_calibration_error,
    reliability_diagram,
)

EDGES = torch.tensor([1.0, 1.0, 0.0, 0.2, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0], dtype=torch.float64)
HITS = torch.tensor([1, 0, 1, 0, 1, 0, 1, 1, 1, 1])


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=1e-14)


def drawn(n=200, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, (0.5 * logits).softmax(1).multinomial(1, generator=g)[:, 0]


def value(metric, *batches, **options):
    for batch in batches:
        metric.update(*batch, **options)
    return metric.compute()


def binary(scores, hits, **options):
    return binned_calibration_error(scores, hits, task="binary", input_kind="probs", **options)


@pytest.mark.parametrize("n_bins", [1, 2, 3, 5, 7, 10, 15, 49, 100, 1000])
def test_equal_width_is_numpys(n_bins):
    edges = np.linspace(0, 1, n_bins + 1)
    assert equal_width_edges(n_bins).tolist() == edges.tolist()
    near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)]).clip(0, 1)
    for dtype in (torch.float64, torch.float32):
        scores = torch.tensor(near).to(dtype)
        expected = np.digitize(scores.double().numpy(), edges[1:-1])
        assert equal_width_index(scores, n_bins).tolist() == expected.tolist()
        expected = np.digitize(scores.double().numpy(), edges[1:-1], right=True)
        assert equal_width_index(scores, n_bins, "right").tolist() == expected.tolist()


@pytest.mark.parametrize("closed", ["left", "right"])
def test_zero_and_one_have_no_bins_of_their_own(closed):
    """torchmetrics gives scores of one a bin beyond the last."""
    scores = torch.tensor([0.0, 1.0])
    assert equal_width_index(scores, 15, closed).tolist() == [0, 14]
    assert reliability_diagram(scores, torch.tensor([0, 1]), task="binary", input_kind="probs", closed=closed)[
        "count"
    ].tolist() == [1, *[0] * 13, 1]


def test_scores_on_edges_by_hand():
    close(binary(EDGES, HITS, n_bins=5), 0.29)
    close(binary(EDGES, HITS, n_bins=5, closed="right"), 0.41)
    theirs = BinaryCalibrationError(n_bins=5)(EDGES, HITS)
    assert not torch.isclose(theirs.double(), torch.tensor(0.29, dtype=torch.float64), atol=0.01)


def test_equal_mass_is_rank_times_bins_over_n():
    for n, n_bins in [(20, 5), (7, 3), (3, 5), (1, 4), (11, 10)]:
        scores = torch.linspace(1, 0, n, dtype=torch.float64)
        expected = [r * n_bins // n for r in reversed(range(n))]
        for weight in (torch.ones(n), torch.full((n,), 0.1)):
            assert equal_mass_index(scores, weight, n_bins).tolist() == expected


def test_ties_are_split_in_order_or_kept_together():
    scores, weight = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.9, 0.1]), torch.ones(6)
    assert equal_mass_index(scores, weight, 3).tolist() == [0, 1, 1, 2, 2, 0]
    # Bins begin at the scores of ranks 2 and 4, which are equal, so that the one between is empty.
    assert equal_mass_index(scores, weight, 3, "together").tolist() == [2, 2, 2, 2, 2, 0]
    assert equal_mass_index(torch.full((9,), 0.3), torch.ones(9), 4, "together").unique().tolist() == [3]


@pytest.mark.parametrize("n", [1, 2, 5, 10, 17, 50])
@pytest.mark.parametrize("n_bins", [1, 3, 8, 15, 30])
def test_together_is_numpys_digitize_at_order_statistics(n, n_bins):
    scores = np.random.default_rng(n).integers(0, 12, n) / 12
    places = np.minimum(np.round(np.linspace(0, n, n_bins, endpoint=False)).astype(int), n - 1)
    expected = np.digitize(scores, np.sort(scores)[places][1:])
    assert equal_mass_index(torch.tensor(scores), torch.ones(n), n_bins, "together").tolist() == expected.tolist()


def test_no_scores_have_no_bins():
    assert equal_mass_index(torch.zeros(0), torch.zeros(0), 3).shape == (0,)
    assert equal_width_index(torch.zeros(0, 2), 3).shape == (0, 2)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_torchmetrics_agrees_where_it_is_right(norm):
    logits, target = drawn()
    theirs = MulticlassCalibrationError(4, n_bins=10, norm=norm)(logits.softmax(1), target)
    close(binned_calibration_error(logits, target, n_bins=10, norm=norm), float(theirs), rtol=1e-5)


def test_logits_inside_the_unit_interval_stay_logits():
    logits, target = torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([0, 0])
    assert not torch.isclose(
        binned_calibration_error(logits, target), binned_calibration_error(logits, target, input_kind="probs")
    )


def test_counts_beyond_what_fp32_holds():
    metric = BinnedCalibrationError(task="binary", input_kind="probs")
    metric.bins[:2, -1] = 2.0**24
    metric.update(torch.ones(3), torch.ones(3))
    assert metric.bins[0, -1].tolist() == [2.0**24, 2.0**24 + 3]


def test_binary_looks_at_class_one_and_folds_if_told():
    p, target = torch.tensor([0.3, 0.1, 0.9, 0.8], dtype=torch.float64), torch.tensor([0, 0, 1, 0])
    close(binary(p, target, n_bins=4), (0.3 + 0.1 + abs(1.7 - 1)) / 4)
    folded = binary(p, target, n_bins=4, reduce="top_label")
    close(folded, (abs(0.7 - 1) + abs(0.9 + 0.9 + 0.8 - 2)) / 4)
    two = torch.stack([1 - p, p], 1)
    close(folded, binned_calibration_error(two, target, n_bins=4, input_kind="probs"))
    close(binary(p, target, n_bins=4, reduce="classwise"), binary(p, target, n_bins=4))


@pytest.mark.parametrize("reduce", ["classwise", "all"])
@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
def test_multilabel_is_a_binary_task_for_each_label(reduce, binning):
    logits, target = drawn()
    hits = F.one_hot(target, 4)
    options = {"binning": binning, "n_bins": 5}
    got = binned_calibration_error(logits, hits, task="multilabel", num_classes=4, reduce=reduce, **options)
    each = [binned_calibration_error(logits[:, k], hits[:, k], task="binary", **options) for k in range(4)]
    pooled = binned_calibration_error(logits.reshape(-1), hits.reshape(-1), task="binary", **options)
    close(got, torch.stack(each).mean() if reduce == "classwise" else pooled)


def test_classwise_l2_is_the_root_of_the_mean_square():
    logits, target = drawn()
    options = {"num_classes": 4, "reduce": "classwise", "norm": "l2", "n_bins": 5}
    each = binned_calibration_error(logits, target, per_class=True, **options)
    close(binned_calibration_error(logits, target, **options), each.square().mean().sqrt())
    close(binned_calibration_error(logits, target, squared=True, **options), each.square().mean())


def test_debiasing_takes_the_variance_off_and_may_leave_less_than_nothing():
    scores, hits = torch.full((8,), 0.5, dtype=torch.float64), torch.tensor([0, 1] * 4)
    options = {"norm": "l2", "debias": True, "n_bins": 1}
    close(binary(scores, hits, squared=True, **options), -0.25 / 7)
    close(binary(scores, hits, **options), 0.0)
    close(binary(scores[:1], hits[:1], **options), 0.0)


def test_debiased_squares_of_a_calibrated_model_average_to_zero():
    g = torch.Generator().manual_seed(0)
    squares = {True: [], False: []}
    for _ in range(300):
        p = torch.rand(100, generator=g, dtype=torch.float64)
        hits = torch.bernoulli(p, generator=g)
        for debias, values in squares.items():
            values.append(binary(p, hits, norm="l2", debias=debias, squared=True, n_bins=10))
    means = {debias: torch.stack(values).mean() for debias, values in squares.items()}
    assert means[True].abs() < 0.1 * means[False]


def test_a_class_below_the_threshold_has_no_error_and_counts():
    p = torch.tensor([[0.7, 0.25, 0.05], [0.2, 0.75, 0.05]], dtype=torch.float64)
    options = {"num_classes": 3, "reduce": "classwise", "threshold": 0.1, "input_kind": "probs", "n_bins": 1}
    each = binned_calibration_error(p, torch.tensor([0, 1]), per_class=True, **options)
    close(each, [0.05, 0.0, 0.0])
    close(binned_calibration_error(p, torch.tensor([0, 1]), **options), 0.05 / 3)


def test_uniform_weighting_is_the_mean_over_bins_that_hold_something():
    p, hits = torch.tensor([0.1, 0.1, 0.1, 0.9], dtype=torch.float64), torch.tensor([0, 0, 0, 0])
    close(binary(p, hits, n_bins=5, weighting="uniform"), (0.1 + 0.9) / 2)
    close(binary(p, hits, n_bins=5), (3 * 0.1 + 0.9) / 4)


@pytest.mark.parametrize("options", [{}, {"norm": "l2", "debias": True}, {"reduce": "classwise", "num_classes": 4}])
def test_weights_equal_repetition(options):
    logits, target = drawn(20)
    times = torch.arange(20) % 4
    repeated = binned_calibration_error(
        logits.repeat_interleave(times, 0), target.repeat_interleave(times), n_bins=5, **options
    )
    close(binned_calibration_error(logits, target, weight=times.double(), n_bins=5, **options), repeated)


@pytest.mark.parametrize("ties", ["split", "together"])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 3.0])
def test_equal_weights_leave_equal_mass_as_it_is(ties, scale):
    logits, target = drawn(60)
    options = {"binning": "equal_mass", "ties": ties, "n_bins": 7}
    weight = torch.full((60,), scale, dtype=torch.float64)
    close(
        binned_calibration_error(logits, target, weight=weight, **options),
        binned_calibration_error(logits, target, **options),
    )


@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
def test_ignored_targets_count_for_nothing(binning):
    logits, target = drawn(20)
    garbage, ignored = logits.clone(), target.clone()
    garbage[5:], ignored[5:] = math.nan, 255
    options = {"binning": binning, "n_bins": 3}
    close(
        binned_calibration_error(garbage, ignored, ignore_index=255, **options),
        binned_calibration_error(logits[:5], target[:5], **options),
    )


@pytest.mark.parametrize(("cells", "error"), [(2**14, 1e-5), (64, 2e-2)])
def test_the_histogram_says_that_it_approximates_and_is_close(monkeypatch, cells, error):
    monkeypatch.setattr(_binned, "CELLS", cells)
    logits, target = drawn(2000)
    options = {"binning": "equal_mass", "num_classes": 4, "reduce": "classwise"}
    metric = BinnedCalibrationError(**options, exact=False)
    assert "exact=False" in repr(metric)
    exact = binned_calibration_error(logits, target, **options)
    got = value(metric, (logits[:700], target[:700]), (logits[700:], target[700:]))
    assert (got - exact).abs() < error
    assert metric.bins.shape[1:] == (4, cells, 2)


@pytest.mark.parametrize("options", [{}, {"reduce": "classwise", "num_classes": 4}])
def test_the_state_of_equal_width_does_not_grow(options):
    metric, sizes = BinnedCalibrationError(**options), []
    for seed in range(20):
        metric.update(*drawn(seed=seed))
        sizes.append(len(pickle.dumps(metric)))
    assert max(sizes) - sizes[0] < 100


@pytest.mark.parametrize("options", [{}, {"binning": "equal_mass"}, {"reduce": "classwise", "num_classes": 4}])
def test_blocks_of_rows_change_nothing(monkeypatch, options):
    logits, target = drawn()
    whole = value(BinnedCalibrationError(**options), (logits, target))
    monkeypatch.setattr(_common, "BLOCK", 13)
    close(value(BinnedCalibrationError(**options), (logits, target)), whole)
    weight = torch.rand(200, dtype=torch.float64)
    monkeypatch.undo()
    expected = binned_calibration_error(logits, target, weight=weight, **options)
    monkeypatch.setattr(_common, "BLOCK", 13)
    close(binned_calibration_error(logits, target, weight=weight, **options), expected)


def test_an_error_in_a_later_block_names_the_place_in_the_batch_and_leaves_the_state(monkeypatch):
    monkeypatch.setattr(_common, "BLOCK", 13)
    logits, target = drawn(20)
    metric = ECE()
    logits[17, 2] = math.nan
    with pytest.raises(ValueError, match=r"ECE: logits must be finite, got nan at index \(17, 2\)"):
        metric.update(logits, target)
    assert not metric.bins.any()
    with pytest.raises(ValueError, match=r"target must have shape \(20,\)"):
        metric.update(drawn(20)[0], target[:19])


@pytest.mark.parametrize("options", [{}, {"binning": "equal_mass"}, {"binning": "equal_mass", "exact": False}])
def test_nothing_to_average_is_nan_with_one_warning(options):
    metric = BinnedCalibrationError(**options)
    logits, target = drawn(4)
    metric.update(logits, torch.full((4,), -100))
    with pytest.warns(UserWarning, match="BinnedCalibrationError: the value is nan") as heard:
        assert metric.compute().isnan()
    assert len(heard) == 1
    metric.update(logits, target)
    assert metric.compute().isfinite()


def test_one_class_one_row_and_equal_scores_are_finite():
    assert binned_calibration_error(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)) == 0
    for options in ({}, {"binning": "equal_mass"}, {"norm": "l2", "debias": True}, {"norm": "max"}):
        for logits in (torch.zeros(1, 4), torch.zeros(9, 4)):
            assert binned_calibration_error(logits, torch.zeros(len(logits)).long(), **options).isfinite()


def test_a_collection_keeps_one_state_for_metrics_over_the_same_bins():
    collection = MetricCollection({"ece": ECE(), "mce": MCE(), "diagram": ReliabilityDiagram(), "fine": ECE(n_bins=30)})
    logits, target = drawn()
    collection.update(logits, target)
    collection.update(logits, target)
    groups = sorted(sorted(group) for group in collection.compute_groups.values())
    assert groups == [["diagram", "ece", "mce"], ["fine"]]
    values = collection.compute()
    close(values["ece"], binned_calibration_error(logits, target))
    close(values["fine"], binned_calibration_error(logits, target, n_bins=30))
    close(values["count"].sum(), 400.0)


def computed_on_rank(config, logits, target):
    metric = BinnedCalibrationError(**config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if len(target):
            metric.update(logits, target)
        return metric.compute()


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("config", [{}, {"binning": "equal_mass"}])
def test_a_rank_without_updates_takes_part(pool, config):
    """A list state of torchmetrics aborts the process group here."""
    logits, target = drawn()
    for got in pool.run(computed_on_rank, [(config, logits, target), (config, logits[:0], target[:0])]):
        close(got, binned_calibration_error(logits, target, **config))


def test_wilson_interval_by_hand():
    p = torch.full((10,), 0.7, dtype=torch.float64)
    got = reliability_diagram(p, torch.tensor([1] * 8 + [0] * 2), task="binary", input_kind="probs", n_bins=1)
    close(got["wilson_lo"], [0.490157], rtol=1e-5)
    close(got["wilson_hi"], [0.943319], rtol=1e-5)
    close(got["gap"], [0.1])


def test_diagram_of_nothing_is_a_figure_without_numbers():
    metric = ReliabilityDiagram()
    with pytest.warns(UserWarning, match="before the ``update``"):
        figure = metric.figure()
    assert figure.axes[0].title == "Reliability (0 scores)"


def test_edges_of_equal_mass_are_lowest_scores():
    p = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.8, 0.9], dtype=torch.float64)
    got = reliability_diagram(p, (p > 0.5).long(), task="binary", input_kind="probs", n_bins=3, binning="equal_mass")
    close(got["edges"], [0.0, 0.3, 0.8, 1.0])
    close(got["count"], [2.0, 2.0, 2.0])


def test_figure_of_one_class():
    metric = ReliabilityDiagram(reduce="classwise", num_classes=4, n_bins=5)
    metric.update(*drawn())
    assert metric.figure(2, title="class 2").title == "class 2"
    with pytest.raises(ValueError, match="class_index must name one of 4 classes, got None"):
        metric.figure()
    with pytest.raises(ValueError, match="class_index must be < 4, got 4"):
        metric.figure(4)
    pooled = ReliabilityDiagram(n_bins=3)
    pooled.update(*drawn())
    with pytest.raises(ValueError, match="class_index must be None"):
        pooled.figure(1)


def test_plot_without_matplotlib_says_what_to_install(monkeypatch):
    found = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return found(name, *args, **options)

    metric = ReliabilityDiagram()
    metric.update(*drawn())
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"ReliabilityDiagram: plot needs matplotlib \(pip install"):
        metric.plot()


def test_plot_with_matplotlib():
    pytest.importorskip("matplotlib", reason="drawing with matplotlib needs the extra plots")
    metric = ReliabilityDiagram(n_bins=5)
    metric.update(*drawn())
    _, axes = metric.plot()
    assert [one.get_ylabel() for one in axes] == ["accuracy", "count"]
    with pytest.raises(ValueError, match="ax must be None"):
        metric.plot(ax=axes[0])


def test_rmsce_is_equal_mass_l2():
    logits, target = drawn()
    close(
        value(RMSCE(n_bins=6), (logits, target)),
        binned_calibration_error(logits, target, n_bins=6, norm="l2", binning="equal_mass"),
    )
