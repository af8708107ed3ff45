"""Estimate of accuracy without labels, from the norm of normalised logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_flag,
    check_floating,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.figures import numbers
from trainkit._core.line_fit import LineFit, fit_line
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit.calibration._common import BLOCK, flat
from trainkit.calibration._value_rules import prediction_rules

__all__ = ["MaNo", "fit_linear", "mano"]


def _check(owner: str, p: float, eta: float, return_parts: bool) -> None:
    check_number(owner, "p", p, minimum=1)
    check_number(owner, "eta", eta, minimum=0)
    check_flag(owner, return_parts=return_parts)


def _taylor(logits: Tensor) -> Tensor:
    """Rows of 1 + z + z²/2 less their smallest entry, divided by their sums; uniform where all are equal.

    Twice that is (z + 1)² + 1, so that differences are products, and the scale of the row cancels.
    """
    root = (logits + 1).abs()
    root = root / root.amax(1, keepdim=True).clamp_min(torch.finfo(root.dtype).tiny)
    least = root.amin(1, keepdim=True)
    values = (root - least) * (root + least)
    total = values.sum(1, keepdim=True)
    return torch.where(total > 0, values / total, 1 / logits.shape[1])


def _sums(
    owner: str, logits: Tensor, weight: Tensor | None, p: float, validate_args: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of powers of both normalisations, (2,), of the criterion, of the weights a class, and of the weights."""
    check_floating(owner, logits=logits)
    if logits.dim() < 2 or logits.shape[1] == 0:
        reject(owner, "logits", "have shape (N, C, ...)", logits)
    positions = (*logits.shape[:1], *logits.shape[2:])
    check_same_shape(owner, "logits without the class dimension", positions, weight=weight)
    if values_checked(validate_args):
        rules = prediction_rules(logits, "logits", True)
        if weight is not None:
            rules.append(("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))
        if rules:
            check_values(owner, *rules)
    rows, classes, dtype = flat(logits), logits.shape[1], sum_dtype(logits.device)
    w = torch.ones(len(rows), dtype=dtype, device=rows.device) if weight is None else weight.reshape(-1).to(dtype)
    powers, criterion = w.new_zeros(2), w.new_zeros(())
    step = max(1, BLOCK // classes)
    for start in range(0, len(rows), step):
        z, own = rows[start : start + step].to(dtype), w[start : start + step]
        powers += torch.stack([(own * q.pow(p).sum(1)).sum() for q in (z.softmax(1), _taylor(z))])
        criterion -= (own * z.log_softmax(1).mean(1)).sum()
    return powers, criterion, classes * w.sum(), w.sum()


def _told(
    powers: Tensor, criterion: Tensor, cells: Tensor, p: float, eta: float, return_parts: bool
) -> Tensor | dict[str, Tensor]:
    softmax, taylor = (powers / cells).pow(1 / p)
    score = torch.where(criterion <= eta, taylor, softmax)
    if not return_parts:
        return score
    return {"score": score, "criterion": criterion, "softmax": softmax, "taylor": taylor}


@torch.no_grad()
def mano(
    logits: Tensor,
    *,
    weight: Tensor | None = None,
    p: float = 4.0,
    eta: float = 5.0,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`MaNo`."""
    _check("mano", p, eta, return_parts)
    powers, criterion, cells, weight_sum = _sums("mano", logits, weight, p, validate_args)
    return _told(powers, mean_or_nan("mano", criterion, weight_sum), cells, p, eta, return_parts)


def fit_linear(scores: Sequence[float] | Tensor, accuracies: Sequence[float] | Tensor) -> LineFit:
    """Fit the line that turns a score such as :class:`MaNo` into an accuracy, from sets whose labels are known.

    What it gives has ``slope``, ``intercept``, ``r_squared``, ``predict(scores)`` and ``figure()``.

    Args:
        scores: One score for each of at least three sets, as of different shifts of one test set.
        accuracies: Accuracy on each of them.
    """
    told = (values.tolist() if isinstance(values, Tensor) else values for values in (scores, accuracies))
    return fit_line("fit_linear", *(numbers(values) for values in told))


class MaNo(StreamingMetric):
    r"""Score that rises with the accuracy on data without labels: the p-norm of all normalised logits together.

    Use it to compare shifts of a data set, or to see a model fail, where labels are missing. It is no accuracy: fit
    :func:`fit_linear` on at least three sets whose labels are known, and look at its R² before you trust it.

    .. math:: \Big( \frac{1}{\sum_i w_i K} \sum_{i,k} w_i q_{ik}^p \Big)^{1/p}, \quad
        \Phi = -\frac{1}{\sum_i w_i K} \sum_{i,k} w_i \ln \mathrm{softmax}(z_i)_k

    with K classes. For :math:`\Phi > \eta` q is the softmax of the logits z. Otherwise, where that may be wrong, it
    is :math:`t - \min_k t_k` divided by its sum, with :math:`t = 1 + z + z^2 / 2`.

    Args:
        p: Exponent of the norm.
        eta: Largest criterion at which the polynomial is taken.
        return_parts: Give a dict with the score, the criterion and the scores of both normalisations.
        validate_args: Check the values of logits and weight.

    Shape:
        - logits: (N, C, ...)
        - weight: one number >= 0 for each prediction, (N, ...), optional
        - output: () or, for ``return_parts``, a dict of ``score``, ``criterion``, ``softmax`` and ``taylor``; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import MaNo, fit_linear
        >>> metric = MaNo()
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]))
        >>> metric.compute()
        tensor(0.7248, dtype=torch.float64)
        >>> fit = fit_linear([0.7, 0.6, 0.5], [0.9, 0.8, 0.7])
        >>> fit.predict(metric.compute())
        tensor(0.9248, dtype=torch.float64)

    Note:
        Departs from the paper's code in three ways: the norm is that of all data and no mean over batches, the
        criterion is read from all data and not from one batch, and the mode of the model is left to the caller: call
        ``eval()``. Which normalisation holds is decided at the end, once for all data; both are summed. A row whose
        polynomial is the same for all classes counts as uniform. State: fp64 sums of constant size (fp32 on mps),
        exact over any split into batches and ranks. Nothing to average gives nan and a warning. Without gradients.

    References:
        Xie et al., "MaNo: Exploiting Matrix Norm for Unsupervised Accuracy Estimation Under Distribution Shifts",
        NeurIPS 2024. arXiv:2405.18979
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    powers: Tensor
    criterion: Tensor
    cells: Tensor
    weight_sum: Tensor

    def __init__(
        self, p: float = 4.0, eta: float = 5.0, return_parts: bool = False, validate_args: bool = True
    ) -> None:
        super().__init__(validate_args)
        _check("MaNo", p, eta, return_parts)
        self.p = p
        self.eta = eta
        self.return_parts = return_parts
        self.add_sums("powers", shape=(2,))
        self.add_sums("criterion", "cells", "weight_sum")
        self.tell_apart(p)

    def update(self, logits: Tensor, *, weight: Tensor | None = None) -> None:
        powers, criterion, cells, weight_sum = _sums("MaNo", logits, weight, self.p, self.validate_args)
        self.powers = self.powers + powers
        self.criterion = self.criterion + criterion
        self.cells = self.cells + cells
        self.weight_sum = self.weight_sum + weight_sum

    def compute(self) -> Tensor | dict[str, Tensor]:
        criterion = self.mean(self.criterion, self.weight_sum)
        return _told(self.powers, criterion, self.cells, self.p, self.eta, self.return_parts)
