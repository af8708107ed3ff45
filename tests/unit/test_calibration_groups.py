"""Behaviours of the metrics of groups, neighbours, changes and single bins that no property covers."""

import math

import pytest
import torch
from torchmetrics import MetricCollection

from trainkit._core.svg import to_svg
from trainkit.calibration import NeighborProximity
from trainkit.calibration.metrics import (
    ECE,
    MCE,
    BrierDecomposition,
    CertifiedBinCalibration,
    ClasswiseECE,
    PartitionedCalibrationError,
    PostHocImprovement,
    ProximityInformedECE,
    ReliabilityDiagram,
    StratumCoverage,
    binned_calibration_error,
    brier_decomposition,
    brier_score,
    certified_bin_calibration,
    confidence_lipschitz,
    entropy_strata,
    feature_strata,
    negative_log_likelihood,
    partitioned_calibration_error,
    post_hoc_improvement,
    proximity_informed_ece,
    size_strata,
    stratum_coverage,
    top_one_change_rate,
)

NAN = math.nan


def close(got, expected, rtol=1e-12, atol=1e-14):
    got = torch.as_tensor(got)
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=atol, equal_nan=True)


def drawn(n=200, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, (0.5 * logits).softmax(1).multinomial(1, generator=g)[:, 0]


def grouped(n=200, num_groups=3, seed=0):
    g = torch.Generator().manual_seed(seed + 1)
    return (*drawn(n, seed=seed), torch.randint(-1, num_groups, (n,), generator=g))


def split(metric, size, /, *tensors, **named):
    """Value of a metric that got the rows in pieces."""
    for rows in torch.arange(len(tensors[0])).split(size):
        metric.update(*(t[rows] for t in tensors), **{k: t[rows] for k, t in named.items()})
    return metric.compute()


def alike(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        close(got[name], value)


class TestPartitioned:
    def test_errors_that_cancel_in_an_ece_do_not_cancel_over_groups(self):
        p, target, groups = torch.full((4,), 0.7), torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 1, 1])
        options = {"task": "binary", "n_bins": 5, "input_kind": "probs"}
        told = partitioned_calibration_error(p, target, groups=groups, num_groups=2, return_parts=True, **options)
        close(told["per_group"], [0.3, 0.2], rtol=1e-6)
        close(told["error"], 0.25, rtol=1e-6)
        close(told["worst_group"], 0.3, rtol=1e-6)
        close(told["max_gap"], 0.1, rtol=1e-6)

    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize("n_bins", [1, 5, 15])
    def test_never_below_the_ece_over_the_same_bins(self, seed, n_bins):
        logits, target, groups = grouped(60, seed=seed)
        groups = groups.clamp_min(0)
        pce = partitioned_calibration_error(logits, target, groups=groups, num_groups=3, n_bins=n_bins)
        assert pce >= binned_calibration_error(logits, target, n_bins=n_bins) - 1e-15

    @pytest.mark.parametrize("norm", ["l1", "l2", "max"])
    def test_one_group_is_the_binned_error(self, norm):
        logits, target = drawn()
        groups = torch.zeros(200, dtype=torch.int64)
        got = partitioned_calibration_error(logits, target, groups=groups, num_groups=1, norm=norm)
        close(got, binned_calibration_error(logits, target, norm=norm))

    @pytest.mark.parametrize("size", [1, 7, 200])
    def test_any_split_is_one_pass(self, size):
        logits, target, groups = grouped()
        metric = PartitionedCalibrationError(3, n_bins=5, return_parts=True)
        expected = partitioned_calibration_error(
            logits, target, groups=groups, num_groups=3, n_bins=5, return_parts=True
        )
        alike(split(metric, size, logits, target, groups=groups), expected)

    @pytest.mark.parametrize("norm", ["l1", "l2", "max"])
    def test_weights_equal_repetition(self, norm):
        logits, target, groups = grouped(20)
        times = torch.arange(20) % 4
        options = {"num_groups": 3, "norm": norm, "n_bins": 4, "return_parts": True}
        repeated = partitioned_calibration_error(
            logits.repeat_interleave(times, 0),
            target.repeat_interleave(times),
            groups=groups.repeat_interleave(times),
            **options,
        )
        weighted = partitioned_calibration_error(logits, target, groups=groups, weight=times.double(), **options)
        alike(weighted, repeated)

    def test_a_group_without_targets_is_nan_and_counts_in_nothing_else(self):
        logits, target = drawn(10)
        groups = torch.full((10,), 1)
        told = partitioned_calibration_error(logits, target, groups=groups, num_groups=3, return_parts=True)
        assert told["per_group"].isnan().tolist() == [True, False, True]
        close(told["worst_group"], told["error"])
        close(told["max_gap"], 0.0)

    def test_left_out_groups_equal_left_out_rows(self):
        logits, target, groups = grouped()
        kept = groups >= 0
        options = {"num_groups": 3, "return_parts": True}
        alike(
            partitioned_calibration_error(logits, target, groups=groups, **options),
            partitioned_calibration_error(logits[kept], target[kept], groups=groups[kept], **options),
        )

    def test_blocks_of_a_large_batch_keep_their_groups(self):
        logits, target = drawn(70000)
        groups = torch.arange(70000) % 3
        for reduce in (None, "all"):
            options = {"num_groups": 3, "reduce": reduce, "return_parts": True}
            metric = PartitionedCalibrationError(**options)
            alike(
                split(metric, 1000, logits, target, groups=groups),
                partitioned_calibration_error(logits, target, groups=groups, **options),
            )

    @pytest.mark.parametrize("hit", [0, 1])
    def test_one_row_one_class_and_certain_probabilities(self, hit):
        options = {"num_groups": 2, "task": "binary", "input_kind": "probs"}
        groups = torch.tensor([0])
        for p in (0.0, 1.0):
            got = partitioned_calibration_error(torch.tensor([p]), torch.tensor([hit]), groups=groups, **options)
            close(got, abs(hit - p))

    @pytest.mark.parametrize("nothing", ["no rows", "no group", "no weight"])
    def test_nothing_to_average_is_nan_with_one_warning(self, nothing):
        logits, target = drawn(4)
        groups = torch.full((4,), -1 if nothing == "no group" else 0)
        metric = PartitionedCalibrationError(2, return_parts=True)
        rows = slice(0, 0) if nothing == "no rows" else slice(None)
        weight = torch.zeros(4)[rows] if nothing == "no weight" else None
        metric.update(logits[rows], target[rows], groups=groups[rows], weight=weight)
        with pytest.warns(UserWarning, match="PartitionedCalibrationError: the value is nan") as heard:
            told = metric.compute()
        assert len(heard) == 1
        assert all(told[name].isnan().all() for name in ("error", "per_group", "worst_group", "max_gap"))

    def test_wrong_probabilities_and_nan_raise(self):
        groups, target = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1])
        for wrong, words in ((torch.full((2, 2), 0.7), "sum to 1"), (torch.full((2, 2), math.nan), "got nan")):
            with pytest.raises(ValueError, match=f"partitioned_calibration_error: .*{words}"):
                partitioned_calibration_error(wrong, target, groups=groups, num_groups=1, input_kind="probs")
        with pytest.raises(ValueError, match=r"logits must have shape \(N, C, ...\)"):
            partitioned_calibration_error(torch.zeros(2), target, groups=groups, num_groups=1, task="multilabel")


