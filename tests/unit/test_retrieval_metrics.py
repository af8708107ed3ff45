"""Behaviours of the ranking and retrieval metrics that no property covers."""

import copy
import math
import warnings
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics import MetricCollection

from tests.specs.metrics import area, cosine, recall_reference, reciprocal_reference
from trainkit._core.metric import StreamingMetric
from trainkit._core.svg import to_svg
from trainkit.metrics import (
    BinnedPairAUROC,
    EmbeddingMargin,
    MeanReciprocalRank,
    PairAUROC,
    RecallAtK,
    binned_pair_auroc,
    embedding_margin,
    mean_reciprocal_rank,
    pair_auroc,
    recall_at_k,
)
from trainkit.metrics._retrieval import BLOCK
from trainkit.testing import as_tensor


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(as_tensor(got).double(), as_tensor(expected).double(), rtol=rtol, atol=1e-14)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pairs(n, d=8, seed=0, dtype=torch.float32):
    """Queries and keys that are related, but not so closely that every rank is one."""
    g = generator(seed)
    query = torch.randn(n, d, generator=g)
    return query.to(dtype), (query + torch.randn(n, d, generator=g)).to(dtype)


# AUROC


def test_large_scores_are_not_squeezed_through_a_sigmoid():
    assert pair_auroc(torch.tensor([20.0, 30.0, 25.0]), torch.tensor([0, 1, 0])) == 1
    assert binned_pair_auroc(torch.tensor([20.0, 30.0, 25.0]), torch.tensor([0, 1, 0]), low=0.0, high=40.0) == 1


@pytest.mark.parametrize("function", [pair_auroc, binned_pair_auroc])
def test_ties_count_one_half(function):
    target = torch.tensor([1, 0, 1, 0])
    assert function(torch.full((4,), 0.3), target) == 0.5
    assert function(torch.tensor([0.5, 0.5, 0.5, 0.1]), target) == 0.75
    assert function(torch.tensor([0.0, -0.0, -0.0, 0.0]), target) == 0.5


@pytest.mark.parametrize("target", [torch.tensor([0, 1, 0]), torch.tensor([False, True, False]), torch.eye(3)[1]])
@pytest.mark.parametrize("function", [pair_auroc, binned_pair_auroc])
def test_targets_of_any_dtype(function, target):
    assert function(torch.tensor([0.2, 0.3, 0.25]), target) == 1


def test_scores_of_any_shape():
    scores = torch.randn(4, 5, generator=generator())
    target = torch.eye(4, 5)
    close(pair_auroc(scores, target), area(scores.flatten().tolist(), target.flatten().tolist()))


QUERIES = {
    "scores": torch.tensor([0.1, 0.9, 0.5, 0.4, 0.3, 0.2]),
    "target": torch.tensor([0, 1, 1, 1, 0, 0]),
    "index": torch.tensor([7, 7, -2, -2, 3, 3]),
}


@pytest.mark.parametrize(("action", "expected"), [("skip", 1.0), ("neg", 1 / 3), ("pos", 1.0)])
def test_queries_that_lack_a_class(action, expected):
    close(pair_auroc(**QUERIES, pairing="per_query", empty_target_action=action), expected)


def test_queries_that_lack_a_class_can_be_an_error():
    metric = PairAUROC(pairing="per_query", empty_target_action="error")
    metric.update(**QUERIES)
    with pytest.raises(ValueError, match="PairAUROC: 2 of 3 queries lack positive or negative pairs"):
        metric.compute()


@pytest.mark.parametrize(("action", "expected"), [("neg", 0.0), ("pos", 1.0)])
def test_a_global_set_that_lacks_a_class_is_one_such_query(action, expected):
    assert pair_auroc(torch.rand(3), torch.ones(3), empty_target_action=action) == expected


