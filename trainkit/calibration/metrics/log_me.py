"""How well features suit targets: the evidence of a linear model on them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_flag,
    check_floating,
    check_integer,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype

__all__ = ["LogME", "log_me"]

RIDGE = 1e-5
"""What keeps the two precisions finite."""


class _Setting(NamedTuple):
    """What is looked at, and how the precisions are found."""

    num_features: int
    num_classes: int | None
    num_targets: int
    max_iter: int
    tol: float
    return_parts: bool

    def check(self, owner: str) -> None:
        check_integer(owner, "num_features", self.num_features, minimum=1)
        check_integer(owner, "num_targets", self.num_targets, minimum=1)
        check_integer(owner, "max_iter", self.max_iter, minimum=1)
        check_number(owner, "tol", self.tol, minimum=0)
        check_flag(owner, return_parts=self.return_parts)
        if self.num_classes is not None:
            check_integer(owner, "num_classes", self.num_classes, minimum=1)
            if self.num_targets != 1:
                reject(owner, "num_targets", "be 1 for classes", self.num_targets)

    @property
    def columns(self) -> int:
        """Number of targets that a linear model is fitted to, one a class."""
        return self.num_targets if self.num_classes is None else self.num_classes


class _Moments(NamedTuple):
    """Sums over rows, all that the evidence depends on.

    Args:
        gram: Products of the features with each other, (D, D).
        cross: Products of the targets with the features, (C, D).
        squares: Squares of the targets, (C,).
        weight_sum: Number of rows.
    """

    gram: Tensor
    cross: Tensor
    squares: Tensor
    weight_sum: Tensor


def _checked_target(
    owner: str, setting: _Setting, features: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> Tensor:
    """The target, checked, as indices (N,) or numbers (N, C)."""
    check_floating(owner, features=features)
    if features.dim() != 2 or features.shape[1] != setting.num_features:
        reject(owner, "features", f"have shape (N, {setting.num_features})", features)
    rows = (len(features),)
    if setting.num_classes is None:
        check_floating(owner, target=target)
        single = setting.num_targets == 1 and target.dim() < 2
        check_same_shape(owner, "features", rows if single else (*rows, setting.num_targets), target=target)
        valid, rule = target.isfinite(), "be finite"
    else:
        check_same_shape(owner, "features", rows, target=target)
        if target.is_floating_point():
            reject(owner, "target", f"hold integers for num_classes={setting.num_classes}", target, TypeError)
        valid, rule = (target >= 0) & (target < setting.num_classes), f"be in [0, {setting.num_classes})"
    check_same_shape(owner, "features", rows, weight=weight)
    if values_checked(validate_args):
        rules = [("features", "be finite", features, features.isfinite()), ("target", rule, target, valid)]
        if weight is not None:
            rules.append(("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))
        check_values(owner, *rules)
    return target.reshape(len(features), setting.num_targets) if setting.num_classes is None else target.long()


def _moments(
    owner: str, setting: _Setting, features: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> _Moments:
    """Sums over the rows of a batch."""
    target = _checked_target(owner, setting, features, target, weight, validate_args)
    dtype = sum_dtype(features.device)
    f = features.to(dtype)
    w = f.new_ones(len(f)) if weight is None else weight.to(dtype)
    weighted = f * w.unsqueeze(1)
    if setting.num_classes is None:
        y = target.to(dtype)
        cross, squares = y.T @ weighted, w @ y.square()
    else:
        cross = f.new_zeros(setting.columns, setting.num_features).index_add_(0, target, weighted)
        squares = f.new_zeros(setting.columns).index_add_(0, target, w)
    return _Moments(weighted.T @ f, cross, squares, w.sum())


def _evidence(moments: _Moments, setting: _Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Largest log evidence a row for each target, with the precisions of weights and of noise, each (C,)."""
    gram, cross, squares, n = moments
    size = len(gram)
    count = min(size, math.ceil(n.item()))
    values, vectors = torch.linalg.eigh(gram)
    # What rounding leaves of an eigenvalue of zero would be divided by.
    values = torch.where(values > size * torch.finfo(values.dtype).eps * values[-1], values, 0)
    sigma, basis = values[size - count :, None], vectors[:, size - count :]
    x2 = torch.where(sigma > 0, (basis.T @ cross.T).square() / sigma, 0)
    rest = (squares - x2.sum(0)).clamp_min(0)
    alpha, beta, done = torch.ones_like(squares), torch.ones_like(squares), torch.zeros_like(squares, dtype=torch.bool)
    m2, res2 = torch.zeros_like(squares), torch.zeros_like(squares)
    for _ in range(setting.max_iter):
        t = alpha / beta
        gamma = (sigma / (sigma + t)).sum(0)
        m2 = torch.where(done, m2, (sigma * x2 / (sigma + t).square()).sum(0))
        res2 = torch.where(done, res2, (x2 * (t / (sigma + t)).square()).sum(0) + rest)
        # Features of zeros tell nothing of alpha, and the evidence does not depend on it.
        alpha = torch.where(done | (gamma == 0), alpha, gamma / (m2 + RIDGE))
        # n - gamma, without the difference of equal numbers.
        free = (n - count).clamp_min(0) + (t / (sigma + t)).sum(0)
        beta = torch.where(done, beta, free / (res2 + RIDGE))
        done |= (alpha / beta - t).abs() <= setting.tol * t
        if done.all():
            break
    evidence = size * alpha.log() + n * (beta / (2 * math.pi)).log() - (alpha + beta * sigma).log().sum(0)
    return (evidence - beta * res2 - alpha * m2) / (2 * n), alpha, beta


