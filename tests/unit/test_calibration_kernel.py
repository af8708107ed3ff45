"""Behaviours of the smoothing and testing calibration metrics that no property covers."""

import copy
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from sklearn.isotonic import isotonic_regression
from torchmetrics import MetricCollection

from tests.specs.calibration_kernel import lce_reference, tce_reference
from trainkit._core.isotonic import constrained_blocks, isotonic, pool_adjacent_violators
from trainkit._core.kde import bandwidth_likelihoods, bandwidths, leave_one_out, select_bandwidth
from trainkit._core.svg import to_svg
from trainkit.calibration.metrics import (
    KDECalibrationError,
    KSCalibrationError,
    LabelConstrainedECE,
    SmoothCalibrationError,
    TestBasedCalibrationError,
    kde_calibration_error,
    label_constrained_ece,
    smooth_calibration_error,
    tce,
)
from trainkit.calibration.metrics._label_bins import _binomial_rejects, _incomplete_beta, _t_quantile


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=1e-14)


def drawn(n=60, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, (0.5 * logits).softmax(1).multinomial(1, generator=g)[:, 0]


def kde(scores, hits, **options):
    return kde_calibration_error(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(hits),
        **{"task": "binary", "reduce": "classwise", "input_kind": "probs", "bandwidth": 0.1, **options},
    )


def test_two_rows_are_each_the_others_target():
    close(kde([0.2, 0.9], [0, 1]), (0.8 + 0.9) / 2)
    close(kde([0.2, 0.9], [0, 1], reduce="canonical"), 0.8 + 0.9)
    close(kde([0.2, 0.9], [0, 1], reduce="canonical", p=2.0), 0.8**2 + 0.9**2)


def test_overlaps_are_soft_hits():
    close(kde([0.2, 0.9], [0.25, 0.5]), (0.3 + 0.65) / 2)


@pytest.mark.parametrize("reduce", ["canonical", "classwise", "top_label"])
def test_one_row_is_nan_and_no_row_warns(reduce):
    options = {"reduce": reduce, "bandwidth": 0.1}
    logits, target = drawn(1)
    assert kde_calibration_error(logits, target, **options).isnan()
    metric = KDECalibrationError(**options)
    for chosen in (slice(0, 0), slice(0, 1)):
        metric.update(logits[chosen], torch.full_like(target[chosen], -100))
        with pytest.warns(UserWarning, match="KDECalibrationError: the value is nan, since no target counted"):
            assert metric.compute().isnan()
    metric.update(*drawn(2))
    assert metric.compute().isfinite()


@pytest.mark.parametrize("reduce", ["canonical", "classwise", "top_label"])
@pytest.mark.parametrize("bandwidth", [None, 1e-5, 1.0])
@pytest.mark.parametrize("rows", ["one class", "ends", "equal", "single member", "sum"])
def test_degenerate_rows_have_finite_values_and_gradients(reduce, bandwidth, rows):
    logits, target = drawn(12)
    probs = logits.softmax(1)
    if rows == "one class":
        target = torch.ones_like(target)
    if rows == "ends":
        probs = torch.nn.functional.one_hot(probs.argmax(1), 3).double()
    if rows == "equal":
        probs = probs[:1].repeat(12, 1)
    if rows == "single member":
        target = torch.tensor([2] + [0, 1] * 5 + [0])
    if rows == "sum":
        probs = probs * torch.linspace(0.995, 1.005, 12, dtype=torch.float64)[:, None]
        probs = probs.clamp_max(1)
    probs.requires_grad_()
    value = kde_calibration_error(probs, target, reduce=reduce, bandwidth=bandwidth, input_kind="probs")
    (gradient,) = torch.autograd.grad(value, probs)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_rows_that_are_right_beyond_doubt_have_no_error():
    probs = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    target = torch.arange(3).repeat(2)
    close(kde_calibration_error(probs, target, bandwidth=0.1, input_kind="probs"), 0.0)


def test_nan_and_broken_arguments_raise():
    with pytest.raises(ValueError, match="kde_calibration_error: logits must be finite, got nan"):
        kde_calibration_error(torch.full((3, 3), math.nan), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="kde_calibration_error: bandwidth must be > 0, got -1"):
        kde([0.2, 0.9], [0, 1], bandwidth=-1)


@pytest.mark.parametrize("reduce", ["canonical", "classwise", "top_label"])
def test_rows_that_weigh_nothing_are_not_there(reduce):
    logits, target = drawn(20)
    weight = torch.rand(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight[::3] = 0
    kept = weight > 0
    for bandwidth in (None, 0.1):
        options = {"reduce": reduce, "bandwidth": bandwidth}
        expected = kde_calibration_error(logits[kept], target[kept], weight=weight[kept], **options)
        close(kde_calibration_error(logits, target, weight=weight, **options), expected)
        close(kde_calibration_error(logits, target, weight=7 * weight, **options), expected)


def test_an_ignored_label_leaves_the_others_of_its_row():
    logits, _ = drawn(10)
    target = (logits > 0).long()
    target[3, 1] = -100
    options = {"task": "binary", "reduce": "classwise", "bandwidth": 0.1}
    each = [kde_calibration_error(logits[:, k], target[:, k], **options) for k in range(3)]
    value = kde_calibration_error(logits, target, **{**options, "task": "multilabel"})
    close(value, sum(each))


@pytest.mark.parametrize("chunk", [1, 5, 16, None])
def test_blocks_change_nothing(chunk):
    logits, target = drawn(16)
    hits = torch.nn.functional.one_hot(target, 3).double()
    weight = torch.linspace(0.5, 2, 16, dtype=torch.float64)
    results = []
    for size in (16, chunk):
        probs = logits.softmax(1).requires_grad_()
        found = leave_one_out(probs, hits, 0.05, weight, chunk=size)
        (gradient,) = torch.autograd.grad(found.pow(2).sum(), probs)
        results += [found.detach(), gradient, select_bandwidth(probs, weight, chunk=size)]
    for one, other in zip(results[:3], results[3:], strict=True):
        close(one, other, rtol=1e-10)


def test_the_graph_keeps_no_block():
    logits, target = drawn(400)
    probs, hits = logits.softmax(1).requires_grad_(), torch.nn.functional.one_hot(target, 3).double()
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        found = leave_one_out(probs, hits, 0.05, chunk=20)
    assert max(sizes) <= 400 * 3
    assert sum(sizes) < 20 * 400 * 10
    found.sum().backward()
    assert probs.grad.isfinite().all()


def test_second_derivatives_pass_through_blocks():
    logits, target = drawn(5)
    hits = torch.nn.functional.one_hot(target, 3).double()
    probs = logits.softmax(1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda p: leave_one_out(p, hits, 0.3, chunk=2), probs)


def test_bandwidth_is_the_likeliest_and_of_equal_ones_the_largest(monkeypatch):
    tried = bandwidths()
    assert len(tried) == 20
    assert tried.tolist() == sorted(tried.tolist())
    logits, _ = drawn(30)
    spread = float(select_bandwidth(logits.softmax(1)))
    dense = float(select_bandwidth((logits / 100).softmax(1)))
    assert 1e-5 < dense < spread < 1
    same = torch.full((6, 2), 0.5, dtype=torch.float64)
    assert select_bandwidth(same) == tried[0]
    monkeypatch.setattr("trainkit._core.kde._norms", lambda probs, h: torch.zeros(len(probs)).double())
    monkeypatch.setattr("trainkit._core.kde._logs", torch.zeros_like)
    assert select_bandwidth(same) == tried[-1]


def test_likelihoods_are_of_densities():
    """The paper's code divides by the bandwidth once more, which makes a narrow one seem likelier by its logarithm."""
    logits, _ = drawn(8)
    probs = logits.softmax(1)
    expected = []
    for h in bandwidths():
        total = 0.0
        for i in range(8):
            densities = [torch.distributions.Dirichlet(probs[j] / h + 1).log_prob(probs[i]) for j in range(8) if j != i]
            total += float(torch.stack(densities).logsumexp(0)) - math.log(7)
        expected.append(total)
    close(bandwidth_likelihoods(probs), torch.tensor(expected, dtype=torch.float64), rtol=1e-9)


def test_a_sample_is_drawn_by_what_is_in_rows():
    logits, target = drawn(300)
    logits[100:200], target[100:200] = logits[:1], target[:1]
    options = {"max_samples": 50, "bandwidth": 0.1}
    expected = kde_calibration_error(logits, target, **options)
    assert expected != kde_calibration_error(logits, target, bandwidth=0.1)
    assert expected != kde_calibration_error(logits, target, **options, seed=1)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    parts = [KDECalibrationError(**options), KDECalibrationError(**options)]
    for rows in order.split(70):
        parts[int(rows[0]) % 2].update(logits[rows], target[rows])
    parts[0].merge_state(parts[1])
    close(parts[0].compute(), expected)


def test_equal_rows_are_drawn_one_by_one():
    """Drawn by their content alone, a third of all rows would be in the sample together or not at all."""
    scores, hits = torch.full((300,), 0.5), torch.zeros(300, dtype=torch.int64)
    scores[100:] = torch.linspace(0.6, 0.9, 200)
    hits[:100] = 1
    shares = []
    for seed in range(5):
        value = kde_calibration_error(
            scores,
            hits,
            task="binary",
            reduce="classwise",
            input_kind="probs",
            bandwidth=1e-5,
            max_samples=90,
            seed=seed,
        )
        shares.append((0.75 - float(value)) / 0.25)
    assert all(0.15 < share < 0.5 for share in shares)


def test_repr_says_whether_all_rows_count():
    assert "exact=False" in repr(KDECalibrationError())
    assert "exact=True" in repr(KDECalibrationError(max_samples=None))


def test_a_call_has_gradients_and_what_is_kept_has_none():
    logits, target = drawn(10)
    logits.requires_grad_()
    metric = KDECalibrationError(bandwidth=0.1)
    metric(logits, target).backward()
    assert logits.grad.abs().sum() > 0
    assert copy.deepcopy(metric).compute() == metric.compute()
    metric.update(logits, target)
    assert not metric.compute().requires_grad
    assert not any(state.requires_grad for state in metric.metric_state.values())


def test_a_collection_keeps_one_set_of_rows():
    collection = MetricCollection({"l1": KDECalibrationError(bandwidth=0.1), "l2": KDECalibrationError(p=2.0)})
    logits, target = drawn()
    collection.update(logits, target)
    collection.update(logits, target)
    assert len(collection.compute_groups) == 1
    close(collection.compute()["l1"], kde_calibration_error(logits.repeat(2, 1), target.repeat(2), bandwidth=0.1))


def test_kde_error_approaches_the_true_error():
    """Labels drawn from p ** 1.6, so that the true error is the mean of |p ** 1.6 - p|."""
    errors = []
    for n in (100, 2000):
        gaps = []
        for seed in range(5):
            g = torch.Generator().manual_seed(seed)
            p = torch.rand(n, generator=g, dtype=torch.float64)
            hits = torch.bernoulli(p**1.6, generator=g).long()
            value = kde_calibration_error(
                p, hits, task="binary", reduce="classwise", input_kind="probs", bandwidth=0.02
            )
            gaps.append(float(value) - (1 / 2 - 1 / 2.6))
        errors.append(sum(map(abs, gaps)) / 5)
    assert errors[1] < 0.02 < errors[0]


def sequences(n):
    rng = np.random.default_rng(n)
    yield rng.normal(size=n)
    yield (rng.random(n) < np.linspace(0, 1, n)).astype(float)
    yield np.arange(n, dtype=float)
    yield np.append(np.arange(n - 1.0), -5.0 * n)
    yield np.ones(n)


@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_isotonic_is_that_of_scipy_and_of_scikit_learn(n):
    weight = np.random.default_rng(0).random(n) + 0.1
    for values in sequences(n):
        np.testing.assert_allclose(isotonic(values), optimize.isotonic_regression(values).x, rtol=1e-12, atol=1e-12 * n)
        expected = isotonic_regression(values, sample_weight=weight)
        np.testing.assert_allclose(isotonic(values, weight), expected, rtol=1e-12, atol=1e-12 * n)


def test_blocks_ascend_and_hold_all_values():
    for values in sequences(500):
        means, size = pool_adjacent_violators(values)
        assert (np.diff(means) > 0).all()
        assert size.sum() == 500
        assert (size > 0).all()
    means, size = pool_adjacent_violators(np.zeros(0))
    assert len(means) == len(size) == 0


def test_blocks_keep_their_limits():
    hits = (np.random.default_rng(0).random(500) < np.linspace(0, 1, 500)).astype(np.int64)
    one = np.ones(500, dtype=np.int64)
    for n_min, n_max in ((1, 2), (10, 20), (10, 60), (50, 400)):
        size = constrained_blocks(hits, one, n_min, n_max)
        assert size.sum() == 500
        assert size.max() <= n_max
        assert size[-1] >= n_min
        ends = np.append(0, size.cumsum())
        rates = [hits[a:b].mean() for a, b in pairwise(ends)]
        # The last bin is cut off by number alone.
        for a, b, low, high in zip(size, size[1:-1], rates, rates[1:-1], strict=False):
            assert low < high or a + b > n_max
            assert a + b > n_min
    free = constrained_blocks(hits, one, 0, 501)
    np.testing.assert_array_equal(free, pool_adjacent_violators(hits.astype(float))[1])


def test_the_last_block_is_pooled_where_both_are_small_enough():
    hits, one = np.array([0, 0, 0, 1, 1, 1]), np.ones(6, dtype=np.int64)
    assert constrained_blocks(hits, one, 2, 4).tolist() == [3, 3]
    assert constrained_blocks(hits, one, 3, 5).tolist() == [3, 3]
    assert constrained_blocks(hits, one, 3, 6).tolist() == [6]
    # An entry that is too large by itself stays alone.
    assert constrained_blocks(np.array([5, 1, 1, 1]), np.array([10, 1, 1, 1]), 2, 8).tolist() == [1, 3]
    # The paper's code looks at twice the last block, so that both together may be too many.
    assert constrained_blocks(np.array([5, 1, 1]), np.array([10, 1, 1]), 2, 8).tolist() == [1, 2]
    assert constrained_blocks(np.array([5, 1, 1]), np.array([10, 1, 1]), 2, 8, count_last_twice=True).tolist() == [3]


def test_binomial_test_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for n in (1, 2, 10, 37, 200, 20000):
        for hits in {0, n // 3, n // 2, n}:
            near = np.clip(hits / n + rng.normal(size=8) / math.sqrt(n), 0, 1)
            p = np.unique(np.concatenate([[0.0, 1.0], rng.random(8), near]))
            for level in (0.05, 0.6, 1e-6):
                expected = [stats.binomtest(hits, n, rate).pvalue <= level for rate in p]
                assert _binomial_rejects(p, hits, n, level).tolist() == expected


def test_t_test_is_that_of_scipy():
    for freedom in (1, 2, 9, 999):
        for level in (0.05, 1e-4, 0.5):
            assert _t_quantile(freedom, level) == pytest.approx(stats.t.isf(level / 2, freedom), rel=1e-9)
    for a, b, x in np.random.default_rng(0).random((50, 3)) * [80, 5, 1]:
        assert _incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), abs=1e-12)
    assert [_incomplete_beta(x, 2, 3) for x in (0.0, 1.0)] == [0, 1]


def binary(scores, hits, **options):
    scores = torch.tensor(scores, dtype=torch.float64)
    return tce(scores, torch.tensor(hits), **{"task": "binary", "input_kind": "probs", **options})


def test_by_hand():
    # One bin of three labels, two of them one. At 0.05: P(2 or more) = 0.00725.
    close(binary([0.05, 0.5, 0.6], [1, 0, 1]), 100 / 3)
    close(binary([0.05, 0.5, 0.6], [1, 0, 1], siglevel=0.005), 0.0)


def test_a_test_at_its_level_rejects():
    # Both counts of one label are equally likely at one half, and 0 of 2 has the p-value 1/2.
    close(binary([0.5, 0.5], [0, 0], siglevel=0.5), 100.0)
    close(binary([0.5, 0.5], [0, 0], siglevel=0.49), 0.0)


@pytest.mark.parametrize("strategy", ["pavabc", "pava", "uniform", "quantile"])
@pytest.mark.parametrize("test", ["binom", "t"])
def test_parts_are_those_of_the_reference(strategy, test):
    logits, target = drawn(40)
    binning = {"strategy": strategy, "n_min": 3, "n_max": 15, "n_bins": 4}
    options = {**binning, "test": test, "siglevel": 0.3, "return_parts": True}
    metric = TestBasedCalibrationError(**options)
    for rows in torch.arange(40).split(7):
        metric.update(logits[rows], target[rows])
    told, once = metric.compute(), tce(logits, target, **options)
    for name, part in tce_reference(logits.tolist(), target.tolist(), **options).items():
        expected = torch.as_tensor(part, dtype=torch.float64)
        torch.testing.assert_close(told[name], expected, rtol=1e-12, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(once[name], told[name], rtol=0, atol=0, equal_nan=True)


def test_parts_of_the_constrained_error_are_those_of_the_reference():
    logits, target = drawn(40)
    options = {"n_min": 3, "n_max": 15, "return_parts": True}
    told = label_constrained_ece(logits, target, **options)
    for name, part in lce_reference(logits.tolist(), target.tolist(), **options).items():
        close(told[name], torch.as_tensor(part, dtype=torch.float64))


def test_one_bin_is_a_row_of_bins():
    options = {"n_min": 20, "n_max": 40, "return_parts": True}
    metric = LabelConstrainedECE(**options)
    metric.update(*drawn(10))
    told, once = metric.compute(), label_constrained_ece(*drawn(10), **options)
    assert told["count"].tolist() == once["count"].tolist() == [10]
    assert told["value"].shape == once["value"].shape == ()


@pytest.mark.parametrize("strategy", ["pavabc", "pava", "quantile"])
def test_equal_predictions_are_in_one_bin(strategy):
    """Of 300 rows half of the labels are one; in bins of their own, zeros and ones would all be rejected."""
    scores, hits = torch.full((300,), 0.5), torch.arange(300) % 2
    options = {"task": "binary", "input_kind": "probs", "strategy": strategy, "n_max": 40, "return_parts": True}
    for order in (slice(None), hits.argsort(), hits.argsort(descending=True)):
        told = tce(scores, hits[order], **options)
        assert told["count"].sum() == told["count"].max() == 300
        assert told["value"] == 0


@pytest.mark.parametrize("compat", [True, False])
@pytest.mark.parametrize("strategy", ["pavabc", "pava", "uniform", "quantile"])
def test_order_of_tied_rows_changes_nothing(strategy, compat):
    g = torch.Generator().manual_seed(0)
    scores, hits = torch.randint(8, (100,), generator=g) / 8, torch.randint(2, (100,), generator=g)
    options = {"task": "binary", "input_kind": "probs", "strategy": strategy, "n_min": 5, "n_max": 20}
    options = {**options, "official_compat": compat, "return_parts": True}
    order = torch.randperm(100, generator=g)
    first, second = (tce(scores[rows], hits[rows], **options) for rows in (slice(None), order))
    for name, part in first.items():
        torch.testing.assert_close(second[name], part, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"strategy": "quantile", "n_bins": 3}, {"n_min": 3, "n_max": 9}])
