"""Behaviours of the rate of changed predictions that no property covers."""

import math

import pytest
import torch

from trainkit.calibration.metrics import TopOneChangeRate, top_one_change_rate


def told(before, after, target, **options):
    before, after = (torch.tensor(values, dtype=torch.float64) for values in (before, after))
    parts = top_one_change_rate(before, after, torch.tensor(target), return_parts=True, **options)
    return {name: float(value) for name, value in parts.items()}


def test_by_hand():
    before = [[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]
    after = [[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [9.0, 2.0, 0.0]]
    assert told(before, after, [0, 1, 2, 0]) == {
        "rate": 0.75,
        "changed": 3,
        "right_to_wrong": 1,
        "wrong_to_right": 1,
        "wrong_to_wrong": 1,
    }


def test_a_tie_keeps_the_class_unless_told():
    """A calibrator that bins gives equal values; argmax alone would call the second class changed."""
    before, after = [[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]
    assert told(before, after, [1, 1])["rate"] == 0
    assert told(before, after, [1, 1], tie="first")["rate"] == 0.5
    assert told(before, [[0.7, 0.3], [0.5, 0.5]], [1, 1])["rate"] == 0.5


def test_a_tie_of_other_classes_is_a_change_to_the_first_of_them():
    got = told([[3.0, 0.0, 0.0]], [[0.0, 1.0, 1.0]], [2])
    assert (got["changed"], got["wrong_to_right"], got["wrong_to_wrong"]) == (1, 0, 1)


@pytest.mark.parametrize(("kind", "even"), [("logits", 0.0), ("probs", 0.5), ("log_probs", math.log(0.5))])
def test_even_odds_of_a_binary_target(kind, even):
    low, high = even - 0.1, even + 0.1
    options = {"task": "binary", "input_kind": kind}
    assert told([low, high], [high, low], [0, 0], **options)["changed"] == 2
    assert told([low, high, even], [even, even, even], [0, 0, 0], **options)["changed"] == 0
    assert told([low, high, even], [even, even, even], [0, 0, 0], tie="first", **options)["changed"] == 1
    # Class 0 is predicted at even odds.
    assert told([even, even], [low, high], [0, 0], **options)["changed"] == 1


def test_small_differences_are_no_ties():
    """A softmax in fp32 rounds these probabilities to the same number."""
    before = torch.tensor([[1e-9, 0.0]])
    assert before.softmax(1)[0, 0] == before.softmax(1)[0, 1]
    assert top_one_change_rate(before, -before, torch.tensor([0])) == 1


def test_two_columns_are_two_classes():
    p = torch.tensor([0.2, 0.7, 0.9])
    q = torch.tensor([0.6, 0.4, 0.8])
    target = torch.tensor([0, 1, 1])
    options = {"task": "binary", "input_kind": "probs"}
    pair = torch.stack([1 - p, p], 1), torch.stack([1 - q, q], 1)
    for before, after in ((p, q), (p.unsqueeze(1), q.unsqueeze(1)), pair):
        assert top_one_change_rate(before, after, target, **options) == pytest.approx(2 / 3)


def test_a_soft_target_counts_as_its_expectation():
    got = told([[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [[0.5, 0.3, 0.2]])
    assert got["changed"] == 1
    assert (got["right_to_wrong"], got["wrong_to_right"]) == pytest.approx((0.5, 0.3))
    assert got["wrong_to_wrong"] == pytest.approx(0.2)


def test_weights_equal_repetition_and_ignored_rows_count_for_nothing():
    g = torch.Generator().manual_seed(0)
    before, after = (torch.randn(20, 4, generator=g) for _ in range(2))
    target, times = torch.randint(4, (20,), generator=g), torch.arange(20) % 3
    repeated = (v.repeat_interleave(times, 0) for v in (before, after, target))
    weighted = top_one_change_rate(before, after, target, weight=times.double(), return_parts=True)
    assert weighted == top_one_change_rate(*repeated, return_parts=True)
    ignored = target.where(times > 0, -100)
    before[times == 0] = math.nan
    after[times == 0] = math.inf
    kept = times > 0
    expected = top_one_change_rate(before[kept], after[kept], target[kept])
    assert top_one_change_rate(before, after, ignored) == expected


def test_a_scaled_model_changes_nothing():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, 10, generator=g)
    assert top_one_change_rate(logits, logits / 1.7, torch.randint(10, (1000,), generator=g)) == 0


def test_nothing_to_average_is_nan_with_one_warning():
    metric = TopOneChangeRate(return_parts=True)
    metric.update(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([-100, -100]))
    with pytest.warns(UserWarning, match="TopOneChangeRate: the value is nan") as heard:
        parts = metric.compute()
    assert len(heard) == 1
    assert parts["rate"].isnan()
    assert parts["changed"] == 0
