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
    LogME,
    MaNo,
    RewardModelCalibrationError,
    coverage_at_risk,
    fit_linear,
    label_ranking_calibration_error,
    log_me,
    mano,
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


def test_mano_by_hand():
    # Both rows become (1/2, 1/2, 0): of 1 + z + z²/2 at 1, 1 and -1, and at any scale.
    logits = torch.tensor([[1.0, 1.0, -1.0], [1e4 - 1, 1e4 - 1, -1.0]], dtype=torch.float64)
    close(mano(logits, eta=1e5), (2 * 2 / 2**4 / 6) ** (1 / 4))
    close(mano(logits, p=1, eta=1e5), 1 / 3)
    even = torch.full((3, 4), 2.0)
    told = mano(even, return_parts=True)
    for name, value in {"score": 0.25, "softmax": 0.25, "taylor": 0.25, "criterion": math.log(4)}.items():
        close(told[name], value)


def test_the_same_polynomial_of_all_classes_is_uniform():
    """1 + z + z²/2 is the same for 0 and -2."""
    close(mano(torch.tensor([[0.0, -2.0], [-1.0, -1.0]]), return_parts=True)["taylor"], 0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_mano_of_large_and_small_logits_is_finite(scale, dtype):
    logits = (scale * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))).to(dtype)
    told = mano(logits, return_parts=True)
    assert all(0.2 <= told[name] <= 1 for name in ("score", "softmax", "taylor"))
    assert (told["score"] == told["taylor"]) == (scale < 10)
    assert mano(torch.full((2, 3), 1e300, dtype=torch.float64)).isfinite()
    close(mano(logits[:, :1]), 1.0)


def test_branch_is_chosen_for_all_data_and_not_for_a_batch():
    g = torch.Generator().manual_seed(1)
    calm, wild = torch.randn(30, 6, generator=g).double(), 40 * torch.randn(30, 6, generator=g).double()
    metric = MaNo()
    metric.update(calm)
    assert metric.compute() == mano(calm, return_parts=True)["taylor"]
    metric.update(wild)
    both = mano(torch.cat([wild, calm]), return_parts=True)
    assert both["criterion"] > 5
    close(metric.compute(), both["softmax"])
    # The mean of scores of batches is another number.
    assert abs(float(metric.compute() - (mano(calm, eta=0.0) + mano(wild, eta=0.0)) / 2)) > 0.01


def test_mano_with_weights_equals_repetition():
    logits, times = torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(2)).double(), torch.arange(12) % 3
    weight = times.double().unsqueeze(1).expand(12, 2)
    told = mano(logits, weight=weight, return_parts=True)
    for name, value in mano(logits.repeat_interleave(times, 0), return_parts=True).items():
        close(told[name], value)
    with pytest.warns(UserWarning, match="mano: the value is nan"):
        assert mano(logits, weight=torch.zeros(12, 2)).isnan()


def test_mano_follows_accuracy_over_shifts():
    """Noisier inputs make logits smaller and predictions worse; a line fits score and accuracy."""
    g = torch.Generator().manual_seed(4)
    target = torch.randint(5, (4000,), generator=g)
    scores, accuracies = [], []
    for noise in (0.5, 1.0, 1.5, 2.0, 3.0):
        seen = 3 * torch.nn.functional.one_hot(target, 5) + noise * torch.randn(4000, 5, generator=g)
        logits = 3 * seen / noise**2
        scores.append(mano(logits))
        accuracies.append((logits.argmax(1) == target).double().mean())
    fit = fit_linear(torch.stack(scores), torch.stack(accuracies))
    assert fit.slope > 0
    assert fit.r_squared > 0.9**2


