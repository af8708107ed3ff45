"""The sums over pairs of scores: every algorithm against all pairs in fp64, and the loss on top of them."""

import math
from unittest import mock

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tests.benchmarks import pairwise
from trainkit._core.score_pairs import engine, pair_surrogate_sum
from trainkit.losses import BPRLoss, PairwiseAUCLoss
from trainkit.testing import LossSpec, cases_of, properties_for, run_property
from trainkit.testing.common import shards
from trainkit.testing.losses.ranks import loss_on_rank

FAST = {"logistic": "grid", "hinge": "sort", "squared_hinge": "sort", "square": "closed"}
PAIRS = [(s, a) for s, fast in FAST.items() for a in ("dense", "brute", fast)]
OPAQUE = [(s, a) for s, a in PAIRS if a not in ("dense", "closed")]
PLAIN = [(s, a) for s, a in PAIRS if a in ("dense", "closed")]
RTOL = {"grid": 2e-7, "sort": 1e-11, "closed": 1e-6, "brute": 1e-12, "dense": 1e-12}
MARGIN = 0.75


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def surrogate_and_slope(surrogate, x):
    if surrogate == "logistic":
        return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs())), 1 / (1 + torch.exp(-x))
    if surrogate == "square":
        return (MARGIN + x) ** 2, 2 * (MARGIN + x)
    late = (MARGIN + x).clamp_min(0)
    return (late, (late > 0).double()) if surrogate == "hinge" else (late**2, 2 * late)


def all_pairs(p, n, w, u, surrogate, rows=256):
    """Value and gradients from every pair, a block of rows at a time."""
    value, of_positive, of_negative = 0.0, [], torch.zeros_like(n)
    for own, weight in zip(p.split(rows), w.split(rows), strict=True):
        phi, slope = surrogate_and_slope(surrogate, n[None] - own[:, None])
        value += float((weight[:, None] * phi * u[None]).sum())
        of_positive.append(-weight * (slope * u[None]).sum(1))
        of_negative += u * (slope * weight[:, None]).sum(0)
    return value, torch.cat(of_positive), of_negative


def computed(p, n, w, u, surrogate, algorithm):
    p, n = p.clone().requires_grad_(), n.clone().requires_grad_()
    value = pair_surrogate_sum(
        p, n, surrogate=surrogate, margin=MARGIN, positive_weight=w, negative_weight=u, algorithm=algorithm
    )
    value.backward()
    return value.item(), p.grad, n.grad


def close(got, expected, rtol, atol):
    """``atol`` is relative to the number of pairs of an entry: what the mean over pairs is held to."""
    assert got[0] == pytest.approx(expected[0], rel=rtol, abs=1e-300)
    for found, wanted, others in zip(got[1:], expected[1:], (len(expected[2]), len(expected[1])), strict=True):
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol * others)


def clusters(count, seed):
    """Four groups, far apart and only just apart, with few scores each."""
    at = torch.tensor([0.0, 39.5, 81.0, 1e6], dtype=torch.float64)
    return at[torch.arange(count) % 4] + normal(count, seed=seed)