def test_whole_weights_are_repetitions(options):
    logits, target = drawn(30)
    times = torch.arange(30) % 3
    repeated = tce(logits.repeat_interleave(times, 0), target.repeat_interleave(times), **options)
    close(tce(logits, target, weight=times.double(), **options), repeated)
    close(tce(logits, target, weight=times, **options), repeated)


def test_labels_and_weights_that_are_not_whole_raise():
    logits, target = drawn(4)
    metric = TestBasedCalibrationError()
    with pytest.raises(ValueError, match=r"TestBasedCalibrationError: weight must be whole, .*, got 0.5 at index"):
        metric.update(logits, target, weight=torch.full((4,), 0.5))
    with pytest.raises(ValueError, match="TestBasedCalibrationError: target must be 0 or 1, since labels are counted"):
        metric.update(logits, logits.softmax(1))
    unchecked = TestBasedCalibrationError(validate_args=False)
    unchecked.update(logits, logits.softmax(1))
    with pytest.raises(ValueError, match="target must be zeros and ones with whole weights"):
        unchecked.compute()


def test_soft_targets_of_another_metric_are_not_shared():
    collection = MetricCollection([KSCalibrationError(), TestBasedCalibrationError(), LabelConstrainedECE()])
    for _ in range(2):
        collection.update(*drawn())
    assert len(collection.compute_groups) == 2
    close(collection.compute()["TestBasedCalibrationError"], tce(*(part.repeat_interleave(2, 0) for part in drawn())))


