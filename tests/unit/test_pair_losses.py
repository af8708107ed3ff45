"""Losses on pairs of embeddings: what no property covers."""

import math

import pytest
import torch
import torch.nn.functional as F

from trainkit._core.pairs.base import Pairs
from trainkit._core.pairs.global_pairs import global_pair_sum
from trainkit._core.pairs.sides import Direct, Logistic
from trainkit._core.pairs.view import Hidden
from trainkit._core.score_pairs import pair_surrogate_sum
from trainkit.distributed import MemoryQueue
from trainkit.losses import (
    ClipLoss,
    InfoNCELoss,
    MannWhitneyLoss,
    NTXentLoss,
    SigLIPLoss,
    clip_loss,
    info_nce_loss,
    mann_whitney_loss,
    nt_xent_loss,
    sig_lip_loss,
)
from trainkit.metrics import pair_auroc

LARGE = 1100
"""Rows beyond which losses take the blocked forms by themselves."""

PER_QUERY = {"pairing": "per_query"}
FORMS = [None, 3, (1, 1), (3, 5)]
ALL = [
    InfoNCELoss,
    lambda **k: ClipLoss(learnable=False, **k),
    NTXentLoss,
    lambda **k: SigLIPLoss(learnable=False, **k),
    MannWhitneyLoss,
    lambda **k: MannWhitneyLoss(**PER_QUERY, **k),
]
ids = pytest.mark.parametrize(
    "make", ALL, ids=["info_nce", "clip", "nt_xent", "sig_lip", "mann_whitney", "mann_whitney_per_query"]
)


def towers(n, d=8, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(2)]


def run(loss, query, key, **inputs):
    value = loss(query, key, **inputs)
    return value.detach(), torch.autograd.grad(value.sum(), [query, key])


def close(got, expected, rtol=1e-9):
    torch.testing.assert_close(got[0], expected[0], rtol=rtol, atol=rtol, check_dtype=False)
    for a, b in zip(got[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.abs().max()), check_dtype=False)


def by_hand(query, key):
    """Each loss at its default temperature, from the score matrix."""
    q, k = F.normalize(query, dim=1), F.normalize(key, dim=1)
    n = len(q)
    own = torch.arange(n)
    eye = torch.eye(n, dtype=torch.bool)
    scores = q @ k.T
    yield F.cross_entropy(scores / 0.07, own)
    yield (F.cross_entropy(scores / 0.07, own) + F.cross_entropy(scores.T / 0.07, own)) / 2
    z = torch.cat([q, k])
    views = (z @ z.T / 0.5).masked_fill(torch.eye(2 * n, dtype=torch.bool), -math.inf)
    yield F.cross_entropy(views, torch.cat([own + n, own]))
    signs = torch.where(eye, -1.0, 1.0)
    yield -F.logsigmoid(-signs * (scores / 0.1 - 10)).sum() / n
    gaps = scores / 0.05
    negative = gaps[~eye]
    yield pair_surrogate_sum(gaps.diagonal(), negative, surrogate="logistic") / n / negative.numel()
    lead = gaps - gaps.diagonal().unsqueeze(1)
    yield -F.logsigmoid(-lead).masked_fill(eye, 0).sum() / negative.numel()


def test_large_batches_take_blocks_and_give_the_plain_values():
    query, key = towers(LARGE)
    for make, expected in zip(ALL, by_hand(query, key), strict=True):
        plain = expected.detach(), torch.autograd.grad(expected, [query, key], retain_graph=True)
        # The sum over all pairs is itself good to seven digits.
        close(run(make(), query, key), plain, rtol=2e-7)


@ids
def test_single_precision_blocks_are_as_good_as_plain(make):
    exact = run(make(), *towers(300))
    for block in (None, 64, (64, 100)):
        close(run(make(block_size=block), *towers(300, dtype=torch.float32)), exact, rtol=3e-5)


