"""Heads that several losses share."""

import math

import torch
from torch import Tensor

from trainkit._core.pairs.strip import LOG2E, Head, Rows
from trainkit._core.pairs.view import View

__all__ = ["SoftmaxHead", "SoftmaxTargetHead", "SurrogateHead", "surrogate"]


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


def surrogate(kind: int, margin: float, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Value and derivative of a surrogate at the gaps (negative minus positive score); zero at minus infinity.

    Args:
        kind: 0 logistic, 1 hinge, 2 squared hinge, 3 square.
        margin: Margin of the last three.
        gaps: Any shape; may be overwritten.
    """
    if kind == 0:
        slope = torch.sigmoid(gaps)
        # log(1 + exp(-|x|)) from the sigmoid that is there already: one logarithm, no exponential.
        return gaps.clamp_min(0).sub_(torch.log1p(torch.minimum(slope, 1 - slope).neg_())), slope
    shifted = gaps.add_(margin)
    if kind == 3:
        shifted.masked_fill_(shifted == -math.inf, 0.0)
        return shifted.square(), 2 * shifted
    active = shifted.clamp_min(0)
    if kind == 1:
        return active, (shifted > 0).to(active.dtype)
    return active.square(), 2 * active


class SurrogateHead(Head):
    r"""Sum over the visible columns of a surrogate of their lead over the positive.

    .. math:: h = \sum_j \phi(s_j - p)

    ``options``: kind and margin, see :func:`surrogate`.
    """

    elementwise = True

    @staticmethod
    def rows(view: View, positive: Tensor) -> Rows:
        kind, margin = view.options
        view.hide()
        value, slope = surrogate(int(kind), margin, view.scores.sub_(positive.unsqueeze(1)))
        view.scores.copy_(slope)
        return Rows(value.sum(1), -slope.sum(1))