@pytest.mark.parametrize("cls", [TestBasedCalibrationError, LabelConstrainedECE])
@pytest.mark.parametrize("return_parts", [False, True])
def test_no_labels_are_nan_with_a_warning(cls, return_parts):
    metric = cls(return_parts=return_parts)
    logits, target = drawn(4)
    metric.update(logits, torch.full_like(target, -100))
    with pytest.warns(UserWarning, match="the value is nan, since no target counted"):
        told = metric.compute()
    assert (told["value"] if return_parts else told).isnan()
    metric.update(logits, torch.zeros_like(target))
    told = metric.compute()
    assert (told["value"] if return_parts else told).isfinite()


@pytest.mark.parametrize("strategy", ["pavabc", "pava", "uniform", "quantile"])
@pytest.mark.parametrize("test", ["binom", "t"])
def test_ends_and_labels_of_one_kind(strategy, test):
    options = {"strategy": strategy, "test": test}
    close(binary([0.0, 0.0, 1.0, 1.0], [1, 1, 1, 1], **options), 50.0)
    close(binary([1.0, 1.0], [1, 1], **options), 0.0)
    close(binary([0.0, 0.0], [1, 1], **options), 100.0)
    assert 0 <= binary([0.3], [1], **options) <= 100
    logits, _ = drawn(30)
    assert tce(logits, torch.zeros(30, dtype=torch.int64), reduce="classwise", num_classes=3, **options).isfinite()


