"""Behaviours of the smoothing and testing calibration metrics that no property covers."""

import copy
import math

import pytest
import torch
from torchmetrics import MetricCollection

from trainkit._core.kde import bandwidths, leave_one_out, select_bandwidth
from trainkit.calibration.metrics import KDECalibrationError, kde_calibration_error


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
