"""Kolmogorov-Smirnov calibration error: cumulative accuracy against cumulative confidence, without bins."""

from collections.abc import Iterable

import torch
from torch import Tensor

from trainkit._core.checks import check_flag, reject
from trainkit._core.figures import Axes, Figure, Line, numbers
from trainkit._core.metric import mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit._core.rasters import Plotted
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._binned import BinnedMetric, Reduce, Rows, Scheme, chosen_class, sample_once

__all__ = ["KSCalibrationError", "ks_calibration_error"]

POINTS = 200
"""Points of the curve in the figure, about."""


def _scheme(
    task: Task,
    num_classes: int | None,
    reduce: Reduce | None,
    top_k: int,
    exact: bool,
    input_kind: InputKind,
    ignore_index: int,
) -> Scheme:
    """The sample or its cells, as for one bin of equal mass."""
    return Scheme(
        task, num_classes, 1, "equal_mass", reduce, 0.0, "left", "split", exact, input_kind, ignore_index, top_k
    )


def _check(owner: str, reduce: Reduce | None, signed: bool, per_class: bool) -> None:
    check_flag(owner, signed=signed, per_class=per_class)
    if per_class and reduce != "classwise":
        reject(owner, "per_class", f"be False for reduce={reduce!r}, which has no value a class", True)
    if signed and reduce == "classwise" and not per_class:
        reject(owner, "signed", "be False for the mean over classes, in which signs would cancel", True)


