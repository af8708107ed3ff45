"""Smooth calibration error: kernels in place of bins, as wide as the error that they find."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trainkit._core.checks import check_flag, check_number
from trainkit._core.figures import Axes, Figure, Line, numbers
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit._core.rasters import Plotted
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._binned import Reduce, Rows, Scheme, chosen_class

__all__ = ["SmoothCalibrationError", "smooth_calibration_error"]

NODES = 1001
"""Places of the grid that scores are put on, from 0 to 1; odd, so that a kernel has a middle."""

NARROWEST = 1e-3
"""Least width of a kernel, the distance of two nodes."""

STEPS = 10
"""Bisections of the width."""

POINTS = 200
"""Least number of places at which smoothed masses are compared; the points of the figure's curves."""

DENSITY = 1e-4
"""What is added to the mass at every place, so that a rate is defined where there is none."""

FAINT = 1e-3
"""Density, as a share of the largest, below which the figure shows no rate."""


def _scheme(
    task: Task, num_classes: int | None, reduce: Reduce | None, input_kind: InputKind, ignore_index: int
) -> Scheme:
    """Which scores are looked at; the bins are of no use."""
    return Scheme(task, num_classes, 1, "equal_width", reduce, 0.0, "left", "split", True, input_kind, ignore_index)


def _check(owner: str, sigma: float | None, return_parts: bool) -> None:
    if sigma is not None:
        check_number(owner, "sigma", sigma, minimum=NARROWEST)
    check_flag(owner, return_parts=return_parts)


def _on_grid(rows: Iterable[Rows], groups: int) -> Tensor:
    """Sums of the residuals and of the weights of a batch, each split between the two nearest nodes, (2, G, NODES)."""
    blocks = []
    for scores, hits, weight in rows:
        dtype = sum_dtype(scores.device)
        s = scores.to(dtype).clamp(0, 1)
        w = weight.to(dtype).expand_as(s)
        left = (s * (NODES - 1)).long().clamp_max(NODES - 2)
        share = s * (NODES - 1) - left
        index = (left + torch.arange(groups, device=s.device) * NODES).reshape(-1)
        sums = s.new_zeros(2, groups * NODES)
        for values, total in zip((w * (s - hits.to(dtype)), w), sums, strict=True):
            total.index_add_(0, index, (values * (1 - share)).reshape(-1))
            total.index_add_(0, index + 1, (values * share).reshape(-1))
        blocks.append(sums.view(2, groups, NODES))
    return torch.stack(blocks).sum(0)


class _Smoothed(NamedTuple):
    """Errors of all classes.

    Args:
        error: (G,)
        sigma: Width of the kernel, (G,).
    """

    error: Tensor
    sigma: Tensor