def test_line_by_hand_and_its_picture():
    fit = fit_linear([0.0, 1.0, 2.0], torch.tensor([0.1, 0.5, 0.6], dtype=torch.float64))
    assert fit.slope == pytest.approx(0.25)
    assert fit.intercept == pytest.approx(0.15)
    assert fit.r_squared == pytest.approx(0.125 / 0.14)
    close(fit.predict(torch.tensor([0.0, 4.0], dtype=torch.float64)), [0.15, 1.15])
    (axes,) = fit.figure(title="shifts").axes
    points, line = axes.marks
    assert axes.title == f"R² {fit.r_squared:.4f}"
    assert points.y == (0.1, 0.5, 0.6)
    assert line.y == pytest.approx((0.15, 0.65))
    assert "<svg" in to_svg(fit.figure())


@pytest.mark.parametrize(
    ("scores", "accuracies", "words"),
    [
        ([0.1, 0.2], [0.1, 0.2], "fit_linear: scores must hold at least 3 numbers, one a labelled set, got"),
        ([0.1, 0.2, 0.3], [0.1, 0.2], "fit_linear: accuracies must hold 3 numbers, as scores, got"),
        ([0.1, 0.1, 0.1], [0.1, 0.2, 0.3], "fit_linear: scores must hold two different numbers, got"),
        ([0.1, 0.2, math.nan], [0.1, 0.2, 0.3], "fit_linear: scores must be finite, got nan"),
        ([0.1, 0.2, 0.3], [0.1, 0.2, 80.0], "fit_linear: accuracies must be >= 0 and <= 1, got 80.0"),
    ],
)
def test_line_through_bad_points(scores, accuracies, words):
    with pytest.raises(ValueError, match=words):
        fit_linear(scores, accuracies)


def test_line_of_equal_accuracies_explains_nothing():
    fit = fit_linear([0.1, 0.2, 0.3], [0.4, 0.4, 0.4])
    assert fit.slope == pytest.approx(0)
    assert math.isnan(fit.r_squared)


def evidence_by_definition(features, y, alpha, beta):
    """Log density of y a row, which is normal with covariance 1/beta + F Fᵀ/alpha."""
    n = len(features)
    covariance = torch.eye(n, dtype=torch.float64) / beta + features @ features.T / alpha
    return torch.distributions.MultivariateNormal(torch.zeros(n, dtype=torch.float64), covariance).log_prob(y) / n


def labelled(n, d, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.arange(n) % classes


def test_value_is_the_evidence_and_is_largest_there():
    """At the fixed point, without the small constants, which the value does not see."""
    features, _ = labelled(40, 5)
    y = features @ torch.randn(5, generator=torch.Generator().manual_seed(1)).double() + torch.randn(40).double()
    told = log_me(features, y, num_features=5, tol=0.0, max_iter=200, return_parts=True)
    alpha, beta = told["alphas"][0], told["betas"][0]
    close(told["log_me"], evidence_by_definition(features, y, alpha, beta), rtol=1e-9)
    for a, b in ((0.9, 1), (1.1, 1), (1, 0.9), (1, 1.1)):
        assert evidence_by_definition(features, y, a * alpha, b * beta) < told["log_me"]


@pytest.mark.parametrize("n", [3, 5, 8])
def test_few_rows_leave_out_the_terms_of_the_missing_directions(n):
    """As the published code does: of the evidence by its definition, (D - N)/2 ln alpha a row is missing."""
    features, target = labelled(n, 8)
    options = {"num_features": 8, "num_classes": 3, "tol": 0.0, "max_iter": 500, "return_parts": True}
    told = log_me(features, target, **options)
    expected = [
        evidence_by_definition(features, (target == k).double(), alpha, beta) + (8 - n) / (2 * n) * alpha.log()
        for k, (alpha, beta) in enumerate(zip(told["alphas"], told["betas"], strict=True))
    ]
    close(told["log_me"], torch.stack(expected).mean(), rtol=1e-8)


@pytest.mark.parametrize(("n", "d"), [(30, 4), (4, 30), (10, 10)])
def test_rotations_of_features_change_nothing_and_splits_neither(n, d):
    features, target = labelled(n, d)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(2)).double()).Q
    options = {"num_features": d, "num_classes": 3}
    value = log_me(features, target, **options)
    close(log_me(features @ rotation, target, **options), value, rtol=1e-9)
    metric = LogME(**options)
    for rows in torch.arange(n).split(3):
        metric.update(features[rows], target[rows])
    close(metric.compute(), value)