def _cumulated(rows: Rows) -> Tensor:
    """Shares of weight, confidence and accuracy up to each distinct score, (3, P)."""
    scores, hits, weight = rows
    ordered, order = scores.sort(stable=True)
    w = weight.to(sum_dtype(scores.device))[order]
    sums = torch.stack([w, w * ordered, w * hits[order]]).cumsum(1)
    # Inside of a tie the order is an accident of the rows.
    last = torch.ones_like(order, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    return sums[:, last] / sums[0, -1:]


def _largest(cumulated: Tensor) -> int:
    """Where the gap is largest."""
    return int((cumulated[2] - cumulated[1]).abs().argmax())


def _value(owner: str, sample: Iterable[Rows], signed: bool, per_class: bool, warn: bool = True) -> Tensor:
    """The error; a class without scores has none, nan and a warning if no class has any."""
    gaps, weights = [], []
    for rows in sample:
        _, conf, acc = cumulated = _cumulated(rows)
        gap = acc - conf
        gaps.append(gap[_largest(cumulated)] if len(gap) else gap.sum())
        weights.append(rows[2].sum())
    errors = torch.stack(gaps) if signed else torch.stack(gaps).abs()
    some = torch.stack(weights).any()
    return mean_or_nan(owner, errors if per_class else errors.mean(), some.to(errors.dtype), warn=warn)


@torch.no_grad()
def ks_calibration_error(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    reduce: Reduce | None = None,
    top_k: int = 1,
    signed: bool = False,
    per_class: bool = False,
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`KSCalibrationError`."""
    owner = "ks_calibration_error"
    _check(owner, reduce, signed, per_class)
    scheme = _scheme(task, num_classes, reduce, top_k, exact, input_kind, ignore_index)
    return _value(owner, sample_once(owner, scheme, logits, target, weight, validate_args), signed, per_class)


class KSCalibrationError(Plotted, BinnedMetric):
    r"""Largest distance between cumulative accuracy and cumulative confidence, over rows in the order of their score.

    Use it where the choice of bins should not decide: there is none, and unlike a binned error it hardly grows when
    there is little data. It is least where gaps of opposite sign at nearby scores cancel; report
    :class:`BrierScore` or :class:`NegativeLogLikelihood` beside it.

    .. math:: \mathrm{KS} = \max_t |h(t)|, \quad h(t) = \frac{1}{\sum_i w_i} \sum_{i : s_i \le t} w_i (a_i - s_i)

    with s the score and a what happened (see ``reduce``).

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed for ``reduce="classwise"`` unless the task is binary.
        reduce: ``"top_label"``, ``"classwise"`` (the mean over classes) or ``"all"``, as in
            :class:`BinnedCalibrationError`. None is ``"top_label"`` for multiclass, else ``"all"``.
        top_k: For ``"top_label"``: s is the sum of so many of the largest probabilities and a whether the class is
            among them.
        signed: Give h where its size is largest: above zero for too little confidence, below for too much. Zero is
            best then, whatever ``higher_is_better`` says.
        per_class: Give one value a class. Only for ``reduce="classwise"``.
        exact: False for sums over cells of constant size in place of the sample.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``per_class``, (C,), one value for binary; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import KSCalibrationError
        >>> metric = KSCalibrationError(task="binary", input_kind="probs")
        >>> metric.update(torch.tensor([0.25, 0.5, 0.75, 1.0]), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.1875, dtype=torch.float64)
        >>> metric.figure().axes[0].title
        'KS calibration error 0.1875'

    Note:
        Departs from the paper's code in that h is read only behind the last of equal scores, so that the value does
        not depend on the order of rows. Of equal probabilities the first classes are among the ``top_k``. A target of
        probabilities counts as so many hits. State: the whole sample, so that memory grows with it, 6 bytes for each
        fp32 score, gathered over the ranks; exact over any split into batches and ranks. ``exact=False`` keeps fp64
        sums over 16384 cells of equal width in its place and reads h at their ends: the same over any split, never
        above the exact value, and below it by at most the largest share of weight in a cell. Sums are fp64 (fp32 on
        mps). :meth:`figure` gives the curve as data; ``plot`` draws it and needs the extra ``plots``. Nothing to
        average gives nan and a warning; a class without scores has the error 0. Without gradients.

    References:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR 2021. arXiv:2006.12800
    """

    is_differentiable = False
    higher_is_better = False

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        reduce: Reduce | None = None,
        top_k: int = 1,
        signed: bool = False,
        per_class: bool = False,
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(_scheme(task, num_classes, reduce, top_k, exact, input_kind, ignore_index), validate_args)
        _check("KSCalibrationError", reduce, signed, per_class)
        self.signed = signed
        self.per_class = per_class

    def compute(self) -> Tensor:
        return _value("KSCalibrationError", self.sample(), self.signed, self.per_class, warn=self.update_called)

    def figure(self, class_index: int | None = None, title: str = "") -> Figure:
        """Cumulative accuracy against cumulative confidence, and the largest gap; all ranks call it together.

        Args:
            class_index: Class to show, for ``reduce="classwise"`` only.
            title: Above the figure.
        """
        chosen = chosen_class("KSCalibrationError", self._scheme.groups, class_index)
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            cumulated = _cumulated(list(self.sample())[chosen]).cpu()
        return _figure(cumulated, title)


def _figure(cumulated: Tensor, title: str) -> Figure:
    marks = [Line((0.0, 1.0), (0.0, 1.0), label="calibrated", dashed=True)]
    name = "KS calibration error"
    if cumulated.shape[1]:
        largest = _largest(cumulated)
        _, conf, acc = cumulated[:, largest].tolist()
        name = f"{name} {abs(acc - conf):.4f}"
        places = torch.searchsorted(cumulated[0], torch.linspace(0, 1, POINTS, dtype=cumulated.dtype))
        kept = torch.cat([places.clamp_max(cumulated.shape[1] - 1), torch.tensor([largest])]).unique()
        _, x, y = (numbers([0.0, *part.tolist()]) for part in cumulated[:, kept])
        marks += [Line(x, y, label="all scores up to one"), Line((conf, conf), (conf, acc), label="largest gap")]
    axes = Axes(
        tuple(marks),
        title=name,
        x_label="cumulative confidence",
        y_label="cumulative accuracy",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
    )
    return Figure((axes,), title=title)