def near(n=200, seed=0):
    g = torch.Generator().manual_seed(seed + 2)
    return (*drawn(n, seed=seed), torch.rand(n, generator=g, dtype=torch.float64))


FROZEN = {"n_proximity_bins": 4, "proximity_edges": [0.0, 0.2, 0.5, 0.9, 1.0]}


class TestProximityInformed:
    def test_bias_far_from_the_data_does_not_cancel(self):
        options = {"task": "binary", "n_bins": 5, "n_proximity_bins": 2, "input_kind": "probs", "return_parts": True}
        p, target = torch.full((4,), 0.7, dtype=torch.float64), torch.tensor([1, 1, 1, 0])
        told = proximity_informed_ece(p, target, proximity=torch.tensor([0.9, 0.8, 0.2, 0.1]), **options)
        close(told["gap"], [-0.2, 0.3])
        close(told["per_bin"], [0.2, 0.3])
        close(told["error"], 0.25)
        close(told["edges"], [0.0, 0.8, 1.0], rtol=1e-6)

    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize("options", [{}, FROZEN, {"reduce": "all"}, {"ties": "together"}])
    def test_never_below_the_ece_over_the_same_bins(self, seed, options):
        logits, target, proximity = near(60, seed=seed)
        piece = proximity_informed_ece(logits, target, proximity=proximity, n_bins=7, **options)
        assert piece >= binned_calibration_error(logits, target, n_bins=7, reduce=options.get("reduce")) - 1e-15

    def test_one_bin_of_proximity_is_the_ece(self):
        logits, target, proximity = near()
        piece = proximity_informed_ece(logits, target, proximity=proximity, n_bins=15, n_proximity_bins=1)
        close(piece, binned_calibration_error(logits, target))

    def test_edges_of_the_parts_freeze_the_bins(self):
        logits, target, proximity = near()
        told = proximity_informed_ece(logits, target, proximity=proximity, return_parts=True)
        frozen = ProximityInformedECE(proximity_edges=told["edges"].tolist(), return_parts=True)
        alike(split(frozen, 7, logits, target, proximity=proximity), told)
        assert set(frozen.metric_state) == {"bins", "settings"}

    @pytest.mark.parametrize("size", [1, 7, 200])
    @pytest.mark.parametrize("options", [{}, FROZEN, {"ties": "together", "n_proximity_bins": 3}])
    def test_any_split_is_one_pass(self, size, options):
        logits, target, proximity = near()
        metric = ProximityInformedECE(**options, return_parts=True)
        expected = proximity_informed_ece(logits, target, proximity=proximity, return_parts=True, **options)
        alike(split(metric, size, logits, target, proximity=proximity), expected)

    def test_weights_equal_repetition_between_edges(self):
        logits, target, proximity = near(20)
        times = torch.arange(20) % 4
        repeated = proximity_informed_ece(
            logits.repeat_interleave(times, 0),
            target.repeat_interleave(times),
            proximity=proximity.repeat_interleave(times),
            return_parts=True,
            **FROZEN,
        )
        weight = times.double()
        options = {"proximity": proximity, "weight": weight, "return_parts": True, **FROZEN}
        alike(proximity_informed_ece(logits, target, **options), repeated)

    def test_without_edges_a_weight_moves_bins_and_zero_leaves_out(self):
        logits, target, proximity = near(40)
        weight = (torch.arange(40) % 3 > 0).double()
        kept = weight > 0
        options = {"n_proximity_bins": 3, "return_parts": True}
        alike(
            proximity_informed_ece(logits, target, proximity=proximity, weight=2 * weight, **options)
            | {"count": torch.zeros(3)},
            proximity_informed_ece(logits[kept], target[kept], proximity=proximity[kept], **options)
            | {"count": torch.zeros(3)},
        )

    def test_ties_stay_together_on_demand(self):
        logits, target, _ = near(10)
        same = torch.full((10,), 0.5)
        told = proximity_informed_ece(
            logits, target, proximity=same, n_proximity_bins=2, ties="together", return_parts=True
        )
        assert sorted(told["count"].tolist()) == [0.0, 10.0]
        told = proximity_informed_ece(logits, target, proximity=same, n_proximity_bins=2, return_parts=True)
        assert told["count"].tolist() == [5.0, 5.0]

    def test_blocks_of_a_large_batch_keep_their_proximity(self):
        logits, target, proximity = near(70000)
        for options in (FROZEN, {}):
            metric = ProximityInformedECE(**options, return_parts=True)
            alike(
                split(metric, 1000, logits, target, proximity=proximity),
                proximity_informed_ece(logits, target, proximity=proximity, return_parts=True, **options),
            )

    @pytest.mark.parametrize("options", [{}, FROZEN])
    def test_one_row_ends_and_one_class(self, options):
        settings = {"task": "binary", "input_kind": "probs", **options}
        for p in (0.0, 1.0):
            for end in (0.0, 1.0):
                target = torch.tensor([1])
                got = proximity_informed_ece(torch.tensor([p]), target, proximity=torch.tensor([end]), **settings)
                close(got, 1 - p)

    @pytest.mark.parametrize("options", [{}, FROZEN])
    @pytest.mark.parametrize("nothing", ["no update", "no rows", "no weight"])
    def test_nothing_to_average_is_nan_with_one_warning(self, options, nothing):
        logits, target, proximity = near(4)
        metric = ProximityInformedECE(**options, return_parts=True)
        if nothing != "no update":
            rows = slice(0, 0) if nothing == "no rows" else slice(None)
            weight = torch.zeros(4)[rows]
            metric.update(logits[rows], target[rows], proximity=proximity[rows], weight=weight)
        words = "compute.*called before" if nothing == "no update" else "ProximityInformedECE: the value is nan"
        with pytest.warns(UserWarning, match=words) as heard:
            told = metric.compute()
        assert len(heard) == 1
        assert told["error"].isnan()
        assert told["per_bin"].isnan().all()