@pytest.mark.parametrize(
    ("metric", "batch"),
    [
        (PairAUROC(), (torch.rand(3), torch.ones(3))),
        (BinnedPairAUROC(), (torch.rand(3), torch.zeros(3))),
        (RecallAtK(), (torch.ones(0, 2), torch.ones(0, 2))),
        (EmbeddingMargin(), (torch.ones(1, 2), torch.ones(1, 2))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_value_is_nan_with_one_warning(metric, batch):
    metric.update(*batch)
    with pytest.warns(UserWarning, match=f"{type(metric).__name__}: the .* nan") as heard:
        value = metric.compute()
    assert len(heard) == 1
    assert all(v.isnan() for v in (value.values() if isinstance(value, dict) else [value]))


def test_counts_whose_products_int64_does_not_hold():
    positives, negatives = [0, 3_000_000_019, 5, 2_000_000_011, 7], [11, 4_000_000_007, 4_000_000_009, 3, 1]
    metric = BinnedPairAUROC(n_bins=3)
    metric.update(torch.zeros(1), torch.ones(1))
    metric.positives, metric.negatives = torch.tensor(positives), torch.tensor(negatives)
    wins = sum(p * (sum(negatives[:b]) + Fraction(negatives[b], 2)) for b, p in enumerate(positives))
    assert sum(positives) * sum(negatives) > 2**63
    close(metric.compute(), float(wins / (sum(positives) * sum(negatives))), rtol=1e-14)


@pytest.mark.parametrize("n_bins", [4, 64, 4096])
def test_error_of_the_histogram_is_within_its_bound(n_bins):
    g = generator()
    scores, target = 2 * torch.rand(3000, generator=g).double() - 1, torch.randint(2, (3000,), generator=g)
    metric = BinnedPairAUROC(n_bins)
    metric.update(scores, target)
    p, n = metric.positives.double(), metric.negatives.double()
    bound = (p * n).sum() / (2 * p.sum() * n.sum())
    assert (metric.compute() - pair_auroc(scores, target)).abs() <= bound
    assert bound <= 1 / n_bins


def test_scores_out_of_range_keep_their_order_and_the_bounds_are_inside():
    metric = BinnedPairAUROC(n_bins=2)
    metric.update(torch.tensor([-5.0, -1.0, 1.0, 5.0, 7.0]), torch.tensor([0, 0, 1, 1, 1]))
    assert metric.positives.tolist() == [0, 0, 1, 2]
    assert metric.negatives.tolist() == [1, 1, 0, 0]
    assert metric.compute() == 1


def test_the_binned_metric_says_that_it_is_not_exact():
    assert not BinnedPairAUROC.exact
    assert "exact=False" in repr(BinnedPairAUROC())


def test_index_is_taken_from_any_batch_and_left_alone_when_not_needed():
    close(pair_auroc(**QUERIES), pair_auroc(QUERIES["scores"], QUERIES["target"]))
    metric = PairAUROC(pairing="per_query")
    for row in torch.randperm(6, generator=generator()).tolist():
        metric.update(**{k: v[row : row + 1] for k, v in QUERIES.items()})
    close(metric.compute(), pair_auroc(**QUERIES, pairing="per_query"))


def roc(figure):
    """The drawn curve, and the area under it."""
    curve = figure.axes[1].marks[0]
    x, y = (torch.tensor(v, dtype=torch.float64) for v in (curve.x, curve.y))
    return x, y, torch.trapezoid(y, x)


def masses(figure):
    """Area of the bars of negative and of positive pairs."""
    return [
        sum(h * (b - a) for a, b, h in zip(bars.left, bars.right, bars.height, strict=True))
        for bars in figure.axes[0].marks
    ]


@pytest.mark.parametrize("metric", [PairAUROC(), BinnedPairAUROC(n_bins=16), BinnedPairAUROC(n_bins=150, low=-0.5)])
def test_the_drawn_curve_has_the_area_that_is_computed(metric):
    g = generator()
    scores, target = (8 * torch.rand(160, generator=g)).round() / 4 - 1, torch.rand(160, generator=g) < 0.3
    metric.update(scores, target)
    figure = metric.figure(title="pairs")
    x, y, area_drawn = roc(figure)
    close(area_drawn, metric.compute())
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert (x.diff() >= 0).all()
    assert (y.diff() >= 0).all()
    assert figure.title == "pairs"
    assert figure.axes[1].title == f"ROC curve (AUROC {float(metric.compute()):.4f})"
    names = [f"{int((~target).sum())} negative pairs", f"{int(target.sum())} positive pairs"]
    assert [bars.label for bars in figure.axes[0].marks] == names


@pytest.mark.parametrize("separation", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("make", [PairAUROC, BinnedPairAUROC])
def test_many_thresholds_are_thinned_along_the_curve(make, separation):
    metric, g = make(), generator()
    target = (torch.rand(20_000, generator=g) < 0.02).long()
    metric.update((torch.randn(20_000, generator=g) * 0.2 + separation * target - 0.5).double(), target)
    x, _, area_drawn = roc(metric.figure())
    assert 50 <= len(x) <= 203 or separation == 2
    assert (area_drawn - metric.compute()).abs() < 3e-4


def test_bars_are_densities_over_the_range_that_holds_scores():
    scores, target = torch.tensor([-0.5, 0.0, 0.25, 0.5, 7.0]), torch.tensor([0, 0, 1, 0, 1])
    exact, binned = PairAUROC(), BinnedPairAUROC(n_bins=8)
    for metric in (exact, binned):
        metric.update(scores, target)
    close(torch.tensor(masses(exact.figure())), torch.ones(2))
    close(torch.tensor(masses(binned.figure())), torch.tensor([1.0, 0.5]))
    negatives, positives = binned.figure().axes[0].marks
    assert (negatives.left[0], negatives.right[-1]) == (-0.5, 0.75)
    assert positives.height == (0, 0, 0, 0.5 / 0.25, 0)
    assert binned.figure().axes[0].title == "Scores (1 outside of [-1, 1])"
    assert exact.figure().axes[0].title == "Scores"


@pytest.mark.parametrize("make", [PairAUROC, BinnedPairAUROC])
@pytest.mark.parametrize("batch", [None, ([], []), ([0.5], [1]), ([0.5, 0.5], [1, 0])])
def test_a_figure_of_next_to_nothing(make, batch):
    metric = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if batch is not None:
            metric.update(torch.tensor(batch[0], dtype=torch.float32), torch.tensor(batch[1]))
        figure = metric.figure()
        value = float(metric.compute())
    assert figure.axes[1].title == f"ROC curve (AUROC {value:.4f})"
    assert "svg" in to_svg(figure)


def test_a_mean_over_queries_has_no_curve():
    with pytest.raises(ValueError, match="PairAUROC: pairing must be 'global' for a figure"):
        PairAUROC(pairing="per_query").figure()


def test_plot_draws_the_figure():
    metric = BinnedPairAUROC()
    metric.update(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match="BinnedPairAUROC: ax must be None, since the figure has axes of its own"):
        metric.plot(ax=1)
    pytest.importorskip("matplotlib", reason="drawing with matplotlib needs the extra plots")
    _, axes = metric.plot()
    assert [one.get_title() for one in axes] == ["Scores", "ROC curve (AUROC 0.5000)"]


# Retrieval over a whole set


def dense(query, key, ids=None):
    """Ranks without ties, from the whole matrix."""
    scores = nn.functional.normalize(query.double()) @ nn.functional.normalize(key.double()).T
    ids = torch.arange(len(query)) if ids is None else ids
    right = ids[:, None] == ids
    best = scores.masked_fill(~right, -2).amax(1, keepdim=True)
    return 1 + ((scores > best) & ~right).sum(1)


@pytest.mark.parametrize("with_ids", [False, True])
def test_many_batches_equal_the_whole_matrix(with_ids):
    query, key = pairs(2100)
    ids = torch.randint(500, (2100,), generator=generator(1)) if with_ids else None
    recall, reciprocal = RecallAtK(k=5), MeanReciprocalRank()
    for part in torch.arange(2100).split(97):
        for metric in (recall, reciprocal):
            metric.update(query[part], key[part], ids=None if ids is None else ids[part])
    ranks = dense(query, key, ids)
    assert 0.05 < (ranks <= 5).double().mean() < 0.95
    close(recall.compute(), (ranks <= 5).double().mean())
    close(reciprocal.compute(), (1 / ranks.double()).mean())


def test_equal_ids_are_right_keys_of_each_other():
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    key = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.1]])
    close(recall_at_k(query, key), 1 / 3)
    assert recall_at_k(query, key, ids=torch.tensor([5, 5, 9])) == 1
    for ids in ([5, 5, 9], [0, 0, 0], [1, 2, 1]):
        rows = {"query": query.tolist(), "key": key.tolist(), "ids": ids}
        close(recall_at_k(query, key, ids=torch.tensor(ids)), recall_reference(**rows))
        close(mean_reciprocal_rank(query, key, ids=torch.tensor(ids)), reciprocal_reference(**rows), rtol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 50, 777])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_collapsed_model_gets_the_value_of_chance(n, dtype):
    """Equal keys have scores that differ in the last bit, which would let one of them win."""
    point = torch.randn(1, 131, generator=generator(), dtype=dtype).expand(n, 131)
    query = torch.randn(n, 131, generator=generator(1), dtype=dtype)
    for normalize in (True, False):
        for queries in (point, query):
            close(recall_at_k(queries, point, normalize=normalize), 1 / n)
            close(recall_at_k(queries, point, k=7, normalize=normalize), min(7, n) / n)
            close(mean_reciprocal_rank(queries, point, normalize=normalize), sum(1 / r for r in range(1, n + 1)) / n)