@ids
def test_a_product_in_bf16_is_good_to_two_digits(make):
    query, key = towers(256, 64, dtype=torch.bfloat16)
    exact = run(make(), query.detach().double().requires_grad_(), key.detach().double().requires_grad_())
    for block in (None, 64, (64, 100)):
        value, gradients = run(make(matmul="input", block_size=block), query, key)
        assert value.dtype == torch.float32
        # bf16 rounds a score and both of its factors by 2^-9 each, together 0.6 % of a score.
        torch.testing.assert_close(value.double(), exact[0], rtol=1e-2, atol=0)
        for gradient, expected in zip(gradients, exact[1], strict=True):
            assert gradient.dtype == torch.bfloat16
            assert (gradient.double() - expected).norm() / expected.norm() < 3e-2


@ids
@pytest.mark.parametrize("block", FORMS)
def test_degenerate_batches(make, block):
    loss = make(block_size=block)
    empty = towers(0)
    value, gradients = run(loss, *empty)
    assert value.item() == 0.0
    assert all(g.shape == (0, 8) for g in gradients)
    value, gradients = run(loss, *towers(1))
    if not isinstance(loss, SigLIPLoss):
        assert value.item() == 0.0
        assert not any(g.any() for g in gradients)
    query, key = towers(4)
    with torch.no_grad():
        query[0] = 0
    value, gradients = run(loss, query, key)
    assert value.isfinite()
    assert all(g.isfinite().all() for g in gradients)
    with torch.no_grad():
        query[0] = math.nan
    value, gradients = run(loss, query, key)
    assert value.isnan()
    assert gradients[1].isnan().any()


@pytest.mark.parametrize("block", FORMS)
def test_equal_embeddings_cost_the_logarithm_of_the_candidates(block):
    x = torch.ones(6, 4, dtype=torch.float64)
    assert InfoNCELoss(block_size=block)(x, x).item() == pytest.approx(math.log(6), rel=1e-12)
    assert ClipLoss(block_size=block)(x, x).item() == pytest.approx(math.log(6), rel=1e-12)
    assert NTXentLoss(block_size=block)(x, x).item() == pytest.approx(math.log(11), rel=1e-12)
    assert MannWhitneyLoss(block_size=block)(x, x).item() == pytest.approx(math.log(2), rel=1e-9)