class TestNeighborProximity:
    def test_by_hand_and_without_the_row_itself(self):
        bank = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
        module = NeighborProximity(k=2).fit(bank)
        e = math.exp
        close(module(bank[:1]), [(1 + e(-2)) / 2])
        close(module(bank[:1], ids=torch.tensor([0])), [(e(-2) + e(-5)) / 2])
        close(module(bank[:1], ids=torch.tensor([-1])), [(1 + e(-2)) / 2])

    def test_chunks_change_nothing_and_search_is_exact(self):
        g = torch.Generator().manual_seed(0)
        bank, queries = torch.randn(300, 8, generator=g).double(), torch.randn(50, 8, generator=g).double()
        expected = torch.cdist(queries, bank).sort(1).values[:, :5].neg().exp().mean(1)
        for chunk in (1, 7, 1024):
            close(NeighborProximity(k=5, chunk_size=chunk).fit(bank)(queries), expected, rtol=1e-10)

    def test_near_rows_far_from_the_origin_keep_their_distance(self):
        g = torch.Generator().manual_seed(0)
        bank = 1000 + torch.randn(100, 16, generator=g)
        proximity = NeighborProximity(k=1).fit(bank)(bank + 0.001)
        torch.testing.assert_close(proximity, torch.full((100,), math.exp(-0.004)), rtol=2e-3, atol=0)

    def test_normalized_features_forget_their_length(self):
        g = torch.Generator().manual_seed(0)
        bank, queries = torch.randn(20, 4, generator=g), torch.randn(5, 4, generator=g)
        module = NeighborProximity(k=3, normalize=True).fit(bank)
        torch.testing.assert_close(module(7 * queries), module(queries))

    def test_a_large_bank_is_drawn_from_with_its_ids(self):
        features = torch.arange(1000.0).unsqueeze(1)
        first, second = (NeighborProximity(k=1, bank_size=50, seed=seed).fit(features) for seed in (0, 1))
        assert len(first.bank) == 50
        assert torch.equal(first.bank[:, 0].long(), first.bank_ids)
        assert not torch.equal(first.bank_ids, second.bank_ids)
        assert torch.equal(first.bank, NeighborProximity(k=1, bank_size=50).fit(features).bank)
        assert (first(first.bank, ids=first.bank_ids) < 1).all()

    def test_what_is_fitted_is_its_own_and_survives_casts_and_files(self):
        features = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
        module = NeighborProximity(k=3).fit(features)
        expected = module(features)
        other = NeighborProximity(k=3)
        other.load_state_dict(module.state_dict())
        features_before = features.clone()
        features += 1
        torch.testing.assert_close(module.to(torch.bfloat16)(features_before), expected, rtol=0, atol=0)
        torch.testing.assert_close(other(features_before), expected, rtol=0, atol=0)

    def test_wrong_calls(self):
        module = NeighborProximity(k=1)
        with pytest.raises(RuntimeError, match="NeighborProximity: fit must be called before forward"):
            module(torch.zeros(1, 1))
        with pytest.raises(ValueError, match="ids must be all different"):
            module.fit(torch.zeros(3, 1), ids=torch.tensor([0, 1, 1]))
        with pytest.raises(TypeError, match="ids must be int64"):
            module.fit(torch.zeros(3, 1), ids=torch.zeros(3))
        with pytest.raises(ValueError, match=r"ids must have shape \(3,\)"):
            module.fit(torch.zeros(3, 1), ids=torch.zeros(2, dtype=torch.int64))

    def test_the_metric_takes_its_numbers(self):
        logits, target = drawn(50)
        proximity = NeighborProximity(k=5).fit(logits)(logits, ids=torch.arange(50))
        assert ((proximity > 0) & (proximity <= 1)).all()
        assert proximity_informed_ece(logits, target, proximity=proximity).isfinite()