def test_ties_between_several_right_and_wrong_keys():
    g = generator()
    query, key = (torch.randint(-1, 2, (8, 2), generator=g).double() for _ in range(2))
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
    rows = {"query": query.tolist(), "key": key.tolist(), "ids": ids.tolist(), "normalize": False}
    for k in (1, 2, 3, 5, 8):
        close(recall_at_k(query, key, ids=ids, k=k, normalize=False), recall_reference(**rows, k=k))
    close(mean_reciprocal_rank(query, key, ids=ids, normalize=False), reciprocal_reference(**rows))


def test_a_nan_never_makes_a_rank_better():
    query, key = torch.eye(4), torch.eye(4)
    key[0] = math.nan
    unchecked = {"validate_args": False}
    close(recall_at_k(query, key, **unchecked), 0.0)
    close(mean_reciprocal_rank(query.fill_(math.nan), torch.eye(4), **unchecked), 1 / 4)
    assert embedding_margin(query, torch.eye(4), **unchecked)["margin"].isnan()


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that was made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [v for v in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(v, torch.Tensor)]
        self.numbers = max([self.numbers, *(v.numel() for v in made)])
        return out


@pytest.mark.parametrize("function", [recall_at_k, mean_reciprocal_rank, embedding_margin])
def test_no_matrix_of_all_pairs_is_held(function):
    query, key = pairs(5000, d=4)
    with Largest() as largest:
        function(query, key)
    assert largest.numbers <= BLOCK
    with Largest() as collapsed:
        function(query, key.new_ones(5000, 4))
    assert collapsed.numbers <= BLOCK