def test_informative_features_have_more_evidence():
    features, target = labelled(90, 6)
    means = torch.nn.functional.one_hot(target, 6).double()
    values = [log_me(features + s * means, target, num_features=6, num_classes=3) for s in (0.0, 1.0, 3.0, 10.0)]
    assert values == sorted(values)
    assert values[-1] - values[0] > 0.5


@pytest.mark.parametrize("classes", [None, 3])
def test_log_me_with_weights_equals_repetition(classes):
    features, target = labelled(20, 4)
    target = target if classes else target.double() + features[:, 0]
    times = torch.arange(20) % 4
    options = {"num_features": 4, "num_classes": classes}
    repeated = log_me(features.repeat_interleave(times, 0), target.repeat_interleave(times), **options)
    close(log_me(features, target, weight=times.double(), **options), repeated, rtol=1e-11)
    some = times > 0
    close(log_me(features, target, weight=some.double(), **options), log_me(features[some], target[some], **options))
    assert log_me(features, target, weight=torch.full((20,), 0.01).double(), **options).isfinite()
    with pytest.warns(UserWarning, match="log_me: the value is nan"):
        assert log_me(features, target, weight=torch.zeros(20), **options).isnan()


def test_several_targets_are_the_mean_over_them():
    features, _ = labelled(30, 4)
    targets = torch.randn(30, 2, generator=torch.Generator().manual_seed(3)).double()
    each = [log_me(features, column, num_features=4) for column in targets.T]
    close(log_me(features, targets, num_features=4, num_targets=2), torch.stack(each).mean())
    close(log_me(features, targets[:, :1], num_features=4), each[0])


def test_a_class_without_rows_changes_nothing():
    features, target = labelled(30, 4)
    told = log_me(features, 2 * target, num_features=4, num_classes=6, return_parts=True)
    close(told["log_me"], log_me(features, target, num_features=4, num_classes=3))
    assert told["alphas"].isnan().tolist() == [False, True] * 3


@pytest.mark.parametrize("n", [1, 2, 12])
@pytest.mark.parametrize(
    "change",
    [torch.zeros_like, torch.ones_like, lambda f: 1e4 * f, lambda f: 1e-4 * f, lambda f: f * (torch.arange(4) < 3)],
    ids=["zeros", "ones", "large", "small", "one zero feature"],
)
def test_degenerate_features_are_finite(change, n):
    features, target = labelled(n, 4)
    told = log_me(change(features), target, num_features=4, num_classes=3, return_parts=True)
    assert told["log_me"].isfinite()
    one = log_me(change(features), torch.zeros(n, dtype=torch.int64), num_features=4, num_classes=1)
    assert one.isfinite()
    assert log_me(change(features), torch.zeros(n).double(), num_features=4).isfinite()


def test_a_feature_of_zeros_changes_nothing():
    """The published code leaves its term out, so that the evidence would move with D/2 ln alpha."""
    features, target = labelled(30, 4)
    padded = torch.cat([features, torch.zeros(30, 2).double()], 1)
    options = {"num_classes": 3}
    close(log_me(padded, target, num_features=6, **options), log_me(features, target, num_features=4, **options), 1e-11)


def test_state_of_log_me_does_not_grow():
    metric = LogME(4, 3)
    shapes = {name: state.shape for name, state in metric.metric_state.items()}
    for seed in range(3):
        metric.update(*labelled(500, 4, seed=seed))
    assert {name: state.shape for name, state in metric.metric_state.items()} == shapes
    assert metric.gram.shape == (4, 4)
    assert metric.cross.shape == (3, 4)