SCORES = {
    "one pair": lambda: (normal(1), normal(1, seed=1)),
    "one positive": lambda: (normal(1), 3 * normal(9, seed=1)),
    "one negative": lambda: (3 * normal(40), normal(1, seed=1)),
    "normal": lambda: (normal(300), normal(500, seed=1)),
    "spread": lambda: (30 * normal(300), 30 * normal(500, seed=1)),
    "thin": lambda: (1e4 * normal(300), 1e4 * normal(500, seed=1)),
    "ties": lambda: ((2 * normal(200)).round(), (2 * normal(200, seed=1)).round()),
    "all equal": lambda: (torch.full((50,), 0.5, dtype=torch.float64), torch.full((60,), 0.5, dtype=torch.float64)),
    "block edges": lambda: (4.0 * torch.arange(-8, 9).double(), 4.0 * torch.arange(-8, 9).double() - 1),
    "clusters": lambda: (clusters(100, 0), clusters(90, 1)),
    "heavy tails": lambda: (normal(400) / normal(400, seed=2), normal(300, seed=1) / normal(300, seed=3)),
    "a positive far below": lambda: (torch.cat([normal(50), -torch.tensor([1e9]).double()]), normal(60, seed=1)),
    "a negative far above": lambda: (normal(50), torch.cat([normal(60, seed=1), torch.tensor([1e9]).double()])),
    "positives lead by 30": lambda: (normal(200) + 30, normal(200, seed=1)),
    "positives lead by 8": lambda: (0.1 * normal(200) + 8, 0.1 * normal(200, seed=1)),
    "negatives lead by 30": lambda: (normal(200) - 30, normal(200, seed=1)),
    "far from zero": lambda: (1e6 + normal(100), 1e6 + normal(100, seed=1)),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(("surrogate", "algorithm"), PAIRS)
@pytest.mark.parametrize("scores", list(SCORES))
def test_algorithm_equals_all_pairs(scores, surrogate, algorithm, weighted):
    p, n = SCORES[scores]()
    w, u = torch.ones_like(p), torch.ones_like(n)
    if weighted:
        w, u = (torch.rand(len(x), generator=generator(5), dtype=torch.float64) for x in (p, n))
        w[1::5] = 0
    expected = all_pairs(p, n, w, u, surrogate)
    close(computed(p, n, w, u, surrogate, algorithm), expected, RTOL[algorithm], 1e-16)


def mixture(name, count):
    p, n = normal(count), normal(count, seed=1)
    if name == "x 1e4":
        p, n = 1e4 * p, 1e4 * n
    elif name == "Cauchy":
        p, n = p / normal(count, seed=2), n / normal(count, seed=3)
    elif name == "outliers":
        p[3], p[7], n[5], n[9] = 1e9, -1e9, 1e9, -1e9
    elif name == "lead of 30":
        p = p + 30
    return p, n


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "x 1e4", "Cauchy", "outliers", "lead of 30"])
@pytest.mark.parametrize("surrogate", ["logistic", "hinge", "squared_hinge"])
def test_gradient_entries_at_16384(name, surrogate):
    """Each within 1e-6 of itself: an absolute error would not do where all of them are 1e-13."""
    p, n = mixture(name, 16384)
    one = torch.ones_like(p)
    expected = all_pairs(p, n, one, one, surrogate)
    close(
        computed(p, n, one, one, surrogate, FAST[surrogate]), expected, 1e-6, 1e-22 if name == "lead of 30" else 1e-18
    )


def sides(p=4, n=5):
    return (2 * normal(p)).requires_grad_(), (2 * normal(n, seed=1)).requires_grad_()


def summed(surrogate, algorithm):
    return lambda p, n: pair_surrogate_sum(p, n, surrogate=surrogate, margin=MARGIN, algorithm=algorithm)


@pytest.mark.parametrize(("surrogate", "algorithm"), PAIRS)
def test_gradcheck(surrogate, algorithm):
    gradcheck(summed(surrogate, algorithm), sides(), atol=2e-6)


@pytest.mark.parametrize(("surrogate", "algorithm"), PLAIN)
def test_plain_forms_are_differentiable_twice(surrogate, algorithm):
    gradgradcheck(summed(surrogate, algorithm), sides())


@pytest.mark.parametrize(("surrogate", "algorithm"), OPAQUE)
def test_a_second_derivative_of_an_operator_raises(surrogate, algorithm):
    p, n = sides()
    (gradient,) = torch.autograd.grad(summed(surrogate, algorithm)(p, n), p, create_graph=True)
    with pytest.raises(RuntimeError, match="pair_sum_backward"):
        gradient.sum().backward()