def test_metrics_of_one_collection_share_the_embeddings():
    metrics = {"r1": RecallAtK(), "r5": RecallAtK(k=5), "dot": RecallAtK(normalize=False), "mrr": MeanReciprocalRank()}
    collection = MetricCollection(copy.deepcopy(metrics))
    for seed in range(5):
        batch = dict(zip(("query", "key"), pairs(13, seed=seed), strict=True))
        collection.update(**batch)
        for metric in metrics.values():
            metric.update(**batch)
        values = collection.compute()
        for name, metric in metrics.items():
            close(values[name], metric.compute())
    assert len(collection.compute_groups) == 1
    assert len({metric.query.data_ptr() for metric in collection.values(copy_state=False)}) == 1


def test_ids_are_given_always_or_never():
    metric = RecallAtK()
    metric.update(*pairs(3), ids=torch.arange(3))
    with pytest.raises(ValueError, match="RecallAtK: ids must be given always or never, got 3 for 5 pairs"):
        metric.update(*pairs(2))


def test_the_number_of_features_stays():
    metric = MeanReciprocalRank()
    metric.update(*pairs(3, d=4))
    with pytest.raises(ValueError, match=r"MeanReciprocalRank: query must have 4 features, as the rows before, got"):
        metric.update(*pairs(3, d=5))
    assert len(metric.query) == len(metric.key) == 3