def test_official_t_test_rejects_labels_without_variance():
    options = {"test": "t", "n_min": 1, "n_max": 2}
    close(binary([1.0, 1.0], [1, 1], **options), 0.0)
    close(binary([1.0, 1.0], [1, 1], official_compat=True, **options), 100.0)


def test_pytest_leaves_the_class_alone():
    assert TestBasedCalibrationError.__test__ is False


def test_tce_keeps_its_scale_when_positives_become_rare():
    """Predictions are twice as high as the rate; the expected error shrinks with that."""
    errors = []
    for rate in (0.4, 0.02):
        g = torch.Generator().manual_seed(0)
        p = rate * (0.5 + torch.rand(20000, generator=g, dtype=torch.float64))
        hits = torch.bernoulli(p / 2, generator=g).long()
        options = {"task": "binary", "input_kind": "probs"}
        errors.append((float(tce(p, hits, **options)), float(label_constrained_ece(p, hits, **options))))
    (common, large), (rare, small) = errors
    assert small < large / 10
    assert common > 90
    assert rare > 50


def test_figures_of_label_bins():
    metric = TestBasedCalibrationError(n_min=5, n_max=30)
    metric.update(*drawn(200))
    above, below = metric.figure(title="held out").axes
    told = tce(*drawn(200), n_min=5, n_max=30, return_parts=True)
    assert above.title == f"test-based calibration error {told['value']:.1f} %"
    assert below.marks[0].height == pytest.approx((told["rejected"] / told["count"]).tolist())
    assert above.marks[0].height == pytest.approx((told["positives"] / told["count"]).tolist())
    assert "<svg" in to_svg(metric.figure())
    one = LabelConstrainedECE(reduce="classwise", num_classes=3)
    one.update(*drawn(50))
    assert len(one.figure(2).axes) == 1
    with pytest.raises(ValueError, match="class_index must name one of 3 classes, got None"):
        one.figure()
    assert "<svg" in to_svg(TestBasedCalibrationError().figure())