def total(told):
    rest = told["within_variance"] - told["within_covariance"]
    return told["reliability"] - told["resolution"] + told["uncertainty"] + rest


class TestBrierDecomposition:
    @pytest.mark.parametrize("n_bins", [1, 5, 15, 100])
    @pytest.mark.parametrize("seed", range(5))
    def test_parts_add_up_to_the_score(self, n_bins, seed):
        logits, target = drawn(300, seed=seed)
        told = brier_decomposition(logits, target, n_bins=n_bins)
        close(total(told), told["brier"], rtol=0, atol=1e-12)
        close(told["brier"], brier_score(logits, target, form="top_label"))
        soft = (2 * logits.flip(0)).softmax(1)
        told = brier_decomposition(logits, soft, n_bins=n_bins)
        close(total(told), told["brier"], rtol=0, atol=1e-12)
        close(told["brier"], brier_score(logits, soft, form="top_label"))

    def test_binary_is_half_of_the_full_score(self):
        logits, target = drawn(100, classes=2)
        told = brier_decomposition(logits[:, 0], target, task="binary")
        close(told["brier"], brier_score(logits[:, 0], target, task="binary", form="half"))

    def test_by_hand(self):
        p, target = torch.tensor([0.25, 0.25, 0.75, 0.75], dtype=torch.float64), torch.tensor([0, 0, 1, 0])
        told = brier_decomposition(p, target, task="binary", n_bins=2, input_kind="probs")
        close(told["reliability"], (0.25**2 + 0.25**2) / 2)
        close(told["resolution"], 0.25**2)
        close(told["uncertainty"], 0.25 * 0.75)
        close(told["within_variance"], 0.0)
        close(told["within_covariance"], 0.0)
        close(told["brier"], (3 * 0.25**2 + 0.75**2) / 4)

    def test_a_collection_keeps_one_state_with_errors_over_the_same_bins(self):
        logits, target = drawn()
        parts = {"ece": ECE(), "mce": MCE(), "diagram": ReliabilityDiagram(), "brier": BrierDecomposition()}
        collection = MetricCollection({**parts, "classwise": ClasswiseECE(num_classes=4)})
        collection.update(logits[:120], target[:120])
        collection.update(logits[120:], target[120:])
        assert sorted(map(sorted, collection.compute_groups.values())) == [
            ["brier", "diagram", "ece", "mce"],
            ["classwise"],
        ]
        got, expected = collection.compute(), brier_decomposition(logits, target)
        alike({name: got[name] for name in expected}, expected)

    @pytest.mark.parametrize("size", [1, 7, 200])
    def test_any_split_is_one_pass(self, size):
        logits, target = drawn()
        alike(split(BrierDecomposition(n_bins=7), size, logits, target), brier_decomposition(logits, target, n_bins=7))

    def test_weights_equal_repetition(self):
        logits, target = drawn(20)
        times = torch.arange(20) % 4
        repeated = brier_decomposition(logits.repeat_interleave(times, 0), target.repeat_interleave(times))
        alike(brier_decomposition(logits, target, weight=times.double()), repeated)

    @pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("hits", [[0], [1], [1, 1, 1], [0, 0]])
    def test_one_row_one_class_and_equal_scores(self, p, hits):
        scores = torch.full((len(hits),), p, dtype=torch.float64)
        told = brier_decomposition(scores, torch.tensor(hits), task="binary", input_kind="probs")
        close(told["brier"], (p - hits[0]) ** 2)
        close(told["reliability"], (p - hits[0]) ** 2)
        for name in ("resolution", "uncertainty", "within_variance", "within_covariance"):
            close(told[name], 0.0)

    @pytest.mark.parametrize("nothing", ["ignored", "no weight"])
    def test_nothing_to_average_is_nan_with_one_warning(self, nothing):
        logits, target = drawn(4)
        metric = BrierDecomposition()
        if nothing == "ignored":
            metric.update(logits, torch.full((4,), -100))
        else:
            metric.update(logits, target, weight=torch.zeros(4))
        with pytest.warns(UserWarning, match="BrierDecomposition: the value is nan") as heard:
            assert all(value.isnan() for value in metric.compute().values())
        assert len(heard) == 1

    def test_figure_shows_bins_and_parts(self):
        metric = BrierDecomposition(n_bins=5)
        metric.update(*drawn())
        told = metric.compute()
        above, below = metric.figure(title="held out").axes
        assert [mark.label for mark in above.marks] == [
            "calibrated",
            "no gain over the base rate",
            "base rate",
            "bins",
        ]
        heights = {mark.label: mark.height[0] for mark in below.marks}
        assert sum(heights.values()) == pytest.approx(float(told["brier"]), abs=1e-12)
        assert heights["less resolution"] == -float(told["resolution"])
        assert "Brier score" in to_svg(metric.figure())

    def test_figure_of_nothing(self):
        assert to_svg(BrierDecomposition().figure()).startswith("<svg")


def changed(n=200, seed=0):
    logits, target = drawn(n, seed=seed)
    g = torch.Generator().manual_seed(seed + 3)
    return logits, logits / 2 + torch.randn(logits.shape, generator=g, dtype=torch.float64), target


