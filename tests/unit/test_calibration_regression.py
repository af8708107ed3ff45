"""Behaviours of the metrics of predicted distributions and quantiles, and of their CRPS, that no property covers."""

import math
import warnings

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal, StudentT, Uniform
from torchmetrics import MetricCollection

from trainkit._core.crps import crps_ensemble, crps_mixture, crps_normal, crps_quantiles, pinball
from trainkit._core.svg import to_svg
from trainkit.calibration.metrics import (
    EnsembleCRPS,
    IntervalScore,
    MixtureCRPS,
    NormalCRPS,
    PITCalibrationError,
    QuantileCalibrationError,
    QuantileScore,
    WeightedIntervalScore,
    distribution_pit,
    ensemble_crps,
    ensemble_pit,
    interval_score,
    mixture_crps,
    mixture_pit,
    normal_crps,
    normal_pit,
    pit_calibration_error,
    quantile_calibration_error,
    quantile_score,
    weighted_interval_score,
)
from trainkit.testing.kinds import KINDS

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)


def close(got, expected, rtol=1e-12, atol=1e-14):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=atol)


def numbers(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def drawn(kind, n, seed=0):
    return KINDS[kind].draw(torch.Generator().manual_seed(seed), n, torch.float64)


MAKERS = {
    "normal": lambda: NormalCRPS(return_parts=True),
    "mixture": lambda: MixtureCRPS(return_parts=True),
    "ensemble": lambda: EnsembleCRPS(fair=True, return_parts=True),
    "quantiles": lambda: QuantileScore(LEVELS, return_parts=True),
    "quantiles, intervals": lambda: WeightedIntervalScore(LEVELS, return_parts=True),
    "quantiles, error": lambda: QuantileCalibrationError(LEVELS, return_parts=True),
    "interval": lambda: IntervalScore(return_parts=True),
    "pit": PITCalibrationError,
    "pit, sorted": lambda: PITCalibrationError(form="sorted"),
    "pit, squares": lambda: PITCalibrationError(2, form="sorted"),
}


def kind_of(name):
    return name.partition(",")[0]


def parts_of(value):
    return value if isinstance(value, dict) else {"value": value}


def same(got, expected, rtol=1e-12):
    for name, value in parts_of(expected).items():
        close(parts_of(got)[name], value, rtol=rtol)


def integrated(cdf, target, low=-60.0, high=60.0, count=400_000):
    """The score as an integral of squared differences of distribution functions, by the rule of midpoints."""
    total = 0.0
    for left, right, step in ((low, target, 0.0), (target, high, 1.0)):
        x = torch.linspace(left, right, count + 1, dtype=torch.float64)
        x = (x[1:] + x[:-1]) / 2
        total += float((cdf(x) - step).square().sum() * (right - left) / count)
    return total


@pytest.mark.parametrize(("mean", "std", "target"), [(0.0, 1.0, 0.3), (1.0, 0.2, 4.0), (-2.0, 5.0, -2.0)])
def test_normal_against_integration(mean, std, target):
    got = crps_normal(*numbers(mean, std, target)).crps
    close(got, integrated(Normal(*numbers(mean, std)).cdf, target), rtol=1e-7)


def test_mixture_against_integration():
    probs, mean, std = numbers(0.3, 0.5, 0.2), numbers(-1.0, 0.5, 3.0), numbers(0.5, 1.2, 0.1)
    mixture = MixtureSameFamily(Categorical(probs), Normal(mean, std))
    for target in (-4.0, 0.25, 3.0):
        got = crps_mixture(probs, mean, std, numbers(target)[0]).crps
        close(got, integrated(mixture.cdf, target), rtol=1e-7)


def test_ensemble_against_integration_with_ties():
    samples = numbers(0.0, 1.0, 1.0, 2.5)
    for target in (-1.0, 1.0, 1.7, 4.0):
        got = crps_ensemble(samples, numbers(target)[0], 0.0).crps
        expected = integrated(lambda x: (samples <= x.unsqueeze(1)).double().mean(1), target, -5, 5, 100_000)
        close(got, expected, rtol=1e-4)


def test_quantiles_tend_to_the_score():
    levels = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    target = numbers(0.7)
    got = crps_quantiles(Normal(*numbers(0.2, 1.5)).icdf(levels).unsqueeze(0), target, levels)
    close(got, crps_normal(*numbers(0.2, 1.5), target).crps, rtol=1e-5)


@pytest.mark.parametrize("fairness", [0.0, 0.95, 1.0])
def test_gradients_of_ensembles(fairness):
    samples, target = drawn("ensemble", 4).values()
    torch.autograd.gradcheck(lambda x, y: crps_ensemble(x, y, fairness).crps, (samples.requires_grad_(), target))


def test_gradients_and_second_derivatives():
    mean, std, target = (v.requires_grad_() for v in drawn("normal", 4).values())
    torch.autograd.gradcheck(lambda *inputs: crps_normal(*inputs).crps, (mean, std, target))
    torch.autograd.gradgradcheck(lambda *inputs: crps_normal(*inputs).crps, (mean, std, target))
    inputs = [v.requires_grad_() for v in drawn("mixture", 3).values()]
    torch.autograd.gradcheck(lambda *inputs: crps_mixture(*inputs).crps, inputs)
    torch.autograd.gradgradcheck(lambda *inputs: crps_mixture(*inputs).crps, inputs)
    quantiles, target = drawn("quantiles", 4).values()
    levels = numbers(*LEVELS)
    torch.autograd.gradcheck(lambda q: crps_quantiles(q, target, levels), quantiles.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [0.0, 1.0, -1e30, 1e-30])
@pytest.mark.parametrize("power", [-37, -30, -3, 3, 30, 37])
def test_tiny_and_huge_deviations_have_finite_gradients(dtype, distance, power):
    std = torch.tensor(10.0**power, dtype=dtype, requires_grad=True)
    mean = torch.tensor(distance, dtype=dtype, requires_grad=True)
    value = crps_normal(mean, std, torch.zeros((), dtype=dtype)).crps
    value.backward()
    far = abs(distance) > 50 * 10.0**power
    expected = abs(distance) - 10.0**power / math.sqrt(math.pi)
    if far:
        close(value.detach(), expected, rtol=1e-6)
    assert value.isfinite()
    assert value > 0
    assert mean.grad.isfinite()
    assert std.grad.isfinite()
    assert mean.grad.abs() <= 1
    if far:
        close(std.grad, -1 / math.sqrt(math.pi), rtol=1e-6)


@pytest.mark.parametrize("exponent", [-300, -150, 150, 300])
def test_a_scale_goes_through(exponent):
    scale = 10.0**exponent
    plain, scaled = (crps_normal(*numbers(0.3 * s, 0.5 * s, 1.1 * s)).crps for s in (1.0, scale))
    close(scaled / scale, plain, rtol=1e-13)
    components = numbers(0.3, 0.7), numbers(0.3, -0.4), numbers(0.5, 1.5)
    plain, scaled = (
        crps_mixture(components[0], s * components[1], s * components[2], numbers(s)[0]).crps for s in (1.0, scale)
    )
    close(scaled / scale, plain, rtol=1e-13)


def test_ensembles_far_from_zero_lose_nothing():
    samples, target = drawn("ensemble", 6).values()
    # Powers of two, so that the sums are exact.
    samples, target = ((v * 2**10).round() / 2**10 for v in (samples, target))
    close(
        crps_ensemble(samples + 2.0**40, target + 2.0**40, 1.0).crps,
        crps_ensemble(samples, target, 1.0).crps,
        rtol=1e-13,
    )


def test_one_component_and_equal_members():
    mean, std, target = drawn("normal", 5).values()
    one = torch.ones(5, 1, dtype=torch.float64)
    expected = crps_normal(mean, std, target)
    got = crps_mixture(one, mean.unsqueeze(1), std.unsqueeze(1), target)
    for mine, theirs in zip(got, expected, strict=True):
        close(mine, theirs)
    halves = crps_mixture(one.expand(-1, 2) / 2, *(v.unsqueeze(1).expand(-1, 2) for v in (mean, std)), target)
    close(halves.crps, expected.crps)
    member = mean.unsqueeze(1).requires_grad_()
    alone = crps_ensemble(member, target, 0.0).crps
    close(alone.detach(), (mean - target).abs())
    alone.sum().backward()
    assert member.grad.isfinite().all()
    equal = crps_ensemble(mean.unsqueeze(1).expand(-1, 4), target, 1.0)
    assert not equal.spread.any()


def test_fairness_goes_from_the_members_to_their_distribution():
    samples, target = drawn("ensemble", 3).values()
    biased, half, fair = (crps_ensemble(samples, target, f) for f in (0.0, 0.5, 1.0))
    close(fair.spread, biased.spread * 5 / 4)
    close(half.spread, (biased.spread + fair.spread) / 2)


def test_the_fair_score_does_not_depend_on_the_number_of_members():
    g = torch.Generator().manual_seed(0)
    target = torch.randn(20_000, generator=g, dtype=torch.float64)
    expected = float(normal_crps(torch.zeros_like(target), torch.ones_like(target), target))
    for members in (2, 3, 10):
        samples = torch.randn(20_000, members, generator=g, dtype=torch.float64)
        fair, biased = (float(ensemble_crps(samples, target, fair=f)) for f in (True, False))
        assert abs(fair - expected) < 0.01
        assert biased - expected > 0.4 / members


@pytest.mark.parametrize("kind", ["normal", "mixture", "ensemble", "quantiles", "interval", "pit"])
def test_the_problem_of_each_kind_can_be_learned(kind):
    """By the score that the kind is for, so that losses in these inputs have something to reach."""
    rows = {
        "normal": lambda mean, std, target: crps_normal(mean, std, target).crps,
        "mixture": lambda probs, mean, std, target: crps_mixture(probs, mean, std, target).crps,
        "ensemble": lambda samples, target: crps_ensemble(samples, target, 0.0).crps,
        "quantiles": lambda quantiles, target: pinball(quantiles, target, torch.tensor(LEVELS)).mean(1),
        "interval": lambda lower, upper, target: pinball(
            torch.stack([lower, upper], 1), target, torch.tensor([0.1, 0.9])
        ).mean(1),
        "pit": lambda pit: (pit - 0.5).square(),
    }[kind]
    problem = KINDS[kind].problem(torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(problem.parameters, lr=0.3)
    first = float(rows(**problem.inputs()).mean().detach())
    for _ in range(50):
        optimizer.zero_grad()
        value = rows(**problem.inputs()).mean()
        value.backward()
        optimizer.step()
    assert float(value.detach()) < 0.5 * first
    assert problem.score() >= problem.threshold or kind == "pit"


@pytest.mark.parametrize("name", MAKERS)
def test_weights_equal_repetition(name):
    inputs = drawn(kind_of(name), 12)
    times = torch.arange(12) % 4
    weighted, repeated = MAKERS[name](), MAKERS[name]()
    weighted.update(**inputs, weight=times.double())
    repeated.update(**{k: v.repeat_interleave(times, 0) for k, v in inputs.items()})
    same(weighted.compute(), repeated.compute())


@pytest.mark.parametrize("name", MAKERS)
def test_any_split_gives_the_value_of_one_pass(name):
    inputs = drawn(kind_of(name), 500)
    weight = torch.rand(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole, split = MAKERS[name](), MAKERS[name]()
    whole.update(**inputs, weight=weight)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(2))
    for rows in order.split([1, 0, 99, 400]):
        split.update(**{k: v[rows] for k, v in inputs.items()}, weight=weight[rows])
    same(split.compute(), whole.compute())


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_to_average_is_nan_with_one_warning(name):
    metric, inputs = MAKERS[name](), drawn(kind_of(name), 4)
    metric.update(**inputs, weight=torch.zeros(4))
    metric.update(**{k: v[:0] for k, v in inputs.items()})
    with pytest.warns(UserWarning, match=f"{type(metric).__name__}: the value is nan") as heard:
        value = parts_of(metric.compute())
    assert len(heard) == 1
    assert next(iter(value.values())).isnan()
    assert float(value.get("crossings", 0.0)) == 0
    metric.update(**{k: v[:1] for k, v in inputs.items()})
    assert all(part.isfinite().all() for part in parts_of(metric.compute()).values())


@pytest.mark.parametrize("name", MAKERS)
def test_rows_of_any_shape(name):
    """Dimension 1 is that of components, members or levels; all others are rows."""
    inputs = drawn(kind_of(name), 12)
    flat, shaped = MAKERS[name](), MAKERS[name]()
    flat.update(**inputs)
    shaped.update(**{k: v.reshape(2, 6) if v.dim() == 1 else v.reshape(2, 6, -1).mT for k, v in inputs.items()})
    same(shaped.compute(), flat.compute())


def test_metrics_of_one_setting_share_states_and_others_do_not():
    inputs = drawn("pit", 30)
    collection = MetricCollection(
        {
            "one": PITCalibrationError(),
            "squares": PITCalibrationError(2),
            "few": PITCalibrationError(n_levels=10),
            "sorted": PITCalibrationError(form="sorted"),
        }
    )
    collection.update(**inputs)
    collection.update(**inputs)
    assert sorted(map(len, collection.compute_groups.values())) == [1, 1, 2]
    close(collection.compute()["few"], pit_calibration_error(inputs["pit"].repeat(2), n_levels=10))


def test_parts_of_scores_add_up():
    for value in (
        normal_crps(**drawn("normal", 9), return_parts=True),
        mixture_crps(**drawn("mixture", 9), return_parts=True),
        ensemble_crps(**drawn("ensemble", 9), fair=True, return_parts=True),
    ):
        close(value["crps"], value["error"] - value["spread"])
    told = weighted_interval_score(**drawn("quantiles", 9), levels=LEVELS, return_parts=True)
    close(told["score"], told["dispersion"] + told["underprediction"] + told["overprediction"])


def test_weighted_interval_score_is_twice_the_quantile_score_and_made_of_interval_scores():
    inputs = drawn("quantiles", 20)
    got = weighted_interval_score(**inputs, levels=LEVELS)
    close(got, 2 * quantile_score(**inputs, levels=LEVELS))
    q, y = inputs["quantiles"], inputs["target"]
    total = (y - q[:, 2]).abs().mean() / 2
    for k, alpha in enumerate((0.2, 0.5)):
        total = total + alpha / 2 * interval_score(q[:, k], q[:, -1 - k], y, alpha=alpha)
    close(got, total / 2.5)
    close(weighted_interval_score(q[:, 2:3], y, levels=[0.5]), (y - q[:, 2]).abs().mean())


def test_which_side_the_target_lies_on():
    quantiles = numbers([-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0])
    above = weighted_interval_score(quantiles, numbers(3.0, 4.0), levels=(0.1, 0.5, 0.9), return_parts=True)
    below = weighted_interval_score(quantiles, numbers(-3.0, -4.0), levels=(0.1, 0.5, 0.9), return_parts=True)
    close(above["underprediction"], below["overprediction"])
    assert above["overprediction"] == 0
    assert below["underprediction"] == 0
    close(above["dispersion"], 0.2 / 1.5)


def test_crossing_quantiles_are_counted_and_scored_as_they_are():
    quantiles = numbers([0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0])
    target, weight = numbers(0.5, 0.5, 0.5, 0.5), numbers(1.0, 3.0, 1.0, 1.0)
    options = {"levels": (0.1, 0.5, 0.9), "return_parts": True}
    for function in (quantile_score, weighted_interval_score, quantile_calibration_error):
        assert function(quantiles, target, **options)["crossings"] == 2
        assert function(quantiles, target, weight=weight, **options)["crossings"] == 4
    ordered = quantile_score(quantiles.sort(1).values, target, levels=options["levels"])
    assert quantile_score(quantiles, target, levels=options["levels"]) > ordered


def test_crossing_intervals_cover_nothing():
    told = interval_score(numbers(2.0, 0.0), numbers(0.0, 2.0), numbers(1.0, 1.0), alpha=0.5, return_parts=True)
    assert told["crossings"] == 1
    assert told["coverage"] == 0.5
    assert told["width"] == 0
    # Width -2 and 4 times a distance of 1 on either side; width 2 and no distance.
    close(told["score"], (6.0 + 2.0) / 2)


def test_ends_of_an_interval_are_inside():
    assert interval_score(numbers(0.0, 0.0), numbers(1.0, 1.0), numbers(0.0, 1.0), return_parts=True)["coverage"] == 1


def test_a_target_equal_to_a_quantile_counts_as_below():
    close(quantile_calibration_error(numbers([1.0]), numbers(1.0), levels=[0.5]), 0.5)
    told = quantile_calibration_error(numbers([1.0], [1.0]), numbers(1.0, 2.0), levels=[0.5], return_parts=True)
    close(told["observed"], [0.5])
    close(told["error"], 0.0)


def pit_by_hand(values, weights, p):
    """Rank by rank, with a part of a row for what is left of a weight; equal values are one after another."""
    merged = {}
    for u, w in zip(values, weights, strict=True):
        merged[u] = merged.get(u, 0.0) + w
    n = sum(merged.values())
    total, rank = 0.0, 0.0
    for u in sorted(merged):
        w = merged[u]
        total += sum(abs(u - (rank + j) / (n + 1)) ** p for j in range(1, int(w) + 1))
        total += (w - int(w)) * abs(u - (rank + w) / (n + 1)) ** p
        rank += w
    return total / n


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1], [5, 0, 7, 2, 1], [0.5, 0.25, 2.75, 1.0, 3.5]])
def test_ranks_with_weights_and_ties(weights, p):
    values = [0.9, 0.2, 0.2, 0.55, 0.9]
    got = pit_calibration_error(numbers(*values), weight=numbers(*weights), p=p, form="sorted")
    close(got, pit_by_hand(values, weights, p))
    backwards = pit_calibration_error(numbers(*values[::-1]), weight=numbers(*weights[::-1]), p=p, form="sorted")
    close(backwards, got)


