"""A metric for each group of rows, and with a bootstrap interval."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from torchmetrics import MaxMetric, MetricCollection
from torchmetrics.classification import BinaryAUROC

from trainkit._core.svg import to_svg
from trainkit.binding import bind
from trainkit.calibration.metrics import (
    AURC,
    ECE,
    BinnedCalibrationError,
    BootstrapInterval,
    BrierScore,
    GroupedMetric,
    KSCalibrationError,
    ReliabilityDiagram,
    TopOneChangeRate,
)

BINARY = {"task": "binary", "input_kind": "probs"}


def rows(n=600, seed=0):
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(n, generator=g, dtype=torch.float64)
    return p, (torch.rand(n, generator=g, dtype=torch.float64) < p**1.3).long(), torch.randint(-1, 3, (n,), generator=g)


def whole(metric, *inputs):
    metric.update(*inputs)
    return metric.compute()


@pytest.mark.parametrize("cls", [BrierScore, ECE, KSCalibrationError, AURC])
def test_a_group_has_the_value_of_its_rows_alone(cls):
    p, target, groups = rows()
    metric = GroupedMetric(cls(**BINARY), 3)
    for part in torch.arange(600).split(170):
        metric.update(p[part], target[part], groups=groups[part])
    expected = [whole(cls(**BINARY), p[groups == g], target[groups == g]) for g in range(3)]
    torch.testing.assert_close(metric.compute(), torch.stack(expected), rtol=1e-12, atol=0)


def test_groups_of_a_metric_that_gives_a_mapping_and_of_weights():
    p, target, groups = rows()
    weight = torch.arange(600) % 3
    metric = GroupedMetric(ReliabilityDiagram(**BINARY, n_bins=4), 3)
    metric.update(p, target, weight=weight, groups=groups)
    alone = ReliabilityDiagram(**BINARY, n_bins=4)
    alone.update(p[groups == 2], target[groups == 2], weight=weight[groups == 2])
    for name, value in alone.compute().items():
        torch.testing.assert_close(metric.compute()[name][2], value, equal_nan=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metric.figure(group=2) == alone.figure()
    with pytest.raises(ValueError, match="group must name one of 3: ReliabilityDiagram has many values"):
        metric.figure()
    with pytest.raises(ValueError, match="group must be < 3, got 3"):
        metric.figure(group=3)


def test_a_group_without_rows_is_nan_and_says_nothing():
    metric = GroupedMetric(ECE(**BINARY), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(*rows()[:2], groups=torch.zeros(600, dtype=torch.int64))
        value = metric.compute()
    assert value[1:].isnan().all()


def test_the_bars_of_groups_stand_beside_the_value_of_all():
    p, target, groups = rows()
    metric = GroupedMetric(BrierScore(**BINARY), 3)
    metric.update(p, target, groups=groups)
    bars, line = metric.figure().axes[0].marks
    assert bars.height == tuple(metric.compute().tolist())
    kept = groups >= 0
    assert line.y[0] == pytest.approx(whole(BrierScore(**BINARY), p[kept], target[kept]).item(), rel=1e-12)
    assert "<svg" in to_svg(metric.figure())


def test_an_update_that_is_refused_adds_nothing():
    p, target, groups = rows(40)
    for metric, own in (
        (GroupedMetric(BrierScore(**BINARY), 3), {"groups": groups}),
        (BootstrapInterval(AURC(**BINARY), n_resamples=9), {}),
    ):
        metric.update(p, target, **own)
        before = metric.compute()
        bad = p.clone()
        bad[groups >= 0] = math.nan
        with pytest.raises(ValueError, match="BrierScore|AURC"):
            metric.update(bad, target, **own)
        with pytest.raises(ValueError, match="target must have 40 rows, as logits, got a tensor of shape"):
            metric.update(p, target[:1], **own)
        torch.testing.assert_close(metric.compute(), before, rtol=0, atol=0)


def test_wrappers_are_fed_by_name_as_the_metric_is():
    p, target, groups = rows()
    available = {"logits": p, "target": target, "groups": groups, "index": torch.arange(600), "features": p}
    metric = BootstrapInterval(GroupedMetric(BrierScore(**BINARY), 3), n_resamples=9)
    assert sorted(bind(metric, available)) == ["groups", "index", "logits", "target"]
    for other in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
        other.update(**bind(other, available))
        assert other.compute()["low"].shape == (3,)
    collection = MetricCollection({"interval": metric, "brier": BrierScore(**BINARY)})
    collection.update(logits=p, target=target, groups=groups)
    assert collection.compute()["value"].shape == (3,)


@pytest.mark.parametrize("method", ["basic", "percentile"])
def test_the_interval_of_a_mean_is_that_of_the_normal_distribution(method):
    p, target, _ = rows(4000)
    metric = BootstrapInterval(BrierScore(**BINARY, form="half"), n_blocks=400, n_resamples=4000, method=method)
    for part in torch.arange(4000).split(999):
        metric.update(p[part], target[part])
    told = metric.compute()
    losses = (p - target).square()
    half = 1.96 * losses.std() / 4000**0.5
    assert told["value"] == pytest.approx(losses.mean(), rel=1e-12)
    assert told["low"] == pytest.approx(losses.mean() - half, abs=0.15 * half)
    assert told["high"] == pytest.approx(losses.mean() + half, abs=0.15 * half)


def test_sorted_rows_have_the_interval_of_shuffled_ones():
    p, target, _ = rows(4000)
    order = (p - target).square().argsort()
    widths = []
    for shown in (torch.arange(4000), order):
        told = whole(BootstrapInterval(BrierScore(**BINARY), n_resamples=2000), p[shown], target[shown])
        widths.append((told["high"] - told["low"]).item())
    assert widths[1] == pytest.approx(widths[0], rel=0.25)


def test_with_an_index_the_interval_is_the_same_over_any_split_and_of_a_sample_too():
    p, target, _ = rows(300)
    index = torch.arange(300)
    for inner in (KSCalibrationError(**BINARY), ECE(**BINARY)):
        one, other = (BootstrapInterval(inner, n_blocks=50, n_resamples=20) for _ in range(2))
        one.update(p, target, index=index)
        for part in index.flip(0).split(70):
            other(p[part], target[part], index=part)
        torch.testing.assert_close(one.compute(), other.compute(), rtol=1e-12, atol=1e-14)


def test_without_an_index_calls_and_updates_deal_alike():
    p, target, _ = rows(300)
    one, other = (BootstrapInterval(BrierScore(**BINARY), n_blocks=50, n_resamples=20) for _ in range(2))
    one.update(p, target)
    for part in torch.arange(300).split(70):
        other(p[part], target[part])
    torch.testing.assert_close(one.compute(), other.compute(), rtol=1e-12, atol=0)


def test_rows_that_belong_together_are_drawn_together():
    """Ten copies of each row say no more than the row: their index keeps the interval as wide."""
    p, target, _ = rows(90)
    once = whole(BootstrapInterval(BrierScore(**BINARY)), p, target)
    copies = BootstrapInterval(BrierScore(**BINARY))
    copies.update(p.repeat(10), target.repeat(10), index=torch.arange(90).repeat(10))
    torch.testing.assert_close(copies.compute(), once, rtol=1e-12, atol=0)


def test_the_basic_interval_takes_off_what_little_data_adds():
    p, _, _ = rows(1000, seed=3)
    target = (torch.rand(1000, generator=torch.Generator().manual_seed(4), dtype=torch.float64) < p).long()
    percentile = whole(BootstrapInterval(ECE(**BINARY), method="percentile"), p, target)
    basic = whole(BootstrapInterval(ECE(**BINARY)), p, target)
    value = percentile["value"]
    assert percentile["high"] - value > 4 * (value - percentile["low"])
    torch.testing.assert_close(basic["low"], 2 * value - percentile["high"])
    torch.testing.assert_close(basic["high"], 2 * value - percentile["low"])


@pytest.mark.slow
def test_shares_of_intervals_that_hold_the_truth():
    """The numbers in the docstring."""
    g = torch.Generator().manual_seed(9)
    scores = torch.rand(2_000_000, generator=g, dtype=torch.float64)
    rates = scores**1.1
    truth = {
        "ece": whole(BinnedCalibrationError(**BINARY), scores, rates),
        "brier": (2 * ((scores - rates).square() + rates * (1 - rates))).mean(),
    }
    assert truth["ece"] == pytest.approx(0.024, abs=5e-4)
    held = dict.fromkeys([(name, method) for name in truth for method in ("basic", "percentile")], 0)
    for trial in range(150):
        g = torch.Generator().manual_seed(trial)
        p = torch.rand(1000, generator=g, dtype=torch.float64)
        target = (torch.rand(1000, generator=g, dtype=torch.float64) < p**1.1).long()
        for name, method in held:
            inner = {"ece": ECE, "brier": BrierScore}[name](**BINARY)
            told = whole(BootstrapInterval(inner, n_resamples=400, method=method), p, target)
            held[name, method] += bool(told["low"] <= truth[name] <= told["high"])
    assert held["ece", "percentile"] == 0
    assert held["ece", "basic"] / 150 == pytest.approx(0.87, abs=0.01)
    for method in ("basic", "percentile"):
        assert held["brier", method] / 150 == pytest.approx(0.97, abs=0.01)


def test_intervals_of_a_mapping_and_of_no_rows():
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    metric = BootstrapInterval(TopOneChangeRate(return_parts=True), n_resamples=50)
    metric.update(logits, logits.flip(1), torch.arange(200) % 4)
    told = metric.compute()
    assert told["rate_low"] <= told["rate"] <= told["rate_high"]
    assert metric.figure("rate").axes[0].x_label == "rate"
    with pytest.raises(
        ValueError, match=r"name must be one of \[.*'rate'.*\], the entries that are one number, got 'value'"
    ):
        metric.figure()
    empty = BootstrapInterval(ECE(**BINARY), n_resamples=5)
    with pytest.warns(UserWarning, match="ECE: the value is nan"):
        assert all(v.isnan() for v in whole(empty, torch.zeros(0), torch.zeros(0)).values())
    assert "<svg" in to_svg(empty.figure())


def test_the_figure_shows_the_resampled_values():
    p, target, _ = rows()
    metric = BootstrapInterval(BrierScore(**BINARY))
    metric.update(p, target)
    bars, value, low, high = metric.figure().axes[0].marks
    told = metric.compute()
    assert sum(bars.height) == metric.n_resamples
    assert (value.x[0], low.x[0], high.x[0]) == tuple(told[k].item() for k in ("value", "low", "high"))
    assert "<svg" in to_svg(metric.figure())


@pytest.mark.parametrize("inner", [BinaryAUROC(thresholds=None), MaxMetric()])
def test_metrics_of_others_with_other_states_are_refused(inner):
    with pytest.raises(TypeError, match="metric must have states that are sums or rows|metric must name the arguments"):
        BootstrapInterval(inner)