class TestPostHocImprovement:
    def test_differences_of_the_scores(self):
        before, after, target = changed()
        told = post_hoc_improvement(before, after, target, return_parts=True)
        for name, of in (("nll", negative_log_likelihood), ("brier", brier_score)):
            close(told[name], of(before, target) - of(after, target))
            close(told[f"{name}_relative"], told[name] / of(before, target))
            close(post_hoc_improvement(before, after, target, score=name), told[name])
            close(post_hoc_improvement(before, after, target, score=name, relative=True), told[f"{name}_relative"])
            close(told[f"{name}_high"] - told[f"{name}_low"], 2 * 1.96 * told[f"{name}_stderr"])
        was, now = (z.argmax(1) == target for z in (before, after))
        close(told["accuracy"], now.double().mean() - was.double().mean())
        close(told["change_rate"], top_one_change_rate(before, after, target))

    def test_the_interval_covers_the_true_improvement(self):
        before, after, target = changed(40000)
        truth = float(post_hoc_improvement(before, after, target))
        covered = 0
        for rows in torch.arange(40000).split(200):
            told = post_hoc_improvement(before[rows], after[rows], target[rows], return_parts=True)
            covered += bool(told["nll_low"] <= truth <= told["nll_high"])
        assert 0.9 <= covered / 200 <= 0.99

    def test_no_change_is_no_improvement_for_sure(self):
        before, _, target = changed()
        told = post_hoc_improvement(before, before.clone(), target, return_parts=True)
        assert all(float(value) == 0 for value in told.values())

    @pytest.mark.parametrize("size", [1, 7, 200])
    def test_any_split_is_one_pass(self, size):
        before, after, target = changed()
        got = split(PostHocImprovement(return_parts=True), size, before, after, target)
        alike(got, post_hoc_improvement(before, after, target, return_parts=True))

    def test_weights_equal_repetition(self):
        before, after, target = changed(20)
        times = torch.arange(20) % 4
        repeated = (z.repeat_interleave(times, 0) for z in (before, after, target))
        expected = post_hoc_improvement(*repeated, return_parts=True)
        alike(post_hoc_improvement(before, after, target, weight=times.double(), return_parts=True), expected)

    def test_soft_targets_give_expected_scores(self):
        before, after, _ = changed(50)
        soft = before.flip(0).softmax(1)
        told = post_hoc_improvement(before, after, soft, return_parts=True)
        close(told["nll"], negative_log_likelihood(before, soft) - negative_log_likelihood(after, soft))
        close(told["brier"], brier_score(before, soft) - brier_score(after, soft))

    def test_ignored_and_weightless_rows_count_for_nothing(self):
        before, after, target = changed(20)
        ignored, weight = target.clone(), torch.ones(20)
        ignored[5:10], weight[10:] = -100, 0
        alike(
            post_hoc_improvement(before, after, ignored, weight=weight, return_parts=True),
            post_hoc_improvement(before[:5], after[:5], target[:5], return_parts=True),
        )

    def test_one_row_is_finite_and_certain(self):
        p, q = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.5, 0.5]]).double()
        target = torch.tensor([0])
        told = post_hoc_improvement(p, q, target, input_kind="probs", return_parts=True)
        close(told["nll"], -math.log(2))
        close(told["brier"], -0.5)
        close(told["nll_stderr"], 0.0)
        assert told["nll_relative"].isnan()
        close(told["change_rate"], 0.0)

    def test_a_probability_of_zero_is_clamped_with_one_warning(self):
        p, q = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[0.5, 0.5]]).double()
        metric = PostHocImprovement(input_kind="probs")
        metric.update(p, q, torch.tensor([0]))
        with pytest.warns(UserWarning, match="PostHocImprovement: 1 probabilities of targets below 1e-12") as heard:
            close(metric.compute(), 12 * math.log(10) - math.log(2))
        assert len(heard) == 1

    @pytest.mark.parametrize("nothing", ["ignored", "no weight", "no rows"])
    def test_nothing_to_average_is_nan_with_one_warning(self, nothing):
        before, after, target = changed(4)
        metric = PostHocImprovement(return_parts=True)
        if nothing == "ignored":
            metric.update(before, after, torch.full((4,), -100))
        elif nothing == "no weight":
            metric.update(before, after, target, weight=torch.zeros(4))
        else:
            metric.update(before[:0], after[:0], target[:0])
        with pytest.warns(UserWarning, match="PostHocImprovement: the value is nan") as heard:
            assert all(value.isnan() for value in metric.compute().values())
        assert len(heard) == 1


