"""The collectives, the queue and the reduction over ranks, on two processes."""

import io

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainkit.distributed import (
    MemoryQueue,
    all_reduce_sum,
    exchange_sizes,
    gather_rows,
    is_distributed,
    rank,
    reduce_over_ranks,
    reduce_scatter_rows,
    total_over_ranks,
    world_size,
)
from trainkit.distributed import _ops as ops
from trainkit.losses import FocalLoss
from trainkit.testing import Pool, RankError

pytestmark = pytest.mark.xdist_group("ranks")

SPLITS = [(4, 4), (3, 5), (8, 0), (0, 8)]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def each(tensor, split):
    return [piece.clone() for piece in tensor.split(list(split))]


def gather_and_weigh(x, weights):
    """Gathered rows, sizes, and the gradient of the own weighted sum."""
    x.requires_grad_()
    (gathered,), sizes = gather_rows(x)
    (gathered * weights).sum().backward()
    return gathered.detach(), sizes, x.grad


@pytest.mark.parametrize("split", SPLITS)
def test_gather_rows_and_its_gradient(pool, split):
    x, weights = normal(8, 2, 3), normal(2, 8, 2, 3, seed=1)
    got = pool.run(gather_and_weigh, list(zip(each(x, split), weights, strict=True)))
    gradients = each(weights.sum(0), split)
    for (gathered, sizes, gradient), expected in zip(got, gradients, strict=True):
        assert torch.equal(gathered, x)
        assert sizes.tolist() == list(split)
        torch.testing.assert_close(gradient, expected)


def gather_all(*tensors):
    gathered, sizes = gather_rows(*tensors)
    return (*gathered, sizes)


@pytest.mark.parametrize("split", SPLITS)
def test_gather_rows_of_any_dtype(pool, split):
    values = normal(8, 3)
    tensors = [values > 0, (10 * values).long(), values.bfloat16(), values.half(), values.float(), values[:, 0]]
    args = list(zip(*(each(t, split) for t in tensors), strict=True))
    for *gathered, sizes in pool.run(gather_all, args):
        assert sizes.tolist() == list(split)
        for got, expected in zip(gathered, tensors, strict=True):
            assert got.dtype == expected.dtype
            assert torch.equal(got, expected)


def test_gather_rows_of_other_memory_layouts(pool):
    x = normal(8, 3)
    args = [(piece.T.contiguous().T,) for piece in each(x, (3, 5))]
    for gathered, _ in pool.run(gather_all, args):
        assert torch.equal(gathered, x)


def bf16_gradient(x, weights):
    return gather_and_weigh(x.bfloat16(), weights.bfloat16())[2]


def test_gradient_of_half_precision_rows(pool):
    x, weights = normal(8, 2), torch.ones(2, 8, 2)
    for gradient in pool.run(bf16_gradient, list(zip(each(x, (3, 5)), weights, strict=True))):
        assert gradient.dtype == torch.bfloat16
        assert torch.equal(gradient, torch.full_like(gradient, 2))


def cubes_of_all(x, weights):
    """A rank's share of a sum of cubes that every rank weighs otherwise."""
    (gathered,), _ = gather_rows(x)
    return (weights * gathered**3).sum()


def second_derivative(x, weights, direction):
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(cubes_of_all(x, weights), x, create_graph=True)
    return torch.autograd.grad((gradient * direction).sum(), x)[0]


@pytest.mark.parametrize("split", SPLITS)
def test_second_derivative_through_the_gather(pool, split):
    x, weights, direction = normal(8, 2), normal(2, 8, 2, seed=1), normal(8, 2, seed=2)
    args = list(zip(each(x, split), weights, each(direction, split), strict=True))
    got = torch.cat(pool.run(second_derivative, args))
    torch.testing.assert_close(got, 6 * weights.sum(0) * x * direction)


def both_inner_products(x, y):
    """This rank's terms of <Gx, y> and <x, G*y>."""
    (gathered,), sizes = gather_rows(x)
    return (gathered * y).sum(), (x * reduce_scatter_rows(y, sizes)).sum()


@pytest.mark.parametrize("split", SPLITS)
def test_reduce_scatter_is_the_adjoint_of_gather(pool, split):
    x, y = normal(8, 2), normal(2, 8, 2, seed=1)
    got = pool.run(both_inner_products, list(zip(each(x, split), y, strict=True)))
    left, right = (sum(terms) for terms in zip(*got, strict=True))
    torch.testing.assert_close(left, right)


