"""Bounds on the calibration error of every bin, for new data and for inputs that are perturbed."""

import math

import torch
from torch import Tensor

from trainkit._core.binning import BinSums, Closed, cell_sums, equal_width_edges, equal_width_index
from trainkit._core.checks import (
    check_flag,
    check_floating,
    check_number,
    check_values,
    values_checked,
)
from trainkit._core.figures import Axes, Bars, Figure, Line, numbers
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit._core.rasters import Plotted
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._binned import Scheme
from trainkit.calibration.metrics._grouped import OneRow, in_pairs, one_row_scheme

__all__ = ["CertifiedBinCalibration", "certified_bin_calibration"]


def _check(owner: str, radius: float, delta: float, return_parts: bool) -> None:
    check_number(owner, "radius", radius, minimum=0)
    check_number(owner, "delta", delta, minimum=0, maximum=1, open_minimum=True, open_maximum=True)
    check_flag(owner, return_parts=return_parts)


def _sums(
    owner: str,
    scheme: Scheme,
    logits: Tensor,
    target: Tensor,
    lipschitz: Tensor,
    weight: Tensor | None,
    validate_args: bool,
) -> tuple[Tensor, Tensor]:
    """Sums of :func:`cell_sums`, (2, B, 2), and of the slopes, (B,)."""
    pairs = in_pairs(owner, scheme, logits, target, weight, "lipschitz", lipschitz, validate_args)
    check_floating(owner, lipschitz=lipschitz)
    if values_checked(validate_args):
        valid = lipschitz.isfinite() & (lipschitz >= 0)
        check_values(owner, ("lipschitz", "be finite and >= 0", lipschitz, valid))
    dtype = sum_dtype(logits.device)
    bins = torch.zeros(2, scheme.n_bins, 2, dtype=dtype, device=logits.device)
    slopes = bins.new_zeros(scheme.n_bins)
    for (scores, hits, weights), own in pairs:
        index = equal_width_index(scores, scheme.n_bins, scheme.closed)
        bins += cell_sums(index, scheme.n_bins, scores, hits, weights)
        slopes.index_add_(0, index.squeeze(1), weights.squeeze(1).to(dtype) * own.to(dtype))
    return bins, slopes


def _parts(
    owner: str, bins: Tensor, slopes: Tensor, radius: float, delta: float, warn: bool = True
) -> dict[str, Tensor]:
    weight, score, hit = BinSums.of(bins)
    n_bins = len(slopes)
    gap = (hit - score).abs() / weight
    slack = torch.where(weight > 0, (math.log(2 * n_bins / delta) / (2 * weight)).sqrt(), torch.nan)
    shift = radius * slopes / weight
    bound = gap + slack + shift
    total = torch.where(weight > 0, weight * bound, 0).sum()
    return {
        "error": mean_or_nan(owner, total, weight.sum(), warn=warn),
        "bound": bound,
        "gap": gap,
        "slack": slack,
        "shift": shift,
        "count": weight,
        "edges": equal_width_edges(n_bins, slopes.device),
    }


