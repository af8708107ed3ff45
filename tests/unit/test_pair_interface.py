"""The interface of the pair operators carries losses beyond those that stand on it: heads and programs tried here."""

import math

import pytest
import torch
import torch.nn.functional as F

from trainkit._core.pairs.base import LOG2E, Pairs
from trainkit._core.pairs.strip import Head, Rows, strip_rows, strip_sum
from trainkit._core.pairs.tile import Program, Softmax, tile_statistics
from trainkit._core.pairs.view import Hidden


class DecoupledHead(Head):
    """Log-sum-exp of the negatives alone, without the positive in the normaliser."""

    log2 = True

    @staticmethod
    def rows(view, positive):
        view.hide()
        peak = view.scores.amax(1)
        mass = view.scores.sub_(peak.unsqueeze(1)).exp2_().sum(1)
        return Rows((peak + mass.log2()) / LOG2E - positive, -torch.ones_like(positive), 1 / mass)


class HardNegativeHead(Head):
    """Softmax loss whose negatives weigh by exp(beta s): a ratio of two sums over the row. ``options``: beta."""

    @staticmethod
    def rows(view, positive):
        (beta,) = view.options
        view.hide()
        count = (view.scores > -math.inf).sum(1)
        hard, soft = ((1 + beta) * view.scores), (beta * view.scores)
        total = hard.logsumexp(1) - soft.logsumexp(1) + count.to(hard.dtype).log()
        share = torch.sigmoid(total - positive)
        slopes = (1 + beta) * hard.softmax(1) - beta * soft.softmax(1)
        view.scores.copy_(slopes)
        return Rows(-F.logsigmoid(positive - total), -share, share)


class ClassSums(Program):
    """Sum of exp(s) over the columns of each class for each row: a statistic of rows and classes.

    ``tensors``: class of each column.
    """

    CLASSES = 3

    @staticmethod
    def shapes(n, m):
        return [n * ClassSums.CLASSES]

    @staticmethod
    def begin(statistics):
        return [torch.zeros_like(statistics[0]).view(-1, ClassSums.CLASSES)]

    @staticmethod
    def forward(view, state):
        view.hide()
        (classes,) = view.tensors
        state[0][view.rows].index_add_(1, classes[view.columns], view.scores.exp())

    @staticmethod
    def finish(state):
        return [state[0].flatten()]

    @staticmethod
    def backward(view, statistics, gradients):
        view.hide()
        (classes,) = view.tensors
        slopes = gradients[0].view(-1, ClassSums.CLASSES)[view.rows][:, classes[view.columns]]
        view.scores.exp_().mul_(slopes)


N, M, D = 7, 9, 4


@pytest.fixture
def pairs():
    g = torch.Generator().manual_seed(0)
    query = torch.randn(N, D, generator=g, dtype=torch.float64).requires_grad_()
    key = torch.randn(M, D, generator=g, dtype=torch.float64).requires_grad_()
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    return Pairs(query, key, scale, bias, query.new_empty(0), torch.arange(N))


def parts(pairs):
    scores = pairs.scale * pairs.query @ pairs.key.T + pairs.bias
    hidden = F.one_hot(pairs.own, M).bool()
    return scores.masked_fill(hidden, -math.inf), scores.gather(1, pairs.own.unsqueeze(1)).squeeze(1)


def same(got, expected, pairs):
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    weights = torch.arange(1.0, 1 + got.numel(), dtype=torch.float64).view(got.shape)
    wanted = pairs[:4]
    for a, b in zip(
        torch.autograd.grad((got * weights).sum(), wanted),
        torch.autograd.grad((expected * weights).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("block", [(2, 3), (7, 9), (256, 512)])
def test_a_loss_without_the_positive_in_its_normaliser(pairs, block):
    hidden = Hidden.of(pairs.own.unsqueeze(1))
    others, positive = parts(pairs)
    rows = others.logsumexp(1) - positive
    same(strip_rows(DecoupledHead, pairs, hidden, block=block), rows, pairs)
    weight = torch.rand(N, dtype=torch.float64)
    others, positive = parts(pairs)
    same(strip_sum(DecoupledHead, pairs, weight, hidden, block=block), weight @ (others.logsumexp(1) - positive), pairs)


@pytest.mark.parametrize("block", [(2, 3), (256, 512)])
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_a_loss_with_two_normalisers_a_row(pairs, block, beta):
    hidden = Hidden.of(pairs.own.unsqueeze(1))
    others, positive = parts(pairs)
    total = ((1 + beta) * others).logsumexp(1) - (beta * others).logsumexp(1) + math.log(M - 1)
    expected = -F.logsigmoid(positive - total)
    same(strip_rows(HardNegativeHead, pairs, hidden, options=(beta,), block=block), expected, pairs)


@pytest.mark.parametrize("block", [(2, 3), (1, 1), (256, 512)])
def test_a_statistic_of_classes(pairs, block):
    hidden = Hidden.of(pairs.own.unsqueeze(1))
    classes = torch.arange(M) % ClassSums.CLASSES
    sums, positives = tile_statistics(ClassSums, pairs, hidden, tensors=[classes], block=block)
    others, positive = parts(pairs)
    expected = others.exp() @ F.one_hot(classes, ClassSums.CLASSES).double()
    same(sums.view(N, -1).log() - positives.unsqueeze(1), expected.log() - positive.unsqueeze(1), pairs)


@pytest.mark.parametrize("block", [(2, 3), (256, 2**31)])
def test_one_number_of_all_pairs(block):
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    unit = F.normalize(x, dim=1)
    t = torch.tensor(2.0, dtype=torch.float64)
    itself = Pairs(unit, unit, 2 * t, torch.zeros_like(t), unit.new_empty(0), torch.empty(0, dtype=torch.int64))
    rows = tile_statistics(Softmax, itself, Hidden.of(torch.arange(8).unsqueeze(1)), options=(0, 0), block=block)[0]
    uniformity = rows.logsumexp(0) - 2 * t - math.log(8 * 7)
    expected = torch.pdist(unit).square().mul(-t).exp().mean().log()
    torch.testing.assert_close(uniformity, expected, rtol=1e-12, atol=0)
    (a,) = torch.autograd.grad(uniformity, x, retain_graph=True)
    (b,) = torch.autograd.grad(expected, x)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