def reduce_scatter_gradient(y, sizes, weights):
    y.requires_grad_()
    own = reduce_scatter_rows(y, sizes)
    (own * weights).sum().backward()
    return own.detach(), y.grad


@pytest.mark.parametrize("split", SPLITS)
def test_reduce_scatter_rows_and_its_gradient(pool, split):
    y, weights = normal(2, 8, 2), normal(8, 2, seed=1)
    args = [(y[r], torch.tensor(split), w) for r, w in enumerate(each(weights, split))]
    got = pool.run(reduce_scatter_gradient, args)
    torch.testing.assert_close(torch.cat([own for own, _ in got]), y.sum(0))
    for _, gradient in got:
        torch.testing.assert_close(gradient, weights)


def all_reduce_gradient(x, weights):
    x.requires_grad_()
    total = all_reduce_sum(x)
    (total * weights).sum().backward()
    return total.detach(), x.grad


def test_all_reduce_sum_and_its_gradient(pool):
    x, weights = normal(2, 3), normal(2, 3, seed=1)
    for total, gradient in pool.run(all_reduce_gradient, list(zip(x, weights, strict=True))):
        torch.testing.assert_close(total, x.sum(0))
        torch.testing.assert_close(gradient, weights.sum(0))


def total(value):
    return total_over_ranks(value, call="test")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_total_over_ranks_is_the_same_on_every_rank(pool, dtype):
    values = torch.tensor([1e16, 3.3]) if dtype == torch.float64 else torch.tensor([7, 3])
    first, second = pool.run(total, [(v,) for v in values.to(dtype)])
    assert first.dtype == dtype
    assert torch.equal(first, second)
    assert torch.equal(first, values.double().sum().to(dtype))


def test_total_over_ranks_carries_nan_and_infinity(pool):
    for total_here in pool.run(total, [(torch.tensor(float("inf")),), (torch.tensor(1.0),)]):
        assert total_here == float("inf")
    for total_here in pool.run(total, [(torch.tensor(float("nan")),), (torch.tensor(1.0),)]):
        assert total_here.isnan()


def call_gather(call, *tensors):
    return gather_rows(*tensors, call=call)


def call_all_reduce(call, tensor):
    return all_reduce_sum(tensor, call=call)


def call_total(call, tensor):
    return total_over_ranks(tensor.sum(), call=call)


def call_enqueue(embeddings, labels):
    MemoryQueue(4, 2).enqueue(embeddings, labels)


def call_first(name, *args):
    """Ranks may come from different functions of this module."""
    return globals()[name](*args)