def test_a_level_counts_the_transforms_equal_to_it():
    # Levels 0.25 and 0.75.
    close(pit_calibration_error(numbers(0.25), n_levels=2), (0.75 + 0.25) / 2)
    close(pit_calibration_error(numbers(0.2500001), n_levels=2), (0.25 + 0.25) / 2)
    close(pit_calibration_error(numbers(0.0, 1.0), n_levels=2), (0.25 + 0.25) / 2)


def test_too_narrow_distributions_are_seen():
    g = torch.Generator().manual_seed(0)
    target = torch.randn(20_000, generator=g, dtype=torch.float64)
    zero, one = torch.zeros_like(target), torch.ones_like(target)
    for form in ("grid", "sorted"):
        right = float(pit_calibration_error(normal_pit(zero, one, target), form=form))
        narrow = float(pit_calibration_error(normal_pit(zero, one / 1.6, target), form=form))
        assert right < 0.01
        assert narrow > 5 * right
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    quantiles = Normal(0.0, 1.0).icdf(levels).expand(len(target), -1)
    assert quantile_calibration_error(quantiles, target, levels=LEVELS) < 0.01
    assert quantile_calibration_error(quantiles / 1.6, target, levels=LEVELS) > 0.05


def test_transforms_of_normal_distributions_and_mixtures():
    mean, std, target = drawn("normal", 8).values()
    close(normal_pit(mean, std, target), Normal(mean, std).cdf(target))
    close(distribution_pit(Normal(mean, std), target), normal_pit(mean, std, target))
    probs, mean, std, target = drawn("mixture", 8).values()
    mixture = MixtureSameFamily(Categorical(probs), Normal(mean, std))
    close(mixture_pit(probs, mean, std, target), mixture.cdf(target))
    close(distribution_pit(mixture, target), mixture.cdf(target))
    assert normal_pit(numbers([0.0, 1.0]), numbers([1.0, 1e-300]), numbers([0.0, 2.0])).tolist() == [[0.5, 1.0]]
    assert mixture_pit(probs[:0], mean[:0], std[:0], target[:0]).shape == (0,)