def smooth(scores, hits, **options):
    return smooth_calibration_error(
        torch.as_tensor(scores, dtype=torch.float64),
        torch.as_tensor(hits),
        **{"task": "binary", "input_kind": "probs", **options},
    )


def test_one_row_has_its_residual():
    for score in (0.0, 0.3, 1.0):
        for hit in (0, 1):
            close(smooth([score], [hit], sigma=0.2), abs(score - hit), rtol=1e-3)


def test_residuals_cancel_within_the_width():
    scores, hits = [0.4, 0.6], [1, 0]
    assert smooth(scores, hits, sigma=0.01) > 0.59
    assert smooth(scores, hits, sigma=1.0) < 0.2


@pytest.mark.parametrize("n", [1, 2, 20, 2000])
def test_width_is_the_least_that_is_no_less_than_the_error(n):
    g = torch.Generator().manual_seed(n)
    p = torch.rand(n, generator=g, dtype=torch.float64)
    hits = torch.bernoulli(p**2, generator=g).long()
    told = smooth(p, hits, return_parts=True)
    width = float(told["sigma"])
    assert width * 1024 == round(width * 1024)
    assert told["value"] <= width
    assert smooth(p, hits, sigma=width - 1 / 1024) > width - 1 / 1024
    close(smooth(p, hits, sigma=width), told["value"])


