"""Behaviours of the metrics of rankings, of accuracy without labels and of features that no property covers."""

import itertools
import math

import pytest
import torch
from torchmetrics import MetricCollection

from trainkit._core.svg import to_svg
from trainkit.calibration.metrics import (
    CoverageAtRisk,
    LabelRankingCalibrationError,
    RewardModelCalibrationError,
    coverage_at_risk,
    label_ranking_calibration_error,
    reward_model_calibration_error,
    selective_risk,
)


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=1e-14)


def coverage(confidences, errors, risk, **options):
    """For predictions of class 1, each with its confidence and whether it is wrong."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return coverage_at_risk(p, 1 - torch.tensor(errors), risk=risk, task="binary", input_kind="probs", **options)


def test_coverage_by_hand():
    confidences, errors = [0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1]
    for risk, expected in {0.0: 0.25, 0.33: 0.25, 1 / 3: 0.75, 0.49: 0.75, 0.5: 1.0, 1.0: 1.0}.items():
        close(coverage(confidences, errors, risk), expected)
    close(coverage(confidences, [1, 0, 0, 0], 0.3), 1.0)
    close(coverage(confidences, [1, 1, 1, 0], 0.5), 0.0)
    close(coverage(confidences, [0, 0, 0, 0], 0.0), 1.0)


@pytest.mark.parametrize("risk", [0.0, 0.2, 0.25, 0.3, 0.34, 0.4, 0.45, 0.5, 0.6, 0.99])
@pytest.mark.parametrize("first", [[0, 0], [0, 1], [1, 1], []])
def test_coverage_inside_of_a_tie_is_that_of_the_mean_over_all_orders(first, risk):
    tied = [1, 0, 1, 0, 1]
    n = len(first) + len(tied)
    confidences = [0.9 - 0.01 * i for i in range(len(first))] + [0.7] * len(tied)
    means = [sum(first[:k]) / k for k in range(1, len(first) + 1)]
    means += [(sum(first) + 0.6 * k) / (len(first) + k) for k in range(1, len(tied) + 1)]
    expected = max((k / n for k, mean in enumerate(means, 1) if mean <= risk + 1e-12), default=0.0)
    for order in set(itertools.permutations(tied)):
        close(coverage(confidences, [*first, *order], risk), expected)


@pytest.mark.parametrize("errors", range(11))
def test_coverage_at_the_risk_of_all_rows_is_one(errors):
    """Rounding neither of the share nor of its product decides."""
    for n in (10, 30, 70):
        wrong = [0] * (n - errors) + [1] * errors
        confidences = [1 - k / (2 * n) for k in range(n)]
        close(coverage(confidences, wrong, errors / n), 1.0)
        assert coverage(confidences, wrong, max(0.0, errors / n - 1e-9)) <= 1.0
        assert errors == 0 or coverage(confidences, wrong, errors / n - 1e-9) < 1.0


@pytest.mark.parametrize("exact", [True, False])
def test_coverage_with_weights_equals_repetition(exact):
    g = torch.Generator().manual_seed(0)
    logits, target = torch.randn(20, 4, generator=g).double(), torch.randint(4, (20,), generator=g)
    times = torch.arange(20) % 4
    rows, labels = logits.repeat_interleave(times, 0), target.repeat_interleave(times)
    for risk in (0.3, 0.5, 0.7):
        options = {"risk": risk, "exact": exact}
        weighted = coverage_at_risk(logits, target, weight=times.double(), **options)
        close(weighted, coverage_at_risk(rows, labels, **options))
    zeros = coverage_at_risk(logits, target, weight=(times > 1).double(), risk=0.7)
    close(zeros, coverage_at_risk(logits[times > 1], target[times > 1], risk=0.7))


def test_coverage_and_risk_agree():
    g = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(200, 4, generator=g, dtype=torch.float64)
    target = logits.softmax(1).multinomial(1, generator=g)[:, 0]
    for risk in (0.1, 0.2, 0.3):
        kept = float(coverage_at_risk(logits, target, risk=risk))
        assert selective_risk(logits, target, coverage=kept) <= risk
        assert selective_risk(logits, target, coverage=min(1.0, kept + 0.005)) > risk


def test_coverage_of_nothing_and_of_one_row():
    metric = CoverageAtRisk(0.1)
    metric.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.warns(UserWarning, match="CoverageAtRisk: the value is nan"):
        assert metric.compute().isnan()
    metric.update(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([1]))
    assert metric.compute() == 0
    assert metric.figure().axes[0].title == "CoverageAtRisk 0.0000"
    assert "exact=True" in repr(metric)


def reward(chosen, rejected, **options):
    scores = (torch.tensor(values, dtype=torch.float64) for values in (chosen, rejected))
    return reward_model_calibration_error(*scores, **options)


def test_reward_model_by_hand():
    # Three pairs told apart with confidence 3/4, two of them rightly.
    gap = math.log(3)
    told = reward([gap, 0, gap], [0, gap, 0], return_parts=True)
    expected = {
        "error": 3 / 4 - 2 / 3,
        "accuracy": 2 / 3,
        "nll": -(2 * math.log(3 / 4) + math.log(1 / 4)) / 3,
        "brier": (2 / 16 + 9 / 16) / 3,
    }
    assert told.keys() == expected.keys()
    for name, value in expected.items():
        close(told[name], value)


def test_direction_of_a_pair_says_nothing():
    """The error of p against a label that is always one would be far from zero for this calibrated model."""
    gaps = torch.full((400,), math.log(3), dtype=torch.float64)
    gaps[:100] *= -1
    close(reward_model_calibration_error(gaps, torch.zeros(400)), 0.0)


def test_equal_rewards_are_calibrated_and_half_right():
    told = reward([1.0] * 5, [1.0] * 5, return_parts=True)
    for name, value in {"error": 0.0, "accuracy": 0.5, "nll": math.log(2), "brier": 0.25}.items():
        close(told[name], value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_large_rewards_are_finite(dtype):
    chosen, rejected = torch.tensor([1e4, -1e4, 1e4], dtype=dtype), torch.tensor([-1e4, 1e4, 1e4], dtype=dtype)
    told = reward_model_calibration_error(chosen, rejected, return_parts=True)
    close(told["nll"], (2 * float(rejected[1]) + math.log(2)) / 3)
    close(told["error"], (1 - 1 / 2) * 2 / 3)


def events_of(kind):
    g = torch.Generator().manual_seed(3)
    if kind == "reward":
        return reward_model_calibration_error, [torch.randn(24, generator=g).double() for _ in range(2)], {}
    rankings = torch.randn(24, 5, generator=g).argsort(1)
    rankings[::4, 3:] = -1
    options = {
        "pairwise": {},
        "sub_ranking": {"events": "sub_ranking", "k": 3},
        "top_k": {"events": "top_k", "k": 2},
        "full": {"events": "full"},
    }[kind]
    return label_ranking_calibration_error, [torch.randn(24, 5, generator=g).double(), rankings], options


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("kind", ["reward", "pairwise", "sub_ranking", "top_k", "full"])
def test_weights_equal_repetition(kind, norm):
    function, inputs, options = events_of(kind)
    times = torch.arange(24) % 4
    repeated = function(*(part.repeat_interleave(times, 0) for part in inputs), norm=norm, **options)
    close(function(*inputs, weight=times.double(), norm=norm, **options), repeated)


@pytest.mark.parametrize("kind", ["reward", "pairwise", "sub_ranking", "top_k", "full"])
def test_nothing_to_average_is_nan(kind):
    function, inputs, options = events_of(kind)
    for batch in ({"weight": torch.zeros(24)}, {}):
        rows = slice(None) if batch else slice(0, 0)
        with pytest.warns(UserWarning, match="the value is nan"):
            assert function(*(part[rows] for part in inputs), **batch, **options).isnan()
    assert function(*(part[:1] for part in inputs), **options).isfinite()


def test_rankings_of_fewer_than_two_items_say_nothing():
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    rankings = torch.tensor([[-1, -1, -1, -1], [2, -1, -1, -1], [-1, -1, 1, -1]])
    for options in ({}, {"events": "top_k", "k": 1}, {"events": "full"}, {"events": "sub_ranking", "k": 2}):
        metric = LabelRankingCalibrationError(**options)
        metric.update(scores, rankings)
        with pytest.warns(UserWarning, match="LabelRankingCalibrationError: the value is nan"):
            assert metric.compute().isnan()
    # A row says nothing of more places than it has.
    metric = LabelRankingCalibrationError("top_k", k=3)
    metric.update(scores[:1], torch.tensor([[3, 1, -1, -1]]))
    assert not metric.bins.any()


def plackett_luce(scores):
    """Probabilities of all rankings in lexicographic order."""
    orders = torch.tensor(list(itertools.permutations(range(len(scores)))))
    ordered = scores[orders]
    return (ordered - ordered.flip(1).logcumsumexp(1).flip(1)).sum(1).exp(), orders


EVENTS = (
    {},
    {"folded": True},
    {"events": "sub_ranking", "k": 2},
    {"events": "sub_ranking", "k": 3},
    {"events": "top_k", "k": 1},
    {"events": "top_k", "k": 2},
    {"events": "full"},
)


@pytest.mark.parametrize("options", EVENTS, ids=str)
def test_a_law_is_calibrated_on_its_own_population(options):
    """All rankings, each with its probability as its weight; for one law and for a mixture of two."""
    scores = torch.tensor([1.0, -0.5, 0.3, 0.0], dtype=torch.float64)
    law, orders = plackett_luce(scores)
    close(label_ranking_calibration_error(scores.repeat(24, 1), orders, weight=law, **options), 0.0)
    mixture = (law + plackett_luce(-scores + torch.tensor([0.0, 0.0, 1.0, 0.5]))[0]) / 2
    told = label_ranking_calibration_error(mixture.repeat(24, 1), orders, weight=mixture, input_kind="probs", **options)
    close(told, 0.0)
    logs = mixture.log().repeat(24, 1)
    close(label_ranking_calibration_error(logs, orders, weight=mixture, input_kind="log_probs", **options), 0.0)
    assert label_ranking_calibration_error(2 * scores.repeat(24, 1), orders, weight=law, **options) > 0.01


def test_pairs_may_be_calibrated_where_whole_rankings_are_not():
    """Of a uniform mixture of the laws of s and -s every pair is even, yet its two likeliest rankings stand out."""
    scores = torch.tensor([2.0, 0.0, -2.0], dtype=torch.float64)
    one, orders = plackett_luce(scores)
    truth = (one + plackett_luce(-scores)[0]) / 2
    even = 1e-6 * scores.repeat(6, 1)
    for options in ({}, {"folded": True}, {"events": "sub_ranking", "k": 2}):
        assert label_ranking_calibration_error(even, orders, weight=truth, **options) < 1e-5
    whole = label_ranking_calibration_error(even, orders, weight=truth, events="full")
    close(whole, truth[0] - 1 / 6, rtol=1e-4)
    assert whole > 0.2
    first = label_ranking_calibration_error(even, orders, weight=truth, events="top_k", k=1)
    close(first, truth[:2].sum() - 1 / 3, rtol=1e-4)
    assert first > 0.1


@pytest.mark.parametrize("options", EVENTS, ids=str)
def test_both_forms_of_a_law_agree_also_where_items_are_missing(options):
    g = torch.Generator().manual_seed(5)
    scores = torch.randn(30, 4, generator=g, dtype=torch.float64)
    scores[:3, 1] = scores[:3, 2]
    rankings = torch.randn(30, 4, generator=g).argsort(1)
    rankings[::3, -1] = -1
    rankings[1::3, 0] = -1
    laws = torch.stack([plackett_luce(row)[0] for row in scores])
    close(
        label_ranking_calibration_error(laws, rankings, input_kind="probs", **options),
        label_ranking_calibration_error(scores, rankings, **options),
    )


@pytest.mark.parametrize("options", EVENTS[1:], ids=str)
def test_equal_scores_are_calibrated_whatever_is_observed(options):
    g = torch.Generator().manual_seed(6)
    rankings = torch.randn(9, 4, generator=g).argsort(1)
    close(label_ranking_calibration_error(torch.ones(9, 4), rankings, **options), 0.0)
    laws = torch.full((9, 24), 1 / 24)
    close(label_ranking_calibration_error(laws, rankings, input_kind="probs", **options), 0.0)


def test_ties_share_a_hit():
    # Of two equal best items each is first with the same chance, and both orders behind the best are.
    scores = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    p = math.e / (2 * math.e + 1)
    close(label_ranking_calibration_error(scores, torch.tensor([[1, 0, 2]]), events="top_k", k=1), abs(0.5 - p))
    close(label_ranking_calibration_error(scores, torch.tensor([[2, 0, 1]]), events="top_k", k=1), p)
    whole = p * math.e / (math.e + 1)
    close(label_ranking_calibration_error(scores, torch.tensor([[0, 1, 2]]), events="full"), 0.5 - whole)


@pytest.mark.parametrize("options", EVENTS, ids=str)
def test_large_scores_are_finite(options):
    scores = torch.tensor([[1e4, -1e4, 0.0, 1e4]] * 2)
    told = label_ranking_calibration_error(scores, torch.tensor([[0, 3, 2, 1], [1, 2, 3, 0]]), **options)
    assert 0.1 < told < 0.9


@pytest.mark.parametrize("options", [*EVENTS[:1], *EVENTS[3:]], ids=str)
def test_blocks_of_rows_do_not_change_the_value(monkeypatch, options):
    _, (scores, rankings), _ = events_of("full")
    told = label_ranking_calibration_error(scores, rankings, **options)
    monkeypatch.setitem(label_ranking_calibration_error.__wrapped__.__globals__, "BLOCK", 40)
    close(label_ranking_calibration_error(scores, rankings, **options), told)


def test_many_items_take_no_permutations():
    g = torch.Generator().manual_seed(7)
    scores = torch.randn(50, 200, generator=g, dtype=torch.float64)
    # Rankings drawn from the law of the scores, by noise that decides each comparison as the law does.
    noise = -(-torch.rand(50, 200, generator=g, dtype=torch.float64).log()).log()
    rankings = (scores + noise).argsort(1, descending=True)
    assert label_ranking_calibration_error(scores, rankings) < 0.02
    assert label_ranking_calibration_error(scores, rankings, events="top_k", k=5) < 0.05
    assert label_ranking_calibration_error(scores, rankings, events="full") < 1e-12


def test_drawn_subsets_are_the_same_in_every_process_and_estimate_all():
    g = torch.Generator().manual_seed(8)
    scores = torch.randn(200, 20, generator=g, dtype=torch.float64)
    rankings = (0.5 * scores + torch.randn(200, 20, generator=g)).argsort(1, descending=True)
    options = {"events": "sub_ranking", "k": 4}
    drawn = LabelRankingCalibrationError(**options)
    drawn.update(scores[:90], rankings[:90])
    drawn.update(scores[90:], rankings[90:])
    again = label_ranking_calibration_error(scores, rankings, **options)
    every = label_ranking_calibration_error(scores, rankings, n_subsets=math.comb(20, 4), **options)
    close(drawn.compute(), again)
    assert drawn.bins[0].sum() == 200 * 256
    assert 0 < abs(float(again - every)) < 0.02
    other = label_ranking_calibration_error(scores, rankings, seed=1, **options)
    assert other != again
    assert "exact for up to 1000 sets of items" in repr(drawn)
    assert "exact" not in repr(LabelRankingCalibrationError())


def test_metrics_of_the_same_events_share_their_bins():
    collection = MetricCollection(
        {
            "l1": LabelRankingCalibrationError("full"),
            "l2": LabelRankingCalibrationError("full", norm="l2"),
            "top": LabelRankingCalibrationError("top_k", k=1),
        }
    )
    _, inputs, _ = events_of("full")
    for _ in range(2):
        collection.update(*inputs)
    assert len(collection.compute_groups) == 2
    close(collection.compute()["l2"], label_ranking_calibration_error(*inputs, events="full", norm="l2"))


def test_figures_are_reliability_diagrams():
    metric = RewardModelCalibrationError(n_bins=4)
    metric.update(torch.tensor([math.log(3), 0.0, 2.0]), torch.tensor([0.0, math.log(3), 0.0]))
    above, below = metric.figure(title="held out").axes
    assert above.title == "Reliability (3 scores)"
    assert below.marks[0].height == (0.0, 0.0, 0.0, 3.0)
    close(torch.tensor(above.marks[0].height[3]), 2 / 3, rtol=1e-6)
    ranked = LabelRankingCalibrationError()
    assert "<svg" in to_svg(ranked.figure())
    ranked.update(*events_of("full")[1])
    assert ranked.figure().axes[0].title == "Reliability (198 scores)"