def test_transforms_come_in_full_precision():
    mean, std, target = (v.bfloat16() for v in drawn("normal", 8).values())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = distribution_pit(Normal(mean.double(), std.double()), target)
        close(got, normal_pit(mean, std, target), rtol=1e-9)
    assert got.dtype == torch.float64


@pytest.mark.parametrize(
    ("distribution", "error", "match"),
    [
        (StudentT(numbers(3.0, 3.0)), TypeError, "distribution_pit: distribution must have a cdf, got StudentT"),
        (MultivariateNormal(torch.zeros(2), torch.eye(2)), TypeError, "distribution must have a cdf"),
        (None, TypeError, "distribution must have a cdf, got None"),
        (Normal(torch.zeros(3, 1), 1.0), ValueError, "must have shape"),
    ],
)
def test_what_has_no_distribution_function_is_refused(distribution, error, match):
    with pytest.raises(error, match=match):
        distribution_pit(distribution, torch.zeros(2))


def test_transforms_refuse_bad_values():
    with pytest.raises(ValueError, match=r"distribution_pit: target must be finite, got nan at index \(1,\)"):
        distribution_pit(Uniform(0.0, 1.0), torch.tensor([0.5, math.nan]))
    with pytest.raises(ValueError, match="normal_pit: std must be > 0 and finite, got 0.0"):
        normal_pit(torch.zeros(2), torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="mixture_pit: probs must hold probabilities that sum to 1"):
        mixture_pit(torch.ones(2, 2), torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"ensemble_pit: samples must have shape \(2, K\) for some K > 0"):
        ensemble_pit(torch.ones(2), torch.zeros(2))

    class Wrong:
        def cdf(self, value):
            return value + 2

    with pytest.raises(ValueError, match=r"cdf\(target\) must be in \[0, 1\], got 2.0"):
        distribution_pit(Wrong(), torch.zeros(2))