class _Spectrum:
    """Residuals and masses, ready to be smoothed with kernels of any width.

    Args:
        grid: Sums on the nodes, (2, G, NODES).
    """

    def __init__(self, grid: Tensor) -> None:
        # A mirror at both ends, of which the ends themselves are no part; half the grid is as far as a kernel reaches.
        mirrored = F.pad(grid.detach().cpu().double(), (NODES // 2, NODES // 2), mode="reflect")
        self.length = mirrored.shape[2]
        self.spectrum = torch.fft.rfft(mirrored)

    def smoothed(self, sigma: Tensor) -> Tensor:
        """Smoothed sums on the nodes for the kernel width of each class, (2, G, NODES)."""
        places = torch.arange(self.length, dtype=torch.float64)
        distance = torch.minimum(places, self.length - places) / (NODES - 1)
        width = sigma.unsqueeze(1)
        kernel = (-(distance**2) / (2 * width**2)).exp() / (math.sqrt(2 * math.pi) * width)
        # It ends half a grid away, as that of the authors.
        kernel = torch.where(distance <= (NODES // 2) / (NODES - 1), kernel, 0)
        around: Tensor = torch.fft.irfft(self.spectrum * torch.fft.rfft(kernel), n=self.length)
        return around[..., NODES // 2 : NODES // 2 + NODES]

    def errors(self, sigma: Tensor) -> Tensor:
        """Error of each class for kernels of its width, (G,)."""
        counts = torch.tensor([max(POINTS, round(10 / width)) for width in sigma.tolist()])
        index = torch.arange(int(counts.max()), dtype=torch.float64)
        places = index / (counts.unsqueeze(1) - 1) * (NODES - 1)
        residual, mass = _interpolated(self.smoothed(sigma), places)
        inside = index < counts.unsqueeze(1)
        return torch.where(inside, residual.abs(), 0).sum(1) / torch.where(inside, mass + DENSITY, 0).sum(1)

    def search(self) -> Tensor:
        """For each class the least width, of ten bisections, that is no less than its error, (G,)."""
        high = torch.ones(self.spectrum.shape[1], dtype=torch.float64)
        low = torch.zeros_like(high)
        for _ in range(STEPS):
            middle = (low + high) / 2
            narrow = (middle < NARROWEST) | (middle < self.errors(middle))
            low, high = torch.where(narrow, middle, low), torch.where(narrow, high, middle)
        return high


def _interpolated(nodes: Tensor, places: Tensor) -> Tensor:
    """Values between nodes, (2, G, P), at places counted in nodes, (G, P)."""
    left = places.long().clamp(0, NODES - 2).expand(2, -1, -1)
    share = places - left
    return nodes.gather(2, left) * (1 - share) + nodes.gather(2, left + 1) * share


def _smoothed(grid: Tensor, sigma: float | None) -> _Smoothed:
    spectrum = _Spectrum(grid)
    widths = spectrum.search() if sigma is None else torch.full((grid.shape[1],), sigma, dtype=torch.float64)
    return _Smoothed(spectrum.errors(widths), widths)


def _value(
    owner: str, grid: Tensor, scheme: Scheme, sigma: float | None, return_parts: bool, warn: bool = True
) -> Tensor | dict[str, Tensor]:
    found = _smoothed(grid, sigma)
    some = grid[1].any().to(grid.dtype)
    value = mean_or_nan(owner, found.error.mean().to(grid), some, warn=warn)
    if not return_parts:
        return value
    widths = found.sigma.to(grid)
    return {"value": value, "sigma": widths[0] if scheme.groups is None or len(widths) == 1 else widths}


@torch.no_grad()
def smooth_calibration_error(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    reduce: Reduce | None = None,
    sigma: float | None = None,
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`SmoothCalibrationError`."""
    owner = "smooth_calibration_error"
    scheme = _scheme(task, num_classes, reduce, input_kind, ignore_index)
    scheme.check(owner)
    _check(owner, sigma, return_parts)
    grid = _on_grid(scheme.rows(owner, logits, target, weight, validate_args), scheme.groups or 1)
    return _value(owner, grid, scheme, sigma, return_parts)


class SmoothCalibrationError(Plotted, StreamingMetric):
    r"""Calibration error of the smoothed reliability curve, with a kernel as wide as the error.

    Use it as the one number in place of a binned error: it has no bins to choose, moves little when predictions move
    little, and the width of its kernel falls with the error that is to be found.

    .. math:: \mathrm{smECE}_\sigma = \frac{\sum_t |R_\sigma(t)|}{\sum_t D_\sigma(t)}, \quad
        R_\sigma(t) = \sum_i w_i (s_i - a_i) K_\sigma(t, s_i), \quad D_\sigma(t) = \sum_i w_i K_\sigma(t, s_i)

    at the least :math:`\sigma \ge \mathrm{smECE}_\sigma`, with s the score and a what happened (see ``reduce``), t over
    [0, 1], and K a Gaussian that is mirrored at both ends.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed for ``reduce="classwise"`` unless the task is binary.
        reduce: ``"top_label"``, ``"classwise"`` (the mean over classes, each with a width of its own) or ``"all"``, as
            in :class:`BinnedCalibrationError`. None is ``"top_label"`` for multiclass, else ``"all"``.
        sigma: Width of the kernel, 0.001 or more. None takes the least one, in steps of 1/1024, that is no less than
            the error.
        return_parts: Give a mapping with ``value`` and ``sigma``, which is one number a class for ``"classwise"``.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: (), float64, or a mapping with that

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import SmoothCalibrationError
        >>> metric = SmoothCalibrationError(task="binary", return_parts=True, input_kind="probs")
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> {name: round(float(part), 3) for name, part in metric.compute().items()}
        {'value': 0.141, 'sigma': 0.143}

    Note:
        Equals the authors' package to rounding where the width is 0.01 or more. Below, that takes a finer grid the
        narrower the kernel is; here the grid has 1001 nodes throughout, between which a score is split, so that the
        value is the same for any split into batches and ranks. As there, a kernel reaches half the interval, the
        masses are compared at 200 places or, if that is more, 10 / sigma, and 1e-4 of a row is added to the density at
        each. A target of probabilities counts as so many hits. State: two fp64 sums (fp32 on mps) for each node and
        class, whatever the number of rows; smoothing runs on the CPU in fp64. :meth:`figure` gives the smoothed curve
        and the density as data; ``plot`` draws them and needs the extra ``plots``. Nothing to average gives nan and a
        warning; a class without scores has the error 0. Without gradients.

    References:
        Błasiok and Nakkiran, "Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing", ICLR 2024.
        arXiv:2309.12236
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0

    grid: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        reduce: Reduce | None = None,
        sigma: float | None = None,
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        self._scheme = _scheme(task, num_classes, reduce, input_kind, ignore_index)
        self._scheme.check("SmoothCalibrationError")
        _check("SmoothCalibrationError", sigma, return_parts)
        self.task: Task = task
        self.num_classes = num_classes
        self.reduce: Reduce | None = reduce
        self.sigma = sigma
        self.return_parts = return_parts
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.add_sums("grid", shape=(2, self._scheme.groups or 1, NODES))
        self.tell_apart(self._scheme)

    def update(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        rows = self._scheme.rows("SmoothCalibrationError", logits, target, weight, self.validate_args)
        self.grid = self.grid + _on_grid(rows, self._scheme.groups or 1)

    def compute(self) -> Tensor | dict[str, Tensor]:
        name = "SmoothCalibrationError"
        return _value(name, self.grid, self._scheme, self.sigma, self.return_parts, warn=self.update_called)

    def figure(self, class_index: int | None = None, title: str = "") -> Figure:
        """The smoothed rate over the score, and the density of scores; all ranks call it together.

        Args:
            class_index: Class to show, for ``reduce="classwise"`` only.
            title: Above the figure.
        """
        chosen = chosen_class("SmoothCalibrationError", self._scheme.groups, class_index)
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            grid = self.grid[:, chosen : chosen + 1].cpu()
        error, sigma = _smoothed(grid, self.sigma)
        scores = torch.linspace(0, 1, POINTS + 1, dtype=torch.float64)
        # Rows are at their nodes here, which is as fine as can be drawn.
        hits = torch.linspace(0, 1, NODES, dtype=grid.dtype) * grid[1] - grid[0]
        smoothed = _Spectrum(torch.stack([hits, grid[1]])).smoothed(sigma)
        hit, mass = _interpolated(smoothed, (scores * (NODES - 1)).unsqueeze(0)).squeeze(1)
        rate = torch.where(mass > FAINT * mass.max(), hit / mass, math.nan)
        x = numbers(scores.tolist())
        name = f"smooth calibration error {float(error):.4f}, width {float(sigma):.4f}"
        curve = (
            Line((0.0, 1.0), (0.0, 1.0), label="calibrated", dashed=True),
            Line(x, numbers(rate.tolist()), label="smoothed rate"),
        )
        unit = (0.0, 1.0)
        above = Axes(curve, title=name, x_label="score", y_label="rate", x_range=unit, y_range=unit, share=2.0)
        density = mass / mass.mean().clamp_min(torch.finfo(mass.dtype).tiny)
        below = Axes(
            (Line(x, numbers(density.tolist())),),
            x_label="score",
            y_label="density",
            x_range=unit,
            y_range=(0.0, 1.05 * max(1.0, float(density.max()))),
        )
        return Figure((above, below), title=title)
