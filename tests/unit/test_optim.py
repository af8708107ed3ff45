"""Optimizers: what no property covers, and faults that other libraries have by name."""

import functools
import math

import pytest
import torch
from torch import nn

from trainkit.optim import MARS, AdaBelief, Chain, LaProp, Lion, MVNGrad, adamw, param_groups
from trainkit.optim._precision import round_stochastically
from trainkit.optim.transforms import (
    BiasCorrect,
    CautiousUpdate,
    CentredSecondMoment,
    Correct,
    Decay,
    Divide,
    Momentum,
    SecondMoment,
)

ALL = [MVNGrad, AdaBelief, LaProp, Lion, MARS, adamw]
MARS_LION = functools.partial(MARS, variant="lion")
SHAPES = [(5, 3), (4,), (), (2, 3, 2, 2)]
SIZES = [(5, 3), (4,), (9,), (2, 3, 2, 2)]


def parameters(seed=0, dtype=torch.float64, shapes=SHAPES):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def gradients(params, step):
    g = torch.Generator().manual_seed(100 + step)
    return [torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype) for p in params]


def run(optimizer, steps, start=0):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(start, start + steps):
        for p, g in zip(params, gradients(params, step), strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach().clone() for p in params]


def same(a, b, rtol=1e-12, atol=1e-14):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol)


def single(make, values):
    """A parameter with one entry after steps with these gradients."""
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = make([p])
    for value in values:
        p.grad = torch.tensor([value], dtype=torch.float64)
        optimizer.step()
    return p.item(), optimizer


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "betas": (0.8, 0.95)}])
def test_the_reference_chain_is_adamw(options):
    same(run(adamw(parameters(), **options), 20), run(torch.optim.AdamW(parameters(), **options), 20))
    same(run(adamw(parameters(), amsgrad=True), 20), run(torch.optim.AdamW(parameters(), amsgrad=True), 20))


def test_without_centre_mvn_grad_is_la_prop():
    options = {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.1}
    same(run(MVNGrad(parameters(), centre="none", **options), 20), run(LaProp(parameters(), **options), 20))


def test_momentum_before_the_division_makes_mvn_grad_ada_belief():
    eps = 1e-8
    steps = [CentredSecondMoment(eps_s=eps), Momentum(), Divide(), BiasCorrect()]
    same(run(Chain(parameters(), steps, eps=eps), 20), run(AdaBelief(parameters(), eps=eps), 20))


@pytest.mark.parametrize("options", [{"gamma": 0.0}, {"betas": (0.0, 0.99)}])
def test_without_correction_mars_is_adamw(options):
    usual = {"lr": 3e-3, "betas": (0.95, 0.99), "weight_decay": 0.1} | options
    plain = {k: v for k, v in usual.items() if k != "gamma"}
    same(run(MARS(parameters(), clip=None, optimize_1d=True, **usual), 20), run(adamw(parameters(), **plain), 20))


def test_the_correction_takes_its_arguments_in_the_right_places():
    """Swapped gamma and beta make the correction ten times weaker."""
    steps = [Correct(gamma=0.0025, clip=None)]
    moved, _ = single(lambda p: Chain(p, steps, lr=1.0, betas=(0.9, 0.99)), [0.5, 1.0])
    assert moved == pytest.approx(-(0.5 + 1.0 + 0.01125), rel=1e-12)


def test_first_step_of_mars():
    factor = 0.025 * 0.95 / 0.05
    for first, expected in (("zero_diff", 1.0), ("zero_last", 1.0 + factor)):
        moved, _ = single(
            lambda p, f=first: Chain(p, [Correct(clip=None, first_step=f)], lr=1.0, betas=(0.95, 0.99)), [1.0]
        )
        assert moved == pytest.approx(-expected, rel=1e-12)


