"""Heads that several losses share."""

import math

import torch
from torch import Tensor

from trainkit._core.pairs.base import LOG2E
from trainkit._core.pairs.strip import Head, Rows
from trainkit._core.pairs.view import View

__all__ = ["SoftmaxHead", "SoftmaxTargetHead", "SurrogateHead", "surrogate_sums"]


class SoftmaxHead(Head):
    r"""Negative log-probability of the positive among itself and the visible columns.

    .. math:: h = \mathrm{softplus}\bigl(\log \sum_j e^{s_j} - p\bigr)
    """

    log2 = True

    @staticmethod
    def rows(view: View, positive: Tensor) -> Rows:
        view.hide()
        scores = view.scores
        peak = torch.maximum(scores.amax(1), positive * LOG2E) if scores.shape[1] else positive * LOG2E
        mass = scores.sub_(peak.unsqueeze(1)).exp2_().sum(1)
        # Relative to the positive, so that a value near zero keeps its digits.
        lead = mass.log() + (peak / LOG2E - positive)
        share = lead.sigmoid()
        value = lead.clamp_min(0) + torch.log1p((-lead.abs()).exp())
        return Rows(value, -share, torch.where(mass > 0, share / mass, 0.0))


class SoftmaxTargetHead(Head):
    r"""Cross-entropy of a row against a target that gives mass to several of its columns.

    .. math:: h = \log\Bigl(e^p + \sum_j e^{s_j}\Bigr) - \sum_j t_j s_j - t_+ p

    The target gives :math:`(1 - \epsilon) / |P|` to each of the positives P, the own one and the columns of the row's
    id, and :math:`\epsilon / C` to each of the C candidates. ``tensors``: ids of rows and of columns, or none;
    ``options``: epsilon.
    """

    log2 = True

    @staticmethod
    def rows(view: View, positive: Tensor) -> Rows:
        (smoothing,) = view.options
        scores = view.scores
        view.hide()
        visible = scores > -math.inf
        uniform = smoothing / (visible.sum(1, dtype=scores.dtype) + 1)
        target = visible * uniform.unsqueeze(1)
        own = 1 - smoothing + uniform
        if view.tensors:
            row_ids, column_ids = view.tensors
            same = visible & (row_ids[view.rows].unsqueeze(1) == column_ids[view.columns])
            each = (1 - smoothing) / (same.sum(1, dtype=scores.dtype) + 1)
            target += same * each.unsqueeze(1)
            own = each + uniform
        linear = (target * torch.where(visible, scores, 0.0)).sum(1) / LOG2E
        peak = torch.maximum(scores.amax(1), positive * LOG2E) if scores.shape[1] else positive * LOG2E
        mass = scores.sub_(peak.unsqueeze(1)).exp2_().sum(1)
        total = mass + (positive * LOG2E - peak).exp2()
        scores.div_(total.unsqueeze(1)).sub_(target)
        value = (peak + total.log2()) / LOG2E - linear - own * positive
        return Rows(value, (positive * LOG2E - peak).exp2() / total - own)


def surrogate_sums(kind: int, margin: float, gaps: Tensor, spare: Tensor) -> Tensor:
    """Sums along rows of a surrogate of the gaps (negative minus positive score), which turn into its derivatives.

    Args:
        kind: 0 logistic, 1 hinge, 2 squared hinge, 3 square; each zero at minus infinity.
        margin: Margin of the last three.
        gaps: (b, m); overwritten by the derivatives.
        spare: Buffer of the same shape.
    """
    if kind == 0:
        torch.sigmoid(gaps, out=spare)
        sums = gaps.clamp_min_(0).sum(1)
        # log(1 + exp(-|x|)) from the sigmoid that is there already: one logarithm, no exponential.
        torch.sub(gaps.new_ones(()), spare, out=gaps)
        torch.minimum(gaps, spare, out=gaps)
        sums -= gaps.neg_().log1p_().sum(1)
        gaps.copy_(spare)
        return sums
    gaps.add_(margin)
    if kind == 3:
        gaps.masked_fill_(gaps == -math.inf, 0.0)
    else:
        gaps.clamp_min_(0)
    if kind == 1:
        sums = gaps.sum(1)
        gaps.copy_(gaps > 0)
        return sums
    sums = torch.mul(gaps, gaps, out=spare).sum(1)
    gaps.mul_(2)
    return sums


class SurrogateHead(Head):
    r"""Sum over the visible columns of a surrogate of their lead over the positive.

    .. math:: h = \sum_j \phi(s_j - p)

    ``options``: kind and margin, see :func:`surrogate_sums`.
    """

    elementwise = True

    @staticmethod
    def rows(view: View, positive: Tensor) -> Rows:
        kind, margin = view.options
        view.hide()
        values = surrogate_sums(int(kind), margin, view.scores.sub_(positive.unsqueeze(1)), view.spare)
        return Rows(values, -view.scores.sum(1))