def _told(owner: str, moments: _Moments, setting: _Setting, warn: bool = True) -> Tensor | dict[str, Tensor]:
    if moments.weight_sum > 0:
        evidence, alphas, betas = _evidence(moments, setting)
    else:
        evidence, alphas, betas = (torch.full_like(moments.squares, math.nan) for _ in range(3))
    some = moments.weight_sum > 0 if setting.num_classes is None else moments.squares > 0
    present = some.expand_as(evidence)
    value = mean_or_nan(owner, torch.where(present, evidence, 0).sum(), present.sum(), warn=warn)
    if not setting.return_parts:
        return value
    alphas, betas = (torch.where(present, part, math.nan) for part in (alphas, betas))
    return {"log_me": value, "alphas": alphas, "betas": betas}


@torch.no_grad()
def log_me(
    features: Tensor,
    target: Tensor,
    *,
    num_features: int,
    num_classes: int | None = None,
    num_targets: int = 1,
    weight: Tensor | None = None,
    max_iter: int = 11,
    tol: float = 1e-3,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`LogME`."""
    setting = _Setting(num_features, num_classes, num_targets, max_iter, tol, return_parts)
    setting.check("log_me")
    return _told("log_me", _moments("log_me", setting, features, target, weight, validate_args), setting)


class LogME(StreamingMetric):
    r"""Largest log evidence a row of Bayesian linear regression from features to targets, the mean over targets.

    Use it to choose among pretrained encoders, or their layers, without training on any: the higher, the better the
    features suit the task. Unlike the likelihood of a fit it is not higher just for more features.

    .. math:: \mathcal{L}(\alpha, \beta) = \frac{1}{2N} \Big( D \ln \alpha + N \ln \frac{\beta}{2 \pi}
        - \sum_k \ln(\alpha + \beta \sigma_k) - \beta \lVert F m - y \rVert^2 - \alpha \lVert m \rVert^2 \Big)

    with :math:`\sigma` the eigenvalues of :math:`F^T F`, m the ridge solution for :math:`\alpha / \beta`, and y each
    target, or the indicator of each class in turn; :math:`\alpha` and :math:`\beta` follow from a fixed point.

    Args:
        num_features: Number of features D.
        num_classes: Number of classes; None for targets that are numbers.
        num_targets: How many numbers a target holds.
        max_iter: Most rounds of the fixed point.
        tol: Relative change of :math:`\alpha / \beta` at which it stops.
        return_parts: Give a dict with the value and both precisions of every target.
        validate_args: Check the values of features, target and weight.

    Shape:
        - features: (N, D)
        - target: class indices (N,), or numbers (N, num_targets), for one of them also (N,)
        - weight: one number >= 0 for each row, optional
        - output: () or, for ``return_parts``, a dict of ``log_me`` () and of ``alphas`` and ``betas`` (C,), nan for a
          class without rows; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import LogME
        >>> metric = LogME(num_features=2, num_classes=2)
        >>> metric.update(torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.1, 0.8]]), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(-0.2552, dtype=torch.float64)

    Note:
        The paper's text was out of reach: defined from the published code (thuml/LogME). As there, the sum over k has
        min(N, D) terms: for N < D the D - N eigenvalues of zero, each worth :math:`\ln \alpha`, are left out of it and
        not out of :math:`D \ln \alpha`, so that sizes of features compare only for N >= D. The code also leaves out
        eigenvalues of zero for N > D, as of a feature that is always zero, and counts a class without rows; here these
        change nothing. There is no intercept: add a constant feature, or centre. A weight counts as so many rows.
        Eigenvalues below D times the precision of the largest are zero. State: fp64 sums (fp32 on mps) of constant
        size, D(D + C), exact over any split into batches and ranks; features whose mean is much larger than their
        spread cost digits. Nothing to average gives nan and a warning. Without gradients.

    References:
        You et al., "LogME: Practical Assessment of Pre-trained Models for Transfer Learning", ICML 2021.
        arXiv:2102.11005
    """

    is_differentiable = False
    higher_is_better = True

    gram: Tensor
    cross: Tensor
    squares: Tensor
    weight_sum: Tensor

    def __init__(
        self,
        num_features: int,
        num_classes: int | None = None,
        num_targets: int = 1,
        max_iter: int = 11,
        tol: float = 1e-3,
        return_parts: bool = False,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        self._setting = _Setting(num_features, num_classes, num_targets, max_iter, tol, return_parts)
        self._setting.check("LogME")
        self.num_features = num_features
        self.num_classes = num_classes
        self.num_targets = num_targets
        self.max_iter = max_iter
        self.tol = tol
        self.return_parts = return_parts
        columns = self._setting.columns
        self.add_sums("gram", shape=(num_features, num_features))
        self.add_sums("cross", shape=(columns, num_features))
        self.add_sums("squares", shape=(columns,))
        self.add_sums("weight_sum")
        self.tell_apart(num_features, num_classes, num_targets)

    def update(self, features: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        added = _moments("LogME", self._setting, features, target, weight, self.validate_args)
        for name, part in added._asdict().items():
            setattr(self, name, getattr(self, name) + part)

    def compute(self) -> Tensor | dict[str, Tensor]:
        moments = _Moments(self.gram, self.cross, self.squares, self.weight_sum)
        return _told("LogME", moments, self._setting, warn=self.update_called)
