"""Behaviours of the metrics of groups, neighbours, changes and single bins that no property covers."""

import math

import pytest
import torch

from trainkit.calibration.metrics import (
    PartitionedCalibrationError,
    binned_calibration_error,
    partitioned_calibration_error,
)


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


def split(metric, size, *tensors, **named):
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