def sets(n=400, num_groups=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    groups = torch.randint(-1, num_groups, (n,), generator=g)
    covered = torch.rand(n, generator=g) < 0.95 - 0.1 * groups
    return covered, groups, torch.randint(1, 6, (n,), generator=g)


class TestStratumCoverage:
    def test_by_hand(self):
        covered = torch.tensor([1, 1, 1, 0, 1, 1, 0, 0, 1])
        groups = torch.tensor([0, 0, 1, 1, 1, 1, 2, -1, 3])
        size = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0, 3.0, 2.0, 9.0, 1.0])
        told = stratum_coverage(covered, groups=groups, size=size, num_groups=5, min_count=2, return_parts=True)
        close(told["marginal"], 6 / 8)
        close(told["per_group"], [1.0, 0.75, 0.0, 1.0, NAN])
        close(told["worst"], 0.75)
        close(told["disparity"], 0.15)
        close(told["range"], 0.25)
        close(told["gap"], 0.25)
        close(told["size"], [1.5, 1.5, 2.0, 1.0, NAN])
        close(told["count"], [2.0, 4.0, 1.0, 1.0, 0.0])
        close(told["excluded"], [0.0, 0.0, 1.0, 1.0, 0.0])
        close(stratum_coverage(covered, groups=groups, num_groups=5, min_count=2), 0.75)

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
    def test_covered_may_be_of_any_dtype(self, dtype):
        covered, groups, size = sets()
        alike(
            stratum_coverage(covered.to(dtype), groups=groups, size=size, num_groups=4, return_parts=True),
            stratum_coverage(covered, groups=groups, size=size.double(), num_groups=4, return_parts=True),
        )

    @pytest.mark.parametrize("size", [1, 7, 400])
    def test_any_split_is_one_pass(self, size):
        covered, groups, sizes = sets()
        got = split(StratumCoverage(4, return_parts=True), size, covered, groups=groups, size=sizes)
        alike(got, stratum_coverage(covered, groups=groups, size=sizes, num_groups=4, return_parts=True))

    def test_weights_equal_repetition(self):
        covered, groups, size = sets(40)
        times = torch.arange(40) % 4
        options = {"num_groups": 4, "min_count": 5, "return_parts": True}
        weighted = stratum_coverage(covered, groups=groups, size=size, weight=times.double(), **options)
        repeated = (t.repeat_interleave(times) for t in (covered, groups, size))
        covered, groups, size = repeated
        alike(weighted, stratum_coverage(covered, groups=groups, size=size, **options))

    def test_sizes_may_be_given_for_some_updates_only(self):
        covered, groups, size = sets()
        metric = StratumCoverage(4, return_parts=True)
        metric.update(covered[:100], groups=groups[:100], size=size[:100])
        metric.update(covered[100:], groups=groups[100:])
        told = metric.compute()
        means = [size[:100][groups[:100] == group].double().mean() for group in range(4)]
        close(told["size"], torch.stack(means))
        assert stratum_coverage(covered, groups=groups, num_groups=4, return_parts=True)["size"].isnan().all()

    def test_groups_that_are_all_too_small_warn(self):
        metric = StratumCoverage(2, return_parts=True)
        metric.update(torch.tensor([True, False]), groups=torch.tensor([0, 1]))
        with pytest.warns(UserWarning, match="StratumCoverage: no group weighs min_count=30") as heard:
            told = metric.compute()
        assert len(heard) == 1
        close(told["marginal"], 0.5)
        assert all(told[name].isnan() for name in ("worst", "disparity", "range", "gap"))
        close(told["excluded"], [1.0, 1.0])

    @pytest.mark.parametrize("nothing", ["no rows", "no group", "no weight"])
    def test_nothing_to_average_is_nan_with_one_warning(self, nothing):
        rows = slice(0, 0) if nothing == "no rows" else slice(None)
        groups = torch.full((2,), -1 if nothing == "no group" else 0)[rows]
        weight = torch.zeros(2)[rows] if nothing == "no weight" else None
        metric = StratumCoverage(2, return_parts=True)
        metric.update(torch.tensor([True, False])[rows], groups=groups, weight=weight)
        with pytest.warns(UserWarning, match="StratumCoverage: the value is nan") as heard:
            told = metric.compute()
        assert len(heard) == 1
        assert told["marginal"].isnan()
        assert told["worst"].isnan()

    def test_what_is_no_tensor_raises(self):
        groups = torch.zeros(2, dtype=torch.int64)
        with pytest.raises(TypeError, match="stratum_coverage: covered must be a tensor"):
            stratum_coverage([True, False], groups=groups, num_groups=1)
        with pytest.raises(TypeError, match="stratum_coverage: groups must be a tensor, got None"):
            stratum_coverage(groups, groups=None, num_groups=1)

    def test_figure(self):
        covered, groups, size = sets()
        groups[groups == 3] = torch.where(torch.arange(int((groups == 3).sum())) < 5, 3, -1)
        metric = StratumCoverage(4, alpha=0.2)
        metric.update(covered, groups=groups)
        (axes,) = metric.figure(title="sets").axes
        assert [mark.label for mark in axes.marks] == ["groups", "too small to count", "target", "all groups"]
        assert axes.marks[2].y == (0.8, 0.8)
        assert min(h for h in axes.marks[0].height if not math.isnan(h)) == pytest.approx(float(metric.compute()))
        metric.update(covered, groups=groups, size=size)
        assert len(metric.figure().axes) == 2
        assert to_svg(metric.figure()).startswith("<svg")
        assert to_svg(StratumCoverage(2).figure()).startswith("<svg")