@pytest.mark.parametrize("block", FORMS)
@pytest.mark.parametrize("same_id", ["positive", "exclude"])
def test_excluded_pairs_are_no_candidates_and_positives_stay(block, same_id):
    query, key = towers(7)
    exclude = torch.rand(7, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    exclude.fill_diagonal_(True)
    loss = InfoNCELoss(0.5, block_size=block, same_id=same_id)
    scores = F.normalize(query, dim=1) @ F.normalize(key, dim=1).T / 0.5
    hidden = exclude & ~torch.eye(7, dtype=torch.bool)
    value = F.cross_entropy(scores.masked_fill(hidden, -math.inf), torch.arange(7))
    close(run(loss, query, key, exclude=exclude), (value.detach(), torch.autograd.grad(value, [query, key])))
    everything = torch.ones(7, 7, dtype=torch.bool)
    assert loss(query, key, exclude=everything).item() == 0.0


@pytest.mark.parametrize("block", FORMS)
def test_mutual_positives_share_the_target(block):
    query, key = towers(6)
    names = torch.tensor([0, 0, 1, 2, 2, 2])
    scores = F.normalize(query, dim=1) @ F.normalize(key, dim=1).T / 0.2
    target = (names.unsqueeze(1) == names).double()
    value = F.cross_entropy(scores, target / target.sum(1, keepdim=True))
    got = run(InfoNCELoss(0.2, block_size=block), query, key, ids=names)
    close(got, (value.detach(), torch.autograd.grad(value, [query, key])))


@pytest.mark.parametrize("block", FORMS)
def test_excluded_positives_of_the_same_id_stay(block):
    query, key = towers(6)
    names = torch.tensor([0, 0, 1, 2, 2, 2])
    everything = torch.ones(6, 6, dtype=torch.bool)
    loss = InfoNCELoss(0.2, block_size=block)
    scores = F.normalize(query, dim=1) @ F.normalize(key, dim=1).T / 0.2
    same = names.unsqueeze(1) == names
    rows = scores.masked_fill(~same, -math.inf).logsumexp(1) - (scores * same).sum(1) / same.sum(1)
    assert loss(query, key, ids=names, exclude=everything).item() == pytest.approx(rows.mean().item(), rel=1e-10)


@pytest.mark.parametrize("block", FORMS[1:])
def test_a_value_near_zero_keeps_its_digits_in_blocks(block):
    x = torch.eye(4, dtype=torch.float64)
    value = InfoNCELoss(0.025, block_size=block)(x, x).item()
    assert value == pytest.approx(3 * math.exp(-40), rel=1e-12)


@pytest.mark.parametrize("block", [3, (3, 3)])
@ids
def test_a_second_derivative_of_blocks_raises(make, block):
    query, key = towers(6)
    (gradient,) = torch.autograd.grad(make(block_size=block)(query, key), query, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.square().sum().backward()


def test_blocks_save_no_matrix():
    n, d = 1024, 16
    query, key = towers(n, d, dtype=torch.float32)
    for make in ALL:
        saved = {}

        def keep(tensor, saved=saved):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            make(block_size=64)(query, key)
        assert sum(saved.values()) < 20 * n * (d + 4) * 4 < n * n * 4


def test_the_learned_scale_is_capped_and_named():
    loss = InfoNCELoss(0.02, learnable=True)
    query, key = towers(5)
    with torch.no_grad():
        loss.log_scale.fill_(math.log(100) + 1)
    value = loss(query, key)
    value.backward()
    assert value.item() == pytest.approx(info_nce_loss(query, key, temperature=0.01).item(), rel=1e-6)
    assert loss.log_scale.grad.item() == 0.0
    assert loss.no_weight_decay() == {"log_scale"}
    assert SigLIPLoss().no_weight_decay() == {"log_scale", "logit_bias"}
    assert InfoNCELoss().no_weight_decay() == set()


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("pairing", ["global", "per_query"])
def test_the_loss_bounds_one_minus_the_area(scale, pairing):
    for seed in range(5):
        query, key = towers(40, 6, seed)
        loss = MannWhitneyLoss(1.0, pairing, normalize=False)(scale * query, key)
        scores = (scale * query @ key.T).detach()
        target = torch.eye(40, dtype=torch.int64)
        index = torch.arange(40).repeat_interleave(40)
        area = pair_auroc(
            scores.flatten(), target.flatten(), index=index if pairing == "per_query" else None, pairing=pairing
        )
        assert loss.item() / math.log(2) >= 1 - float(area) - 1e-12


def brute(scores, positive, weight):
    return sum(w * (-F.logsigmoid(p - scores)).sum() for p, w in zip(positive, weight, strict=True))


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0, 2e3, 1e6])
@pytest.mark.parametrize("shift", [0.0, 100.0, -100.0])
def test_all_positives_against_all_negatives_by_a_table(spread, shift):
    query, key = towers(40, 5)
    positive = (
        spread * torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ).requires_grad_()
    weight = torch.rand(60, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scale, bias = torch.tensor([spread, shift], dtype=torch.float64).unbind()
    scale.requires_grad_()
    hidden = Hidden.of(torch.arange(40).unsqueeze(1))
    pairs = Pairs(query, key, scale, bias, positive, torch.empty(0, dtype=torch.int64))
    total = global_pair_sum(pairs, weight, hidden, kind=0, margin=0.0, block=(16, 16))
    scores = scale * query @ key.T + bias
    expected = brute(scores[~torch.eye(40, dtype=torch.bool)], positive, weight)
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9)
    wanted = [query, key, scale, positive]
    for a, b in zip(torch.autograd.grad(total, wanted), torch.autograd.grad(expected, wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * float(b.abs().max()) + 1e-15)


def test_the_table_is_as_exact_as_its_terms():
    g = torch.Generator().manual_seed(0)
    positive = 3 * torch.randn(200, generator=g, dtype=torch.float64)
    scores = 6 * torch.randn(500, generator=g, dtype=torch.float64)
    weight = torch.ones(200, dtype=torch.float64)
    exact = Direct(positive, weight)
    exact.add(scores)
    for terms, rtol in ((3, 1e-7), (4, 1e-9)):
        table = Logistic(positive, weight, terms)
        places = scores * table.factor
        table.place(places)
        table.add(places.clone())
        torch.testing.assert_close(table.total(), exact.total(), rtol=rtol, atol=0)
        torch.testing.assert_close(table.positive_slopes(), exact.positive_slopes(), rtol=rtol, atol=0)
        slopes, expected = torch.empty_like(scores), torch.empty_like(scores)
        table.slopes(places, slopes)
        exact.slopes(scores, expected)
        torch.testing.assert_close(slopes, expected, rtol=rtol, atol=0)


def with_queue(query, key, memory):
    """A rank's value and gradients against negatives that every rank holds alike."""
    query.requires_grad_()
    key.requires_grad_()
    loss = InfoNCELoss(0.3, candidates="both", gather_negatives=False)
    value = loss(query, key, negatives=memory)
    value.backward()
    return value.detach(), query.grad, key.grad


@pytest.mark.xdist_group("ranks")
def test_a_queue_counts_once_on_any_number_of_ranks(pool):
    queue = MemoryQueue(5, 8)
    queue.enqueue(torch.randn(5, 8, generator=torch.Generator().manual_seed(7)))
    memory = queue.features.double()
    query, key = towers(8)
    whole = with_queue(query.detach().clone(), key.detach().clone(), memory)
    pieces = zip(query.detach().split([3, 5]), key.detach().split([3, 5]), strict=True)
    got = pool.run(with_queue, [(q.clone(), k.clone(), memory) for q, k in pieces])
    torch.testing.assert_close(sum(g[0] for g in got) / 2, whole[0], rtol=1e-12, atol=0)
    for i in (1, 2):
        torch.testing.assert_close(torch.cat([g[i] for g in got]) / 2, whole[i], rtol=1e-10, atol=1e-14)


def compiled_and_eager(name, block, query, key):
    """Differences between the compiled and the eager loss on this rank."""
    loss = {"info_nce": InfoNCELoss, "clip": ClipLoss, "mann_whitney": MannWhitneyLoss}[name](block_size=block)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        q, k = query.clone().requires_grad_(), key.clone().requires_grad_()
        value = function(q, k)
        value.backward()
        results.append((value.detach(), q.grad, k.grad))
    return [float((a - b).abs().max()) for a, b in zip(*results, strict=True)]


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("block", [3, None])
@pytest.mark.parametrize("name", ["info_nce", "mann_whitney"])
def test_losses_compile_on_ranks(name, block, pool):
    query, key = (t.detach() for t in towers(8))
    args = [(name, block, q, k) for q, k in zip(query.split([3, 5]), key.split([3, 5]), strict=True)]
    for differences in pool.run(compiled_and_eager, args):
        assert max(differences) < 1e-10


@pytest.mark.parametrize("function", [info_nce_loss, clip_loss, nt_xent_loss, sig_lip_loss, mann_whitney_loss])
@pytest.mark.parametrize(("name", "value"), [("normalize", "no"), ("temperature", 0.0), ("matmul", "bf16")])
def test_functions_check_the_options_that_all_share(function, name, value):
    with pytest.raises((TypeError, ValueError), match=f"^{function.__name__}: {name} must"):
        function(torch.eye(3), torch.eye(3), **{name: value})