ROWS = torch.zeros(3, 2)
DISAGREEMENTS = {
    "other class": (
        [("call_gather", "FocalLoss", ROWS), ("call_gather", "InfoNCELoss", ROWS)],
        ["FocalLoss", "InfoNCELoss"],
    ),
    "other trailing shape": (
        [("call_gather", "A", ROWS), ("call_gather", "A", torch.zeros(3, 5))],
        ["(*, 2)", "(*, 5)"],
    ),
    "other dtype": (
        [("call_gather", "A", ROWS), ("call_gather", "A", ROWS.double())],
        ["float32", "float64"],
    ),
    "other number of dimensions": (
        [("call_gather", "A", ROWS), ("call_gather", "A", torch.zeros(3, 2, 2))],
        ["(*, 2)", "(*, 2, 2)"],
    ),
    "labels on one rank only": (
        [("call_enqueue", ROWS, torch.zeros(3, dtype=torch.int64)), ("call_enqueue", ROWS, None)],
        ["float32, (*, ) torch.int64", "rank 1: MemoryQueue.enqueue with (*, 2) torch.float32"],
    ),
    "other collective": (
        [("call_gather", "A", ROWS), ("call_all_reduce", "B", ROWS)],
        ["rank 0: A", "rank 1: B"],
    ),
    "sum of another shape": (
        [("call_all_reduce", "A", ROWS), ("call_all_reduce", "A", ROWS[:2])],
        ["(3, 2)", "(2, 2)"],
    ),
    "total against gather": (
        [("call_total", "A", ROWS), ("call_gather", "A", ROWS)],
        ["rank 0: A with one number", "rank 1: A with (*, 2)"],
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree_all_raise(pool, name):
    args, named = DISAGREEMENTS[name]
    pool.start()
    before = pool.process_ids
    with pytest.raises(RankError) as caught:
        pool.run(call_first, args)
    assert set(caught.value.errors) == {0, 1}
    for text in caught.value.errors.values():
        assert text.startswith("RuntimeError: trainkit.distributed: the ranks must make the same call")
        assert all(part in text for part in named), text
    for gathered, _ in pool.run(gather_all, [(ROWS,), (ROWS,)]):
        assert len(gathered) == 6
    assert pool.process_ids == before


def come_or_not(comes):
    return gather_rows(ROWS) if comes else None


def test_rank_that_never_comes_makes_the_other_raise():
    with Pool(2, seconds=6) as own:
        with pytest.raises(RankError) as caught:
            own.run(come_or_not, [(True,), (False,)])
        assert list(caught.value.errors) == [0]
        assert "RuntimeError" in caught.value.errors[0]
        assert len(own.run(come_or_not, [(True,), (True,)])) == 2


class Logistic(nn.Module):
    """Every own row against the gathered rows, reduced as losses are."""

    def forward(self, x, weights):
        (keys,), _ = gather_rows(x)
        rows = weights * (x @ keys.T).logsumexp(1)
        return reduce_over_ranks(rows, weights, "mean", call="Logistic")


def value_and_gradient(x, weights, compiled):
    torch._dynamo.reset()
    module = Logistic()
    run = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    found = []
    for rows in (x, x[1:], x):
        leaf = rows.clone().requires_grad_()
        value = run(leaf, weights[: len(rows)])
        value.backward()
        found += [value.detach(), leaf.grad]
    return found


@pytest.mark.parametrize("split", [(3, 5), (1, 7), (8, 0)])
def test_one_graph_through_gather_and_reduction(pool, split):
    x, weights = normal(8, 2), normal(8, seed=1).abs()
    pieces = list(zip(each(x, split), each(weights, split), strict=True))
    eager, compiled = (pool.run(value_and_gradient, [(*p, c) for p in pieces]) for c in (False, True))
    torch.testing.assert_close(compiled, eager)
    leaf = x.clone().requires_grad_()
    whole = Logistic()(leaf, weights)
    whole.backward()
    torch.testing.assert_close(torch.stack([e[0] for e in eager]).mean(), whole.detach())
    torch.testing.assert_close(torch.cat([e[1] for e in eager]), 2 * leaf.grad)


def check_operators(x, sizes):
    x.requires_grad_()
    whole = normal(int(sizes.sum()), 2).requires_grad_()
    own = int(sizes[rank()])
    torch.library.opcheck(ops.exchange_sizes_op, ([x.detach()], "test", ""))
    torch.library.opcheck(ops.gather_rows_op, (x, sizes, ""))
    torch.library.opcheck(ops.reduce_scatter_rows_op, (whole, sizes, own, ""))
    torch.library.opcheck(ops.all_reduce_sum_op, (whole, "test", ""))
    torch.library.opcheck(ops.total_op, (whole.detach().sum(), "test", ""))


def test_operators_are_well_formed(pool):
    pool.run(check_operators, [(piece, torch.tensor([3, 5])) for piece in each(normal(8, 2), (3, 5))])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def gradients_under_ddp(x, target):
    model = nn.parallel.DistributedDataParallel(network())
    FocalLoss(gamma=1.5)(model(x), target).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("split", [(3, 5), (8, 0)])
def test_ddp_gives_the_gradients_of_one_process(pool, split):
    x, target = normal(8, 4), torch.tensor([0, -100, 2, 1, -100, -100, 2, 0])
    model = network()
    FocalLoss(gamma=1.5)(model(x), target).backward()
    args = list(zip(each(x, split), each(target, split), strict=True))
    for gradients in pool.run(gradients_under_ddp, args):
        for got, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, rtol=1e-12, atol=1e-12)


def fill_queue(batches, stop):
    """Enqueue, and after ``stop`` batches go on with a queue that was loaded from a file."""
    queue = MemoryQueue(7, 1)
    for step, (rows, labels) in enumerate(batches):
        if step == stop:
            file = io.BytesIO()
            torch.save(queue.state_dict(), file)
            file.seek(0)
            queue = MemoryQueue(7, 1)
            queue.load_state_dict(torch.load(file, weights_only=True))
        queue.enqueue(rows, labels)
    return queue.features, queue.feature_labels, len(queue)


@pytest.mark.parametrize("stop", [None, 1, 2])
@pytest.mark.parametrize("split", [(2, 2), (1, 3), (4, 0)])
def test_queue_is_the_same_on_every_rank(pool, split, stop):
    rows = torch.arange(12.0).view(12, 1)
    labels = torch.arange(12)
    pieces = [(each(rows[i : i + 4], split), each(labels[i : i + 4], split)) for i in (0, 4, 8)]
    args = [([(r[k], n[k]) for r, n in pieces], stop) for k in range(2)]
    for features, feature_labels, held in pool.run(fill_queue, args):
        assert features.flatten().tolist() == list(range(5, 12))
        assert feature_labels.tolist() == list(range(5, 12))
        assert held == 7


def test_queue_on_one_process():
    queue = MemoryQueue(3, 2)
    assert queue.features.shape == (0, 2)
    queue.enqueue(torch.zeros(0, 2))
    assert len(queue) == 0
    queue.enqueue(torch.arange(10.0).view(5, 2), torch.arange(5))
    assert queue.feature_labels.tolist() == [2, 3, 4]
    queue.enqueue(torch.ones(1, 2, dtype=torch.float64))
    assert queue.feature_labels.tolist() == [3, 4, -100]
    assert queue.features.dtype == torch.float32


def test_enqueue_between_forward_and_backward():
    queue = MemoryQueue(4, 2)
    queue.enqueue(torch.ones(4, 2))
    query = torch.ones(1, 2, requires_grad=True)
    value = (query @ queue.features.T).exp().sum()
    queue.enqueue(torch.zeros(4, 2))
    value.backward()
    torch.testing.assert_close(query.grad, torch.full((1, 2), 4 * torch.e**2))


def test_one_process_is_the_world_of_one():
    x = normal(3, 2).requires_grad_()
    assert (rank(), world_size(), is_distributed()) == (0, 1, False)
    (same,), sizes = gather_rows(x)
    assert same is x
    assert sizes.tolist() == exchange_sizes(x).tolist() == [3]
    assert reduce_scatter_rows(x, sizes) is x
    assert all_reduce_sum(x) is x
    number = total_over_ranks(x.sum(), call="test")
    assert number == x.sum()
    assert not number.requires_grad


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reduction_on_one_process(reduction):
    rows, weights = normal(4), torch.tensor([1.0, 0.0, 2.0, 1.0])
    expected = {"mean": rows.sum() / 4, "sum": rows.sum(), "none": rows}[reduction]
    torch.testing.assert_close(reduce_over_ranks(rows, weights, reduction, call="test"), expected)


def reduce_here(rows, weights, sync):
    return reduce_over_ranks(rows, weights, "mean", call="test", sync=sync)


def test_reduction_without_sync_is_local(pool):
    rows, weights = normal(8), torch.ones(8)
    args = [(r, w, False) for r, w in zip(each(rows, (3, 5)), each(weights, (3, 5)), strict=True)]
    torch.testing.assert_close(pool.run(reduce_here, args), [rows[:3].mean(), rows[3:].mean()])


def gather_in_a_group(x):
    group = dist.new_group([0, 1])
    (gathered,), _ = gather_rows(x, group=group)
    return gathered, rank(group), world_size(group), all_reduce_sum(torch.ones(()), group=group)


def test_a_group_of_ones_own(pool):
    x = normal(8, 2)
    for place, (gathered, own, ranks, ones) in enumerate(pool.run(gather_in_a_group, [(p,) for p in each(x, (3, 5))])):
        assert torch.equal(gathered, x)
        assert (own, ranks, int(ones)) == (place, 2, 2)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: gather_rows(torch.zeros(3), torch.zeros(2)), "tensors must have the same number of rows"),
        (lambda: gather_rows(torch.zeros(())), "tensors must have the same number of rows"),
        (lambda: gather_rows(), "tensors must hold at least one tensor"),
        (lambda: reduce_scatter_rows(torch.zeros(3, 2), torch.tensor([4])), "tensor must have 4 rows"),
    ],
)
def test_bad_calls(call, match):
    with pytest.raises(ValueError, match=match):
        call()