def test_ranks_in_an_ensemble():
    samples = numbers([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    target = numbers(-1.0, 1.5, 1.0, 1.0)
    close(ensemble_pit(samples, target), numbers(0.125, 0.625, 0.5, 0.5))
    g = torch.Generator().manual_seed(0)
    got = torch.stack([ensemble_pit(samples, target, generator=g) for _ in range(2000)])
    close(got.amin(0), numbers(0.0, 0.5, 0.25, 0.0), rtol=0, atol=0.01)
    close(got.amax(0), numbers(0.25, 0.75, 0.75, 1.0), rtol=0, atol=0.01)
    assert torch.equal(
        ensemble_pit(samples, target, generator=g.manual_seed(3)),
        ensemble_pit(samples, target, generator=torch.Generator().manual_seed(3)),
    )


def test_ties_in_an_ensemble_are_uniform_with_a_generator():
    """Counts, of which many are equal."""
    g = torch.Generator().manual_seed(0)
    drawn = torch.randint(3, (20_000, 6), generator=g).double()
    pit = ensemble_pit(drawn[:, 1:], drawn[:, 0], generator=g)
    assert pit_calibration_error(pit) < 0.01
    middles = ensemble_pit(drawn[:, 1:], drawn[:, 0])
    assert pit_calibration_error(middles) > 0.03


def test_one_member():
    samples, target = numbers([1.0], [4.0]), numbers(2.0, 2.0)
    told = ensemble_crps(samples, target, return_parts=True)
    assert {k: float(v) for k, v in told.items()} == {"crps": 1.5, "error": 1.5, "spread": 0.0, "sharpness": 0.0}
    with pytest.raises(ValueError, match="ensemble_crps: samples must have two members at least for fair=True"):
        ensemble_crps(samples, target, fair=True)
    close(ensemble_pit(samples, target), numbers(0.75, 0.25))


def test_batches_may_have_different_numbers_of_members():
    metric = EnsembleCRPS()
    metric.update(numbers([1.0]), numbers(2.0))
    metric.update(numbers([0.0, 2.0]), numbers(1.0))
    close(metric.compute(), (1.0 + 0.5) / 2)


def test_rounded_probabilities_are_divided_by_their_sum():
    probs, mean, std, target = drawn("mixture", 6).values()
    close(mixture_crps(probs * 1.005, mean, std, target), mixture_crps(probs, mean, std, target))


def test_values_are_not_checked_unless_wanted():
    assert normal_crps(torch.zeros(1), torch.ones(1), numbers(math.nan), validate_args=False).isnan()
    assert IntervalScore(validate_args=False)(numbers(-math.inf), numbers(0.0), numbers(0.0)).isinf()


def test_no_warning_but_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, make in MAKERS.items():
            metric = make()
            metric.update(**{k: v[:0] for k, v in drawn(kind_of(name), 2).items()})
            metric.update(**drawn(kind_of(name), 2))
            metric.compute()


@pytest.mark.parametrize("form", ["grid", "sorted"])
@pytest.mark.parametrize("n_levels", [1, 2, 7, 100])
def test_figure_of_transforms(form, n_levels):
    metric = PITCalibrationError(n_levels=n_levels, form=form)
    pit = drawn("pit", 3000)["pit"] ** 2
    metric.update(pit, weight=torch.full((3000,), 0.5))
    curve, histogram = metric.figure(title="held out").axes
    assert curve.title == f"PIT calibration error {float(metric.compute()):.4f}"
    line, bars = curve.marks[1], histogram.marks[0]
    assert len(line.x) == n_levels
    assert line.y[0] == pytest.approx(float((pit <= line.x[0]).double().mean()))
    widths = [right - left for left, right in zip(bars.left, bars.right, strict=True)]
    assert sum(w * h for w, h in zip(widths, bars.height, strict=True)) == pytest.approx(1.0)
    assert bars.left[0] == 0
    assert bars.right[-1] == 1
    assert bars.left[1:] == bars.right[:-1]
    assert len(widths) == min(10, n_levels + 1)
    assert "held out" in to_svg(metric.figure(title="held out"))


def test_figure_of_quantiles():
    metric = QuantileCalibrationError(LEVELS, return_parts=True)
    metric.update(**drawn("quantiles", 200))
    (axes,) = metric.figure().axes
    told = metric.compute()
    assert axes.title == f"Quantile calibration error {float(told['error']):.4f}"
    assert axes.marks[1].x == LEVELS
    assert list(axes.marks[1].y) == told["observed"].tolist()


@pytest.mark.parametrize(
    "metric", [PITCalibrationError(), PITCalibrationError(form="sorted"), QuantileCalibrationError(LEVELS)], ids=repr
)
def test_figure_of_nothing(metric):
    assert to_svg(metric.figure()).startswith("<svg")


def test_plot_with_matplotlib():
    pytest.importorskip("matplotlib", reason="drawing with matplotlib needs the extra plots")
    metric = PITCalibrationError()
    metric.update(**drawn("pit", 50))
    _, (curve, histogram) = metric.plot()
    assert curve.get_ylabel() == "share at most as large"
    assert histogram.get_ylabel() == "density"