# Rows as a state


def test_an_update_copies_its_batch_and_rarely_all_rows():
    metric = PairAUROC()
    places = set()
    for _ in range(1000):
        metric.update(torch.rand(3), torch.ones(3))
        places.add(metric.scores.data_ptr())
    assert len(metric.scores) == 3000
    assert len(places) <= 12
    assert metric.scores.untyped_storage().nbytes() <= 2 * 3000 * 4


def test_a_call_goes_on_in_the_same_storage():
    metric = PairAUROC()
    places = set()
    target = torch.tensor([0, 1])
    batches = torch.rand(500, 2, generator=generator())
    for batch in batches:
        close(metric(batch, target), float(batch[1] > batch[0]))
        places.add(metric.scores.data_ptr())
    assert torch.equal(metric.scores, batches.flatten())
    assert len(places) <= 12


def test_states_that_somebody_holds_are_never_written():
    metric, other = PairAUROC(), PairAUROC()
    metric.persistent(True)
    target = torch.tensor([0, 1])
    for _ in range(3):
        metric.update(torch.rand(2), target)
    held = metric.state_dict()
    early = {name: rows[:4] for name, rows in held.items()}
    expected = copy.deepcopy(held)
    other.load_state_dict(held, strict=False)
    for part in (metric, other):
        part.update(torch.rand(2), target)
    mine = metric.scores.clone()
    other.update(torch.rand(2), target)
    metric.load_state_dict(early, strict=False)
    metric.update(torch.rand(2), target)
    for name, rows in expected.items():
        assert torch.equal(held[name], rows)
    assert torch.equal(mine[:6], expected["scores"])
    assert torch.equal(other.scores[:6], expected["scores"])
    assert len(other.scores) == 10


def test_rows_of_inference_mode_go_on_outside_of_it():
    metric = PairAUROC()
    target = torch.tensor([0, 1])
    with torch.inference_mode():
        for _ in range(3):
            metric(torch.rand(2), target)
    for _ in range(3):
        metric(torch.rand(2), target)
    assert len(metric.scores) == 12


def test_rows_keep_their_precision_and_mix():
    metric = RecallAtK()
    metric.update(*pairs(3, dtype=torch.bfloat16))
    assert metric.query.dtype == torch.bfloat16
    metric.update(*pairs(3, seed=1, dtype=torch.float32))
    assert metric.query.dtype == torch.float32
    assert torch.equal(metric.query[:3], pairs(3, dtype=torch.bfloat16)[0].float())
    nn.ModuleList([metric]).to(torch.bfloat16)
    assert metric.query.dtype == torch.float32


def test_a_reset_frees_the_rows():
    metric = PairAUROC()
    metric.update(torch.rand(10), torch.ones(10))
    metric.reset()
    assert metric.scores.untyped_storage().nbytes() == 0
    assert not metric._storages


@pytest.mark.parametrize("cls", [PairAUROC, BinnedPairAUROC, RecallAtK, MeanReciprocalRank, EmbeddingMargin])
def test_all_have_the_base_of_the_house(cls):
    assert issubclass(cls, StreamingMetric)


# Ranks