@torch.no_grad()
def certified_bin_calibration(
    logits: Tensor,
    target: Tensor,
    *,
    lipschitz: Tensor,
    weight: Tensor | None = None,
    radius: float,
    delta: float = 0.05,
    task: Task = "multiclass",
    n_bins: int = 15,
    reduce: OneRow | None = None,
    closed: Closed = "left",
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`CertifiedBinCalibration`."""
    owner = "certified_bin_calibration"
    _check(owner, radius, delta, return_parts)
    scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
    sums = _sums(owner, scheme, logits, target, lipschitz, weight, validate_args)
    parts = _parts(owner, *sums, radius, delta)
    return parts if return_parts else parts["bound"]


class CertifiedBinCalibration(Plotted, StreamingMetric):
    r"""A bound on the gap of confidence and accuracy in every bin, under new data and perturbed inputs.

    Use it where a measured calibration error is not enough: the bound adds what chance may hide with so many rows, and
    what the confidence may move when inputs do. Bins that hold little get bounds above 1, which say nothing.

    .. math:: \mathrm{bound}_b = \underbrace{|\mathrm{acc}_b - \mathrm{conf}_b|}_{\text{gap}}
        + \underbrace{\sqrt{\frac{\ln(2B / \delta)}{2 n_b}}}_{\text{slack}}
        + \underbrace{R \, \bar L_b}_{\text{shift}}

    with n the weight in bin b of B and :math:`\bar L` the mean slope of the confidence there.

    Args:
        radius: R: how far inputs may move, in the norm that the slopes belong to.
        delta: Chance, in (0, 1), that gap and slack together fail in any bin.
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        n_bins: Number of bins of equal width, B.
        reduce: ``"top_label"`` or ``"all"``, as in :class:`BinnedCalibrationError`. None is ``"top_label"`` for
            multiclass, else ``"all"``.
        closed: Where a score on an edge belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
        return_parts: Give a dict of the bounds and what they are made of, in place of the bounds.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target, slopes and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - lipschitz: one number >= 0 for each target: how fast its score can move with the input, for example by
          :func:`confidence_lipschitz`
        - weight: one number >= 0 for each target, optional
        - output: bounds, (B,), or, for ``return_parts``, a dict of ``error`` (mean of the bounds by weight) and of
          ``bound``, ``gap``, ``slack``, ``shift`` and ``count`` (weights), (B,), and ``edges``, (B + 1,); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import CertifiedBinCalibration
        >>> metric = CertifiedBinCalibration(radius=0.1, task="binary", n_bins=2, input_kind="probs")
        >>> p, target = torch.full((400,), 0.75), (torch.arange(400) % 4 > 0).long()
        >>> metric.update(p, target, lipschitz=torch.full((400,), 0.5))
        >>> metric.compute()
        tensor([   nan, 0.1240], dtype=torch.float64)

    Note:
        Defined from the abstract, since no paper text and no code was within reach; the slack is that of Hoeffding for
        independent rows, in all bins at once. A slope that was sampled, as :func:`confidence_lipschitz` does, is a
        lower estimate and **no proof**: the bound is a certificate only with slopes that are proven for the whole
        ball. Nor does it follow a row into another bin. A bin that holds nothing has no certificate, which is nan.
        Weights are taken for numbers of rows. State: five fp64 sums a bin (fp32 on mps), exact over any split into
        batches and ranks. :meth:`figure` gives the figure as data; ``plot`` draws it and needs the extra ``plots``.
        Nothing to average gives nan and a warning. Without gradients.
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0

    bins: Tensor
    slopes: Tensor

    def __init__(
        self,
        radius: float,
        delta: float = 0.05,
        task: Task = "multiclass",
        n_bins: int = 15,
        reduce: OneRow | None = None,
        closed: Closed = "left",
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        owner = "CertifiedBinCalibration"
        _check(owner, radius, delta, return_parts)
        self._scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
        self.radius = float(radius)
        self.delta = float(delta)
        self.task: Task = task
        self.n_bins = n_bins
        self.reduce: OneRow | None = reduce
        self.closed: Closed = closed
        self.return_parts = return_parts
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.add_sums("bins", shape=(2, n_bins, 2))
        self.add_sums("slopes", shape=(n_bins,))
        self.tell_apart(self._scheme)

    def update(self, logits: Tensor, target: Tensor, *, lipschitz: Tensor, weight: Tensor | None = None) -> None:
        bins, slopes = _sums(
            "CertifiedBinCalibration", self._scheme, logits, target, lipschitz, weight, self.validate_args
        )
        self.bins = self.bins + bins
        self.slopes = self.slopes + slopes

    def compute(self) -> Tensor | dict[str, Tensor]:
        owner, warn = "CertifiedBinCalibration", self.update_called
        parts = _parts(owner, self.bins, self.slopes, self.radius, self.delta, warn=warn)
        return parts if self.return_parts else parts["bound"]

    def figure(self, title: str = "") -> Figure:
        """The bound of each bin and what it is made of; all ranks call it together.

        Args:
            title: Above the figure.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            bins, slopes = self.bins.cpu(), self.slopes.cpu()
        parts = _parts("CertifiedBinCalibration", bins, slopes, self.radius, self.delta, warn=False)
        return _figure(parts, self.radius, self.delta, title)


def _figure(parts: dict[str, Tensor], radius: float, delta: float, title: str) -> Figure:
    left, right = numbers(parts["edges"][:-1]), numbers(parts["edges"][1:])
    sure = parts["gap"] + parts["slack"]
    above = Axes(
        marks=(
            Bars(left, right, numbers(parts["bound"]), label=f"inputs moved by {radius:g}"),
            Bars(left, right, numbers(sure), label=f"new data, {1 - delta:.4g} sure"),
            Bars(left, right, numbers(parts["gap"]), label="measured gap"),
            Line((0.0, 1.0), (1.0, 1.0), label="says nothing above", dashed=True),
        ),
        title=f"Certified gap {float(parts['error']):.4g} on average",
        y_label="|accuracy - confidence|",
        x_range=(0.0, 1.0),
        share=2.4,
    )
    below = Axes(
        (Bars(left, right, numbers(parts["count"])),), x_label="confidence", y_label="count", x_range=(0.0, 1.0)
    )
    return Figure((above, below), title=title)