class TestStrata:
    def test_entropy_is_the_same_for_every_kind_of_input(self):
        logits, _ = drawn(100)
        groups, edges = entropy_strata(logits)
        for kind, given in (("probs", logits.softmax(1)), ("log_probs", logits.log_softmax(1))):
            got, cuts = entropy_strata(given, input_kind=kind)
            assert torch.equal(got, groups)
            close(cuts, edges, rtol=1e-9)
        assert groups.bincount().tolist() == [25] * 4
        entropy = torch.special.entr(logits.softmax(1)).sum(1)
        assert (entropy[groups == 0].max() < entropy[groups == 1].min()).all()

    def test_edges_are_kept_for_other_data(self):
        logits, _ = drawn(200)
        groups, edges = entropy_strata(logits, 3)
        again, same = entropy_strata(logits[:7], 3, edges=edges)
        assert torch.equal(again, groups[:7])
        assert torch.equal(same, edges)
        again, _ = entropy_strata(logits[:7].float(), 3, edges=edges.tolist())
        assert torch.equal(again, groups[:7])

    def test_dense_predictions_and_certain_ones(self):
        logits = torch.zeros(2, 3, 4, 5)
        groups, _ = entropy_strata(logits, edges=[0.1, 0.5, 1.0])
        assert groups.shape == (2, 4, 5)
        assert (groups == 3).all()
        groups, _ = entropy_strata(torch.eye(3), edges=[0.1, 0.5, 1.0], input_kind="probs")
        assert (groups == 0).all()
        certain = torch.tensor([[0.0, -math.inf]])
        assert entropy_strata(certain, 2, edges=[0.1], input_kind="log_probs")[0].tolist() == [0]

    def test_equal_values_stay_together(self):
        groups, edges = size_strata(torch.tensor([1, 1, 1, 1, 1, 2, 3, 4]), num_groups=4)
        assert len(edges) == 3
        assert len(groups[:5].unique()) == 1
        assert groups.diff().min() >= 0
        groups, _ = size_strata(torch.ones(10))
        assert len(groups.unique()) == 1

    def test_sizes_and_features_by_given_edges(self):
        assert size_strata(torch.tensor([0, 1, 2, 3, 9]), 3, edges=[2, 3])[0].tolist() == [0, 0, 1, 2, 2]
        assert feature_strata(torch.tensor([-1.0, 0.0, 0.5]), 2, edges=[0.0])[0].tolist() == [0, 1, 1]
        assert feature_strata(torch.tensor([3.0]), 1)[0].tolist() == [0]
        assert feature_strata(torch.zeros(0), 2, edges=[0.0])[0].shape == (0,)

    def test_wrong_calls(self):
        with pytest.raises(
            ValueError, match="entropy_strata: edges must be 3 numbers in ascending order, for 4 groups"
        ):
            entropy_strata(torch.zeros(2, 2), edges=[0.1])
        with pytest.raises(ValueError, match="feature_strata: edges must be 2 numbers in ascending order"):
            feature_strata(torch.zeros(2), 3, edges=[0.2, 0.1])
        with pytest.raises(ValueError, match="size_strata: size must have at least one entry"):
            size_strata(torch.zeros(0))
        with pytest.raises(ValueError, match="size_strata: size must be finite and >= 0, got -1"):
            size_strata(torch.tensor([-1]))
        with pytest.raises(ValueError, match="feature_strata: features must be finite, got nan"):
            feature_strata(torch.tensor([math.nan]))
        with pytest.raises(ValueError, match="entropy_strata: logits must be finite, got nan"):
            entropy_strata(torch.full((1, 2), math.nan))
        with pytest.raises(ValueError, match=r"entropy_strata: logits must have shape \(N, C, ...\)"):
            entropy_strata(torch.zeros(2))
        with pytest.raises(ValueError, match="num_groups must be >= 1, got 0"):
            feature_strata(torch.zeros(2), 0)
        with pytest.raises(TypeError, match="size_strata: size must be a tensor"):
            size_strata([1, 2])
        with pytest.raises(TypeError, match="feature_strata: features must be a tensor"):
            feature_strata([1, 2])


def sloped(n=200, seed=0):
    g = torch.Generator().manual_seed(seed + 4)
    return (*drawn(n, seed=seed), torch.rand(n, generator=g, dtype=torch.float64))


class TestCertified:
    def test_by_hand(self):
        p, target = torch.full((400,), 0.75, dtype=torch.float64), (torch.arange(400) % 2).double()
        options = {"task": "binary", "n_bins": 2, "input_kind": "probs", "return_parts": True}
        slopes = torch.full((400,), 0.5)
        told = certified_bin_calibration(p, target, lipschitz=slopes, radius=0.1, delta=0.1, **options)
        close(told["gap"], [NAN, 0.25])
        close(told["slack"], [NAN, math.sqrt(math.log(40) / 800)])
        close(told["shift"], [NAN, 0.05])
        close(told["bound"], [NAN, 0.3 + math.sqrt(math.log(40) / 800)])
        close(told["error"], told["bound"][1])
        close(told["count"], [0.0, 400.0])

    def test_the_mean_gap_is_the_ece(self):
        logits, target, slopes = sloped()
        told = certified_bin_calibration(logits, target, lipschitz=slopes, radius=0.0, return_parts=True)
        filled = told["count"] > 0
        ece = (told["gap"] * told["count"])[filled].sum() / 200
        close(ece, binned_calibration_error(logits, target))
        assert told["error"] > ece

    def test_gap_and_slack_hold_for_new_data(self):
        """True gaps of bins, of 20 samples with 5% to fail for each."""
        g = torch.Generator().manual_seed(0)
        failed = 0
        for _ in range(20):
            p = torch.rand(300, generator=g, dtype=torch.float64)
            target = torch.bernoulli(p**2, generator=g)
            options = {"task": "binary", "n_bins": 5, "input_kind": "probs", "radius": 0.0}
            bound = certified_bin_calibration(p, target, lipschitz=torch.zeros(300), **options)
            own = [p[(p >= b / 5) & (p < (b + 1) / 5)] for b in range(5)]
            failed += any(float((x - x**2).mean()) > float(bound[b]) for b, x in enumerate(own))
        assert failed <= 1

    @pytest.mark.parametrize("size", [1, 7, 200])
    def test_any_split_is_one_pass(self, size):
        logits, target, slopes = sloped()
        got = split(CertifiedBinCalibration(0.2, return_parts=True), size, logits, target, lipschitz=slopes)
        alike(got, certified_bin_calibration(logits, target, lipschitz=slopes, radius=0.2, return_parts=True))

    def test_weights_equal_repetition(self):
        logits, target, slopes = sloped(20)
        times = torch.arange(20) % 4
        options = {"radius": 0.2, "n_bins": 4, "return_parts": True}
        repeated = certified_bin_calibration(
            logits.repeat_interleave(times, 0),
            target.repeat_interleave(times),
            lipschitz=slopes.repeat_interleave(times),
            **options,
        )
        alike(certified_bin_calibration(logits, target, lipschitz=slopes, weight=times.double(), **options), repeated)

    def test_blocks_of_a_large_batch_keep_their_slopes(self):
        logits, target, slopes = sloped(70000)
        metric = CertifiedBinCalibration(0.2, reduce="all", return_parts=True)
        got = split(metric, 1000, logits, target, lipschitz=slopes)
        options = {"radius": 0.2, "reduce": "all", "return_parts": True}
        for name, value in certified_bin_calibration(logits, target, lipschitz=slopes, **options).items():
            close(got[name], value, rtol=1e-10)

    @pytest.mark.parametrize("p", [0.0, 1.0])
    def test_one_certain_row(self, p):
        told = certified_bin_calibration(
            torch.tensor([p]),
            torch.tensor([1]),
            lipschitz=torch.zeros(1),
            radius=1.0,
            task="binary",
            input_kind="probs",
            return_parts=True,
        )
        place = 0 if p == 0 else -1
        close(told["gap"][place], 1 - p)
        assert told["bound"].isfinite().sum() == 1

    @pytest.mark.parametrize("nothing", ["ignored", "no weight", "no rows"])
    def test_nothing_to_average_is_nan_with_one_warning(self, nothing):
        logits, target, slopes = sloped(4)
        metric = CertifiedBinCalibration(0.1)
        if nothing == "ignored":
            metric.update(logits, torch.full((4,), -100), lipschitz=slopes)
        elif nothing == "no weight":
            metric.update(logits, target, lipschitz=slopes, weight=torch.zeros(4))
        else:
            metric.update(logits[:0], target[:0], lipschitz=slopes[:0])
        with pytest.warns(UserWarning, match="CertifiedBinCalibration: the value is nan") as heard:
            assert metric.compute().isnan().all()
        assert len(heard) == 1

    def test_figure(self):
        metric = CertifiedBinCalibration(0.1, n_bins=5)
        logits, target, slopes = sloped()
        metric.update(logits, target, lipschitz=slopes)
        above, below = metric.figure(title="held out").axes
        bound, sure, gap, line = above.marks
        assert bound.label == "inputs moved by 0.1"
        assert sure.label == "new data, 0.95 sure"
        assert line.y == (1.0, 1.0)
        heights = zip(gap.height, sure.height, bound.height, strict=True)
        assert all(a < b < c for a, b, c in heights if not math.isnan(c))
        assert sum(below.marks[0].height) == 200
        assert to_svg(metric.figure()).startswith("<svg")
        assert to_svg(CertifiedBinCalibration(0.1).figure()).startswith("<svg")