def on_rank(make, batches):
    metric = make()
    values = []
    for batch in batches:
        if batch is not None:
            metric.update(*batch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values.append(metric.compute())
    return values


def figure_on_rank(make, batches):
    metric = make()
    if len(batches[dist.get_rank()][0]):
        metric.update(*batches[dist.get_rank()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return metric.figure().to_json(), len(getattr(metric, "scores", ()))


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("make", [PairAUROC, BinnedPairAUROC])
def test_ranks_draw_the_figure_of_all(pool, make):
    g = generator()
    scores, target = torch.rand(30, generator=g), torch.randint(2, (30,), generator=g)
    whole = make()
    whole.update(scores, target)
    for cut in (13, 0):
        parts = [(scores[:cut], target[:cut]), (scores[cut:], target[cut:])]
        found = pool.run(figure_on_rank, [(make, parts)] * 2)
        assert {figure for figure, _ in found} == {whole.figure().to_json()}
        assert [kept for _, kept in found] == ([cut, 30 - cut] if make is PairAUROC else [0, 0])


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_uneven_ranks_rank_against_all_keys(pool, dtype):
    """One has no data at first, and learns width and dtype from the other."""
    query, key = pairs(24, dtype=dtype)
    own = [[(query[:17], key[:17]), None], [None, (query[17:], key[17:])]]
    for first, second in pool.run(on_rank, [(RecallAtK, batches) for batches in own]):
        close(first, recall_at_k(query[:17], key[:17]))
        close(second, recall_at_k(query, key))


@pytest.mark.xdist_group("ranks")
def test_ranks_that_never_get_data_give_nan(pool):
    for (value,) in pool.run(on_rank, [(PairAUROC, [None])] * 2):
        assert value.isnan()


def failing_on_rank(batch):
    try:
        on_rank(RecallAtK, [batch])
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.xdist_group("ranks")
def test_ranks_with_other_widths_all_raise(pool):
    for said in pool.run(failing_on_rank, [(pairs(3, d=4),), (pairs(3, d=5),)]):
        assert said.startswith("RecallAtK: query must have the same width and dtype on every rank")


@pytest.mark.xdist_group("ranks")
def test_margins_merge_over_ranks(pool):
    query, key = pairs(9)
    own = [[(query[:5], key[:5]), None], [None, (query[5:], key[5:])]]
    metric = EmbeddingMargin()
    expected = on_rank(lambda: metric, [batches[0] or batches[1] for batches in own])
    for got in pool.run(on_rank, [(EmbeddingMargin, batches) for batches in own]):
        for values, wanted in zip(got, expected, strict=True):
            for name, value in wanted.items():
                close(values[name], value)


# Margins


def test_margins_by_pair():
    query, key = pairs(6, d=3)
    ids = torch.tensor([0, 1, 1, 2, 0, 3])
    scores = [[cosine(q, k) for k in key.tolist()] for q in query.tolist()]
    right = [s for i, row in enumerate(scores) for j, s in enumerate(row) if ids[i] == ids[j]]
    wrong = [s for i, row in enumerate(scores) for j, s in enumerate(row) if ids[i] != ids[j]]
    p, n = min(right), max(wrong)
    got = embedding_margin(query, key, ids=ids)
    expected = {"margin": min(p, -n), "best_margin": (p - n) / 2, "best_offset": (p + n) / 2}
    assert list(got) == list(expected)
    for name, value in expected.items():
        close(got[name], value, rtol=1e-6)
    for name, value in embedding_margin(query, key, target=ids[:, None] == ids).items():
        close(value, got[name])


def test_all_keys_with_every_batch_of_queries_give_the_margin_of_the_set():
    query, key = pairs(700, d=5)
    key = torch.cat([key, torch.randn(60, 5, generator=generator(3))])
    target = torch.rand(700, 760, generator=generator(4)) < 0.01
    metric = EmbeddingMargin()
    for part in torch.arange(700).split(64):
        metric.update(query[part], key, target=target[part])
    whole = embedding_margin(query, key, target=target)
    for name, value in metric.compute().items():
        close(value, whole[name])