def test_rows_without_error_take_the_least_width():
    told = smooth([0.0, 1.0, 1.0], [0, 1, 1], return_parts=True)
    assert told == {"value": 0, "sigma": 2 / 1024}


def test_ends_and_equal_scores_are_finite():
    for scores in ([0.0, 1.0], [1.0, 1.0], [0.5, 0.5]):
        for hits in ([0, 1], [1, 0], [1, 1], [0, 0]):
            for sigma in (None, 0.001, 0.05, 5.0):
                assert 0 <= smooth(scores, hits, sigma=sigma) <= 1
    for sigma in (None, 0.1):
        close(smooth([0.0, 0.0], [1, 1], sigma=sigma), 1.0, rtol=1e-3)
    rounded = torch.tensor([[0.7, 0.3015], [0.2, 0.7985]])
    assert smooth_calibration_error(rounded, torch.tensor([0, 0]), input_kind="probs").isfinite()


@pytest.mark.parametrize("options", [{}, {"reduce": "classwise", "num_classes": 3}, {"sigma": 0.1}])
def test_smooth_weights_equal_repetition(options):
    logits, target = drawn(20)
    times = torch.arange(20) % 4
    repeated = smooth_calibration_error(logits.repeat_interleave(times, 0), target.repeat_interleave(times), **options)
    close(smooth_calibration_error(logits, target, weight=times.double(), **options), repeated)