class TestConfidenceLipschitz:
    def test_gradient_of_a_linear_model(self):
        weight = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
        x = torch.tensor([[0.3, -0.1], [0.0, 0.2]], dtype=torch.float64)
        p = (x @ weight.T).softmax(1)
        # The gradient of p_0 of two is p_0 (1 - p_0) (w_0 - w_1).
        expected = p[:, 0] * p[:, 1] * (weight[0] - weight[1]).norm()
        close(confidence_lipschitz(lambda inputs: inputs @ weight.T, x), expected)

    def test_points_in_the_ball_raise_it_and_are_no_proof(self):
        def model(x):
            return torch.cat([(4 * x).sin(), torch.zeros_like(x)], 1)

        x = torch.full((200, 1), math.pi / 8, dtype=torch.float64)
        at_point = confidence_lipschitz(model, x)
        sampled = confidence_lipschitz(model, x, radius=0.5, n_probe=8)
        assert (sampled >= at_point).all()
        assert (sampled > at_point).any()
        assert sampled.max() <= 1.0 + 1e-12
        assert (sampled < 1.0).any()
        assert torch.equal(sampled, confidence_lipschitz(model, x, radius=0.5, n_probe=8))
        other = torch.Generator().manual_seed(1)
        assert not torch.equal(sampled, confidence_lipschitz(model, x, radius=0.5, n_probe=8, generator=other))

    def test_probes_stay_in_the_ball(self):
        seen = []

        def model(x):
            seen.append(x.detach())
            return x.flatten(1)

        x = torch.zeros(500, 2, 3)
        confidence_lipschitz(model, x, radius=0.25, n_probe=2)
        lengths = torch.stack(seen[1:]).flatten(2).norm(dim=2)
        assert lengths.max() <= 0.25 + 1e-6
        # Evenly from a ball in six dimensions: half of the points are outside of half of its volume.
        assert abs(float((lengths > 0.25 * 0.5 ** (1 / 6)).float().mean()) - 0.5) < 0.05

    def test_leaves_inputs_parameters_and_random_state_alone(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
        before, state = x.clone(), torch.get_rng_state()
        with torch.no_grad():
            got = confidence_lipschitz(model, x, radius=0.1)
        assert not got.requires_grad
        assert torch.equal(x, before)
        assert all(p.grad is None for p in model.parameters())
        assert torch.equal(state, torch.get_rng_state())
        assert confidence_lipschitz(model, x[:0]).shape == (0,)

    def test_wrong_calls(self):
        x = torch.zeros(2, 3)
        with pytest.raises(ValueError, match="confidence_lipschitz: model must be in evaluation mode"):
            confidence_lipschitz(torch.nn.Linear(3, 2), x)
        with pytest.raises(ValueError, match=r"model must give logits of shape \(2, C\)"):
            confidence_lipschitz(lambda inputs: inputs.sum(1), x)
        with pytest.raises(ValueError, match="radius must be >= 0"):
            confidence_lipschitz(lambda inputs: inputs, x, radius=-1.0)
        with pytest.raises(ValueError, match=r"inputs must have shape \(N, ...\)"):
            confidence_lipschitz(lambda inputs: inputs, torch.zeros(2))
        with pytest.raises(TypeError, match="inputs must be a floating point tensor"):
            confidence_lipschitz(lambda inputs: inputs, torch.zeros(2, 2).long())