def test_the_norm_of_a_corrected_gradient_is_limited():
    p = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    optimizer = Chain([p], [Correct(clip=0.5)], lr=1.0)
    p.grad = torch.full((3, 4), 7.0, dtype=torch.float64)
    optimizer.step()
    assert p.norm().item() == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize(("centre", "expected"), [("post", 1 / 0.9), ("pre", 1.0), ("pre_hat", 1.0), ("none", 1.0)])
def test_first_step_of_mvn_grad(centre, expected):
    moved, _ = single(lambda p: MVNGrad(p, lr=1.0, centre=centre, eps=0.0), [3.7])
    assert moved == pytest.approx(-expected, rel=1e-9)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e30, 1e100, 1e150])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_gradient_of_any_size_moves_mvn_grad_by_a_bounded_amount(size, sign):
    bound = 1 / (0.9 * math.sqrt(1 - 0.999))
    moved, optimizer = single(lambda p: MVNGrad(p, lr=1.0, bias_correction=False), [0.0] * 5 + [sign * size])
    assert abs(moved) <= 0.1 * bound * (1 + 1e-9)
    assert abs(moved) == pytest.approx(0.1 * bound, rel=1e-3)
    (state,) = optimizer.state.values()
    assert state["exp_avg"].abs().item() <= 0.1 * bound * (1 + 1e-9)


def test_a_spike_after_noise_moves_mvn_grad_no_further_however_large_it_is():
    noise = torch.randn(200, generator=torch.Generator().manual_seed(0)).tolist()
    at = [single(lambda p: MVNGrad(p, lr=1.0), [*noise, size])[0] for size in (0.0, 1e4, 1e8, 1e12)]
    assert abs(at[2] - at[0]) < 5
    assert at[3] == pytest.approx(at[2], rel=1e-6)


def test_gradients_without_noise_stay_finite_with_a_floor():
    p = torch.zeros(2, 1, requires_grad=True)
    optimizer = MVNGrad([p], lr=1e-3, eps_s=1e-12, impl="loop")
    p.grad = torch.tensor([[1.0], [-3.0]])
    for _ in range(5000):
        optimizer.step()
    ratio = optimizer.state[p]["exp_avg"].abs()
    # The floor of the variance is eps_s / (1 - beta2).
    assert (ratio <= torch.tensor([[1.0], [3.0]]) / math.sqrt(1e-9) * 1.01).all()
    assert torch.isfinite(p).all()


def test_a_constant_rate_in_the_momentum_changes_nothing():
    options = {"lr": 1e-2, "weight_decay": 0.1}
    same(run(LaProp(parameters(), lr_in_momentum=True, **options), 20), run(LaProp(parameters(), **options), 20))


def test_a_rate_in_the_momentum_may_start_at_zero():
    optimizer = LaProp(parameters(), lr=0.0, lr_in_momentum=True)
    same(run(optimizer, 2), parameters())
    optimizer.param_groups[0]["lr"] = 1e-2
    assert all(
        torch.isfinite(p).all() and not torch.equal(p, q) for p, q in zip(run(optimizer, 2), parameters(), strict=True)
    )


def test_vectors_of_mars_follow_the_schedule():
    options = {"lr": 1e-2, "lr_1d": 2e-3, "weight_decay_1d": 0.0}
    optimizer = MARS(parameters(shapes=[(4,)]), **options)
    optimizer.param_groups[0]["lr"] = 5e-3
    same(run(optimizer, 5), run(adamw(parameters(shapes=[(4,)]), 1e-3, (0.9, 0.95), weight_decay=0.0), 5))


def test_vectors_of_mars_stay_where_the_rate_is_zero():
    same(run(MARS(parameters(), lr=0.0), 3), parameters())


def test_a_group_says_what_mars_takes_for_a_matrix():
    def vector_state(**group):
        optimizer = MARS([{"params": parameters(shapes=[(3, 4)]), **group}])
        run(optimizer, 1)
        return "last_grad" not in next(iter(optimizer.state.values()))

    assert not vector_state()
    assert not vector_state(use_matrix=True)
    assert vector_state(use_matrix=False)