def test_classes_have_widths_of_their_own():
    logits, target = drawn(50)
    p = logits.softmax(1)
    options = {"reduce": "classwise", "num_classes": 3}
    told = smooth_calibration_error(logits, target, return_parts=True, **options)
    each = [smooth(p[:, k], (target == k).long(), return_parts=True) for k in range(3)]
    close(told["value"], sum(own["value"] for own in each) / 3)
    assert told["sigma"].tolist() == [own["sigma"] for own in each]
    assert len(set(told["sigma"].tolist())) > 1


def test_smooth_nothing_is_nan_with_a_warning():
    metric = SmoothCalibrationError()
    logits, target = drawn(4)
    metric.update(logits, torch.full_like(target, -100))
    with pytest.warns(UserWarning, match="SmoothCalibrationError: the value is nan") as heard:
        assert metric.compute().isnan()
    assert len(heard) == 1
    with pytest.raises(ValueError, match="SmoothCalibrationError: logits must be finite, got nan"):
        metric.update(torch.full((4, 3), math.nan), target)
    metric.update(logits, torch.zeros_like(target))
    assert metric.compute().isfinite()


def test_state_does_not_grow_and_splits_give_the_value_of_one_pass():
    logits, target = drawn(3000)
    metric, sizes = SmoothCalibrationError(), []
    for rows in torch.arange(3000).split(700):
        metric.update(logits[rows], target[rows])
        sizes.append(len(pickle.dumps(metric)))
    assert max(sizes) - sizes[0] < 100
    close(metric.compute(), smooth_calibration_error(logits, target))


def test_a_calibrated_model_has_a_small_smooth_error():
    errors = []
    for n in (200, 20000):
        g = torch.Generator().manual_seed(0)
        p = torch.rand(n, generator=g, dtype=torch.float64)
        errors.append(float(smooth(p, torch.bernoulli(p, generator=g).long())))
    assert errors[1] < 0.02 < errors[0] < 0.1


def test_figure_of_the_smooth_error():
    metric = SmoothCalibrationError(return_parts=True)
    metric.update(*drawn(500))
    above, below = metric.figure(title="held out").axes
    told = metric.compute()
    assert above.title == f"smooth calibration error {told['value']:.4f}, width {told['sigma']:.4f}"
    # The mean of rows around each score, by the kernel and its two mirrors.
    logits, target = drawn(500)
    p, top = logits.softmax(1).max(1)
    hits = (top == target).double()
    for place, rate in list(zip(above.marks[1].x, above.marks[1].y, strict=True))[80::20]:
        ends = torch.stack([p - place, -p - place, 2 - p - place])
        kernel = torch.where(ends.abs() <= 0.5, (-(ends**2) / (2 * told["sigma"] ** 2)).exp(), 0).sum(0)
        assert rate == pytest.approx(float((kernel * hits).sum() / kernel.sum()), abs=1e-3)
    assert sum(below.marks[0].y) / len(below.marks[0].y) == pytest.approx(1)
    assert "<svg" in to_svg(metric.figure())
    assert "<svg" in to_svg(SmoothCalibrationError().figure())
    by_class = SmoothCalibrationError(reduce="classwise", num_classes=3)
    by_class.update(*drawn(50))
    assert len(by_class.figure(1).axes) == 2
    with pytest.raises(ValueError, match="class_index must name one of 3 classes, got None"):
        by_class.figure()