@pytest.mark.parametrize(("surrogate", "algorithm"), PAIRS)
def test_compiles_to_one_graph(surrogate, algorithm):
    torch._dynamo.reset()
    compiled = torch.compile(summed(surrogate, algorithm), fullgraph=True, backend="aot_eager")
    for size in (4, 6):
        outcomes = []
        for run in (summed(surrogate, algorithm), compiled):
            p, n = sides(size)
            value = run(p, n)
            value.backward()
            outcomes.append((value, p.grad, n.grad))
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("surrogate", "algorithm"), OPAQUE)
def test_operators_are_sound(surrogate, algorithm):
    p, n = sides()
    w, u = torch.rand(4, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    utils = ["test_schema", "test_autograd_registration", "test_faketensor"]
    arguments = (p, n, w, u, surrogate, MARGIN, algorithm)
    torch.library.opcheck(torch.ops.trainkit.pair_sum.default, arguments, test_utils=utils)


@pytest.mark.parametrize(("surrogate", "algorithm"), PAIRS)
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_without_a_pair_the_sum_is_a_zero_with_a_graph(surrogate, algorithm, sizes):
    p, n = sides(*sizes)
    value = summed(surrogate, algorithm)(p, n)
    assert value.item() == 0
    value.backward()
    assert not p.grad.any()
    assert not n.grad.any()


@pytest.mark.parametrize(("surrogate", "algorithm"), PAIRS)
def test_weights_of_zero_are_no_pair(surrogate, algorithm):
    p, n = normal(4), normal(5)
    value, *gradients = computed(p, n, torch.zeros(4), torch.ones(5), surrogate, algorithm)
    assert value == 0
    assert not any(g.any() for g in gradients)


@pytest.mark.parametrize(("surrogate", "algorithm"), PAIRS)
def test_nan_propagates(surrogate, algorithm):
    p, n = normal(4), normal(5)
    p[2] = math.nan
    value, of_positive, _ = computed(p, n, torch.ones(4), torch.ones(5), surrogate, algorithm)
    assert math.isnan(value)
    assert surrogate == "hinge" or of_positive[2].isnan()


@pytest.mark.parametrize(("surrogate", "algorithm"), OPAQUE)
def test_an_infinite_score_gives_nan(surrogate, algorithm):
    p, n = normal(4), normal(5)
    n[0] = math.inf
    outcome = computed(p, n, torch.ones(4), torch.ones(5), surrogate, algorithm)
    assert all(torch.as_tensor(x).isnan().all() for x in outcome)


def test_an_algorithm_of_another_surrogate_is_refused():
    with pytest.raises(ValueError, match="algorithm must be one of 'auto', 'dense', 'brute', 'grid', got 'sort'"):
        summed("logistic", "sort")(*sides())


@pytest.mark.parametrize("surrogate", ["logistic", "hinge", "squared_hinge"])
def test_many_pairs_go_to_the_operator_in_single_precision(surrogate):
    p, n = normal(1025), normal(1024, seed=1)
    one = torch.ones_like(p)
    expected = all_pairs(p, n, one, one[:-1], surrogate)
    p, n = p.float().requires_grad_(), n.float().requires_grad_()
    value = pair_surrogate_sum(p, n, surrogate=surrogate, margin=MARGIN)
    (gradient,) = torch.autograd.grad(value, p, create_graph=True)
    assert value.dtype == gradient.dtype == torch.float32
    assert value.item() == pytest.approx(expected[0], rel=1e-6)
    with pytest.raises(RuntimeError, match="pair_sum_backward"):
        gradient.sum().backward()


class AlwaysFast(PairwiseAUCLoss):
    """The loss as it is on large batches, on small ones."""

    def forward(self, scores, target, *, weight=None, mask=None):
        with mock.patch.object(engine, "DENSE_LIMIT", -1):
            return super().forward(scores, target, weight=weight, mask=mask)


FAST_SPEC = LossSpec(
    cls=AlwaysFast,
    kind="scores",
    configs=tuple({"surrogate": s, "temperature": 0.5} for s in FAST),
)
# Patching a module is no business of a compiled graph.
NOT_HERE = {"L13"}
FAST_CASES = [pytest.param(c, id=c.config["surrogate"]) for c in cases_of(FAST_SPEC)]


@pytest.mark.parametrize("case", FAST_CASES)
def test_fast_forms_have_the_properties_of_losses(case):
    for rule in properties_for(FAST_SPEC):
        if not rule.ranks and rule.id not in NOT_HERE:
            outcome = run_property(rule, case)
            assert outcome.status != "fault", outcome.fault


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("case", FAST_CASES[1:])
def test_exact_forms_on_ranks(case, pool):
    (rule,) = [rule for rule in properties_for(FAST_SPEC) if rule.ranks]
    outcome = run_property(rule, case, pool)
    assert outcome.status == "holds", outcome.fault


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("split", [(4, 4), (3, 5), (8, 0)], ids=str)
def test_the_grid_on_ranks(split, pool):
    """A rank's own scores lie on another grid, so that only its accuracy is common."""
    inputs = FAST_CASES[0].values[0].inputs(8)
    scores = inputs["scores"].clone().requires_grad_()
    whole = PairwiseAUCLoss()(scores, inputs["target"])
    whole.backward()
    got = pool.run(loss_on_rank, [(AlwaysFast, {}, own, ["scores"]) for own in shards(inputs, split)])
    torch.testing.assert_close(torch.stack([g["value"] for g in got]).mean(), whole.detach(), rtol=1e-7, atol=0)
    for own, piece in zip(got, scores.grad.split(list(split)), strict=True):
        torch.testing.assert_close(own["grads"]["scores"], 2 * piece, rtol=1e-7, atol=0)


def compiled_on_rank(scores, target):
    torch._dynamo.reset()
    loss = torch.compile(PairwiseAUCLoss(), fullgraph=True, backend="aot_eager")
    scores = scores.clone().requires_grad_()
    value = loss(scores, target)
    value.backward()
    return value.detach(), scores.grad


@pytest.mark.xdist_group("ranks")
def test_compiles_on_ranks(pool):
    """The number of gathered rows is unknown to the tracer."""
    scores, target = normal(8), torch.arange(8) % 2
    whole = PairwiseAUCLoss()(scores, target)
    got = pool.run(compiled_on_rank, [(scores[:3], target[:3]), (scores[3:], target[3:])])
    torch.testing.assert_close((got[0][0] + got[1][0]) / 2, whole, rtol=1e-7, atol=0)


def auc(scores, target):
    lead = scores[target == 1][:, None] - scores[target == 0]
    return float(((lead > 0).double() + 0.5 * (lead == 0)).mean())


@pytest.mark.parametrize("loss", [PairwiseAUCLoss(), AlwaysFast()], ids=["dense", "grid"])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e4, 1e9])
@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_the_logistic_surrogate_bounds_the_misordered_share(loss, scale, tied):
    scores, target = normal(200), (torch.rand(200, generator=generator(4)) < 0.2).long()
    scores = scale * (scores.round() if tied else scores)
    assert loss(scores, target).item() / math.log(2) * (1 + 1e-7) >= 1 - auc(scores, target)