def test_a_cautious_update_leaves_entries_out_and_scales_the_rest():
    def moved(*, cautious):
        p = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        optimizer = Chain([p], [Momentum(), CautiousUpdate(cautious)], lr=1.0, betas=(0.5, 0.9))
        for gradient in ([1.0, 1.0, 1.0, 1.0], [1.0, -0.1, 1.0, 1.0]):
            p.grad = torch.tensor(gradient, dtype=torch.float64)
            optimizer.step()
        return p.detach()

    plain, cautious = moved(cautious=False), moved(cautious=True)
    torch.testing.assert_close(plain, torch.tensor([-1.25, -0.7, -1.25, -1.25], dtype=torch.float64))
    # The second step moves three of four entries, by 0.75 / (3 / 4).
    torch.testing.assert_close(cautious, torch.tensor([-1.5, -0.5, -1.5, -1.5], dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "expected"),
    [(MVNGrad, 12), (AdaBelief, 8), (LaProp, 8), (Lion, 4), (MARS, 12), (lambda p: MARS(p, variant="lion"), 8)],
)
def test_bytes_of_state_a_parameter(make, expected):
    params = parameters(dtype=torch.float32, shapes=[(30, 20)])
    optimizer = make(params)
    run(optimizer, 1)
    state = optimizer.state[params[0]]
    assert sum(t.numel() * t.element_size() for name, t in state.items() if name != "step") == expected * 600


def test_stochastic_rounding_is_right_on_average():
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([1.0 + 2**-9, -1.0 - 3 * 2**-10, 3e-39, 1e30 * (1 + 2**-10)]).unsqueeze(1).expand(4, 20000)
    rounded = round_stochastically(values, generator).float()
    torch.testing.assert_close(rounded.double().mean(1), values[:, 0].double(), rtol=2e-4, atol=0)
    assert len(rounded[0].unique()) == 2
    for value in (math.inf, -math.inf, 0.0, 1.5, -2.0):
        assert (round_stochastically(torch.full((50,), value), generator).float() == value).all()
    assert round_stochastically(torch.tensor([math.nan]), generator).isnan().all()


@pytest.mark.parametrize(("rounding", "low", "high"), [("nearest", 1.0, 1.0), ("stochastic", 1.96, 2.04)])
def test_small_steps_of_bf16_parameters(rounding, low, high):
    p = torch.ones(500, dtype=torch.bfloat16, requires_grad=True)
    optimizer = Chain([p], [Decay()], lr=1e-3, rounding=rounding)
    p.grad = torch.full((500,), -1.0, dtype=torch.bfloat16)
    for _ in range(1000):
        optimizer.step()
    assert low <= p.float().mean().item() <= high


def test_stochastic_rounding_goes_on_where_it_stopped():
    def make(params):
        return MVNGrad(params, lr=1e-2, rounding="stochastic", seed=3)

    params = parameters(dtype=torch.bfloat16)
    whole = run(make(params), 6)
    first = make(parameters(dtype=torch.bfloat16))
    run(first, 3)
    again = make([p.detach().clone().requires_grad_() for p in first.param_groups[0]["params"]])
    again.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(run(again, 3, start=3), whole, strict=True))


def stochastic_steps(seed):
    return run(MVNGrad(parameters(dtype=torch.bfloat16), lr=1e-2, rounding="stochastic", seed=seed), 20)


@pytest.mark.xdist_group("ranks")
def test_stochastic_rounding_is_the_same_on_all_ranks(pool):
    one, two = pool.run(stochastic_steps, [(5,), (5,)])
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, stochastic_steps(6), strict=True))


def test_float16_parameters_are_not_rounded_stochastically():
    with pytest.raises(ValueError, match="rounding must be 'nearest' for float16"):
        MVNGrad([torch.zeros(3, dtype=torch.float16, requires_grad=True)], rounding="stochastic")


SHARDED = {
    "mars": (MARS, {"clip": 0.1, "optimize_1d": True}),
    "cautious": (MVNGrad, {"cautious_update": True, "cautious_weight_decay": True, "weight_decay": 0.3}),
}