def test_ties_cost_log_two():
    scores, target = torch.full((6,), 3.0, dtype=torch.float64), torch.arange(6) % 2
    assert PairwiseAUCLoss()(scores, target).item() == pytest.approx(math.log(2), rel=1e-12)


@pytest.mark.parametrize("loss", [PairwiseAUCLoss(), AlwaysFast()], ids=["dense", "grid"])
def test_a_whole_weight_equals_repetition(loss):
    scores, target, times = normal(12), torch.arange(12) % 2, 1 + torch.arange(12) % 3
    repeated = loss(scores.repeat_interleave(times), target.repeat_interleave(times))
    torch.testing.assert_close(loss(scores, target, weight=times.double()), repeated, rtol=1e-7, atol=0)


@pytest.mark.parametrize("surrogate", ["logistic", "hinge", "squared_hinge"])
def test_both_sides_of_the_benchmark_compute_the_same(surrogate):
    fast, brute = (pairwise.step(form, surrogate, pairwise.SMALL)() for form in ("fast", "brute"))
    assert fast == pytest.approx(brute, rel=1e-6)


def test_the_error_that_the_benchmark_shows_is_small():
    assert 0 < pairwise.gradient_error("logistic", pairwise.SMALL)() < 2e-7


def test_bpr_takes_one_negative_a_row_too():
    scores, negatives, weight = normal(5), normal(5, seed=1), torch.rand(5, dtype=torch.float64)
    loss = BPRLoss()
    assert torch.equal(loss(scores, negatives, weight=weight), loss(scores, negatives[:, None], weight=weight))


def test_bpr_keeps_its_gradient_at_a_large_lead():
    scores = torch.tensor([60.0]).requires_grad_()
    BPRLoss()(scores, torch.zeros(1)).backward()
    assert scores.grad.item() == pytest.approx(-math.exp(-60), rel=1e-5)


@pytest.mark.parametrize("algorithm", ["auto", "closed", "dense", "brute"])
@pytest.mark.parametrize("lead", [0.0, 30.0, -30.0])
def test_the_exponential_is_a_product_of_two_sums(algorithm, lead):
    g = torch.Generator().manual_seed(0)
    p = (torch.randn(6, generator=g, dtype=torch.float64) + lead).requires_grad_()
    n = torch.randn(9, generator=g, dtype=torch.float64).requires_grad_()
    w, u = torch.arange(6.0, dtype=torch.float64), torch.arange(9.0, dtype=torch.float64)
    arguments = {"surrogate": "exponential", "positive_weight": w, "negative_weight": u}
    value = pair_surrogate_sum(p, n, algorithm=algorithm, **arguments)
    expected = (w * (-p).exp()).sum() * (u * n.exp()).sum()
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    for a, b in zip(torch.autograd.grad(value, [p, n]), torch.autograd.grad(expected, [p, n]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_the_exponential_without_a_pair_is_a_zero_with_a_graph():
    for sizes in ((0, 3), (3, 0), (0, 0)):
        p, n = (torch.zeros(size, requires_grad=True) for size in sizes)
        value = pair_surrogate_sum(p, n, surrogate="exponential")
        value.backward()
        assert value.item() == 0.0
        assert not p.grad.any()
        assert not n.grad.any()


def test_the_exponential_is_finite_where_its_value_is():
    p = torch.tensor([1e4, 1e4 + 1], requires_grad=True)
    n = torch.tensor([1e4 - 2, 1e4], requires_grad=True)
    value = pair_surrogate_sum(p, n, surrogate="exponential")
    value.backward()
    assert value.item() == pytest.approx((1 + math.exp(-1)) * (1 + math.exp(-2)), rel=1e-3)
    assert p.grad.isfinite().all()