def sharded_steps(name):
    """Whole parameters after steps on shards: uneven ones, and a row that leaves a rank without entries."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    make, options = SHARDED[name]
    places = [[Shard(0)], [Shard(0)], [Replicate()], [Shard(1)]]
    whole = parameters(shapes=[(3, 4), (1, 6), (5,), (2, 3)])
    params = [nn.Parameter(distribute_tensor(p.detach(), mesh, q)) for p, q in zip(whole, places, strict=True)]
    optimizer = make(params, lr=1e-2, **options)
    for step in range(5):
        for p, g, q in zip(params, gradients(whole, step), places, strict=True):
            p.grad = distribute_tensor(g, mesh, q)
        optimizer.step()
    return [p.full_tensor().detach() for p in params]


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("name", SHARDED)
def test_norms_and_means_of_shards_are_those_of_the_whole(name, pool):
    make, options = SHARDED[name]
    expected = run(make(parameters(shapes=[(3, 4), (1, 6), (5,), (2, 3)]), lr=1e-2, **options), 5)
    for found in pool.run(sharded_steps, [(name,), (name,)]):
        same(found, expected, rtol=1e-12)


def test_compiled_steps_equal_the_loop_and_compile_once(monkeypatch):
    compiled = torch.compile
    calls = []

    def counting(function, **options):
        calls.append(options)
        return compiled(function, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", counting)
    found = {}
    with torch._dynamo.config.patch(error_on_recompile=True):
        for impl in ("loop", "compiled"):
            optimizer = MARS(parameters(0, torch.float32, SIZES), lr=1e-2, weight_decay=0.1, impl=impl)
            for step in range(4):
                optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
                optimizer.param_groups[0]["betas"] = (0.9 - step / 10, 0.99)
                found[impl] = run(optimizer, 1, start=step)
    same(found["compiled"], found["loop"], rtol=1e-6, atol=1e-6)
    # One for the matrices and one for the vectors.
    assert len(calls) == 2


def test_compiled_groups_keep_their_own_hyper_parameters(monkeypatch):
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled(f, **{**options, "backend": "aot_eager"}))
    found = {}
    for impl in ("loop", "compiled"):
        a, b, c = parameters(0, torch.float32, [(3, 4), (5,), (6,)])
        own = {"weight_decay": 0.5, "cautious_weight_decay": True}
        groups = [{"params": [a]}, {"params": [b], "eps_s": 1e-3, **own}, {"params": [c], "centre": "pre"}]
        found[impl] = run(MVNGrad(groups, lr=1e-2, impl=impl), 3)
    same(found["compiled"], found["loop"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
# Of torch itself, when it loads its compiler.
@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("make", ALL)
def test_steps_compiled_to_machine_code_equal_the_loop(make):
    torch._dynamo.reset()
    start = parameters(dtype=torch.float32)
    loop, fused = (run(make(parameters(dtype=torch.float32), lr=1e-2, impl=impl), 20) for impl in ("loop", "compiled"))
    for p, a, b in zip(start, loop, fused, strict=True):
        assert (a - b).abs().max() <= 1e-6 * max(1.0, p.abs().max().item())


def test_a_state_that_does_not_fit_leaves_the_optimizer_as_it_was():
    optimizer = Chain(parameters(), [SecondMoment(), Divide(), Decay()])
    run(optimizer, 2)
    before = optimizer.state_dict()
    for other in (Chain(parameters(), [Momentum(), Decay()]), MVNGrad(parameters())):
        run(other, 1)
        with pytest.raises(ValueError, match="must be"):
            optimizer.load_state_dict(other.state_dict())
    after = optimizer.state_dict()
    assert before["param_groups"] == after["param_groups"]
    assert all(torch.equal(before["state"][i][k], v) for i, s in after["state"].items() for k, v in s.items())


def test_a_gradient_that_cannot_be_used_moves_nothing():
    params = parameters(shapes=[(4, 3), (4, 3)])
    optimizer = MVNGrad([{"params": [p]} for p in params])
    run(optimizer, 1)
    before = [p.detach().clone() for p in params]
    params[0].grad, params[1].grad = torch.ones(4, 3, dtype=torch.float64), torch.eye(4, 3).double().to_sparse()
    with pytest.raises(RuntimeError, match="MVNGrad: gradients must be dense, got layout torch.sparse_coo"):
        optimizer.step()
    same(params, before, rtol=0, atol=0)
    assert [optimizer.state[p]["step"].item() for p in params] == [1.0, 1.0]


@pytest.mark.parametrize("make", [*ALL, MARS_LION])
@pytest.mark.parametrize("impl", ["loop", "foreach"])
def test_gradients_that_are_not_numbers_pass_through(make, impl):
    params = parameters()
    optimizer = make(params, impl=impl)
    params[0].grad = torch.full((5, 3), math.nan, dtype=torch.float64)
    params[1].grad = torch.ones(4, dtype=torch.float64)
    optimizer.step()
    state = torch.cat([t.flatten() for k, t in optimizer.state[params[0]].items() if k != "step"])
    assert state.isnan().all()
    assert params[0].isnan().all()
    assert torch.isfinite(params[1]).all()


def test_a_checkpoint_does_not_say_what_runs_the_step():
    saved = MVNGrad(parameters(), impl="foreach").state_dict()
    optimizer = MVNGrad(parameters(), impl="loop")
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["impl"] == "loop"


def test_fields_of_transforms_can_differ_between_groups():
    a, b = parameters(shapes=[(3, 4), (3, 4)])
    optimizer = Chain([{"params": [a]}, {"params": [b], "gamma": 0.0}], [Correct(gamma=1.0, clip=None)], lr=0.1)
    for value in (1.0, 2.0):
        for p in (a, b):
            p.grad = torch.full_like(p, value)
        optimizer.step()
    start = parameters(shapes=[(3, 4), (3, 4)])
    torch.testing.assert_close(start[1] - b, torch.full_like(b, 0.3))
    torch.testing.assert_close(start[0] - a, torch.full_like(a, 0.3 + 0.1 * 9.0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Conv1d(4, 6, 3), nn.LayerNorm(6), nn.Linear(6, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.out = nn.Linear(4, 2)
        self.frozen = nn.Parameter(torch.zeros(3, 3), requires_grad=False)

    def no_weight_decay(self):
        return {"body.2.weight"}


def names(groups):
    return [([name for name, _ in g["params"]], g["weight_decay"], g["use_matrix"]) for g in groups]


def test_groups_of_matrices_and_of_everything_else():
    rest = ["embedding.weight", "body.0.bias", "body.1.weight", "body.1.bias", "body.2.weight", "body.2.bias"]
    assert names(param_groups(Net(), weight_decay=0.1)) == [
        (["body.0.weight", "out.weight"], 0.1, True),
        ([*rest, "out.bias"], 0.0, False),
    ]
    assert names(param_groups(Net(), vector_weight_decay=0.2, head="out")) == [
        (["body.0.weight"], 0.0, True),
        ([*rest, "out.weight", "out.bias"], 0.2, False),
    ]


def test_groups_name_their_parameters_in_the_optimizer():
    optimizer = MARS(param_groups(Net(), weight_decay=0.1))
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["body.0.weight", "out.weight"]


def test_groups_read_what_losses_say_of_their_parameters():
    from trainkit.losses import ClipLoss

    model = nn.ModuleDict({"net": nn.Linear(3, 2, bias=False), "loss": ClipLoss()})
    assert names(param_groups(model)) == [(["net.weight"], 0.0, True), (["loss.log_scale"], 0.0, False)]


def test_groups_refuse_what_has_no_parameters():
    with pytest.raises(ValueError, match="head must name a module or parameter of Net, got 'tail'"):
        param_groups(Net(), head="tail")
    with pytest.raises(ValueError, match="model must have parameters that require gradients, got 'ReLU'"):
        param_groups(nn.ReLU())
