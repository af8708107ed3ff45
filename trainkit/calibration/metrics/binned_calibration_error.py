"""Calibration error from bins of predicted probabilities."""

import torch
from torch import Tensor

from trainkit._core.binning import Binning, Closed, Ties
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._bin_gaps import Measure, Norm, Weighting
from trainkit.calibration.metrics._binned import BinnedMetric, Reduce, Scheme, binned_once

__all__ = ["BinnedCalibrationError", "binned_calibration_error"]


@torch.no_grad()
def binned_calibration_error(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    n_bins: int = 15,
    norm: Norm = "l1",
    binning: Binning = "equal_width",
    reduce: Reduce | None = None,
    threshold: float = 0.0,
    debias: bool = False,
    squared: bool = False,
    per_class: bool = False,
    closed: Closed = "left",
    ties: Ties = "split",
    weighting: Weighting = "count",
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`BinnedCalibrationError`."""
    owner = "binned_calibration_error"
    scheme = Scheme(
        task, num_classes, n_bins, binning, reduce, threshold, closed, ties, exact, input_kind, ignore_index
    )
    measure = Measure(norm, weighting, debias, squared, per_class)
    measure.check(owner, reduce)
    return measure.value(owner, binned_once(owner, scheme, logits, target, weight, validate_args).sums)


class BinnedCalibrationError(BinnedMetric):
    r"""Mean distance between confidence and accuracy over bins of predicted probabilities.

    Use it to say how far probabilities can be taken at their word. Rankings of methods depend on the choices below:
    bins of equal mass, one set a class, and the l2 norm are the most consistent. It is no proper score; report
    :class:`BrierScore` or :class:`NegativeLogLikelihood` beside it. Named settings are ``ECE``, ``MCE``, ``RMSCE``,
    ``ClasswiseECE``, ``AdaptiveCalibrationError`` and ``ThresholdedACE``.

    .. math:: \mathrm{CE}_q = \Big( \sum_b \frac{W_b}{\sum_j W_j} \Big| \frac{A_b - S_b}{W_b} \Big|^q \Big)^{1/q}
        \quad W_b = \sum_{i \in b} w_i, \; S_b = \sum_{i \in b} w_i s_i, \; A_b = \sum_{i \in b} w_i a_i

    with s the score and a what happened (see ``reduce``), q = 1 or 2; ``norm="max"`` is the largest gap of any bin.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed for ``reduce="classwise"`` unless the task is binary.
        n_bins: Number of bins.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.
        binning: ``"equal_width"`` or ``"equal_mass"`` (the same weight in every bin).
        reduce: ``"top_label"``: s is the largest probability and a whether that class is right, for binary targets too
            (max(p, 1 - p)); ``"classwise"``: s is the probability of class k and a whether it is the target, in bins
            for every k, and the value is the mean over k; ``"all"``: the same, in one set of bins. For binary targets
            and labels these two look at class 1 only. None is ``"top_label"`` for multiclass, else ``"all"``.
        threshold: Leave out scores that are not above it; 0 keeps all.
        debias: Take from each squared gap the variance that so many targets give it: a(1 - a) / (W - 1), with a the
            accuracy in the bin; bins that weigh less than 2 count nothing. Only for l2.
        squared: Give the square, which with ``debias`` may be negative and can be averaged without bias. Only for l2.
        per_class: Give one value a class. Only for ``reduce="classwise"``.
        closed: Where a score on an edge of equal width belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
        ties: Of equal mass: ``"split"`` parts equal scores in the order they came, ``"together"`` keeps them in a bin.
        weighting: ``"count"``, or ``"uniform"`` for the plain mean over the bins that hold something.
        exact: False for bins of equal mass from a histogram of constant size in place of the sample.
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
        >>> from trainkit.calibration.metrics import BinnedCalibrationError
        >>> p, target = torch.tensor([0.3, 0.1, 0.9, 0.8]), torch.tensor([0, 0, 1, 0])
        >>> binary = BinnedCalibrationError(task="binary", n_bins=4, input_kind="probs")
        >>> binary.update(p, target)
        >>> binary.compute()
        tensor(0.2750, dtype=torch.float64)
        >>> folded = BinnedCalibrationError(task="binary", reduce="top_label", n_bins=4, input_kind="probs")
        >>> folded.update(p, target)
        >>> folded.compute()
        tensor(0.2250, dtype=torch.float64)

    Note:
        Scores of 0 and 1 are in the first and the last bin, whatever ``closed`` says. A class without scores above
        the threshold has the error 0 and counts in the mean; the weights of its bins are shares of what was kept.
        ``ties="together"`` follows the code of the reference below: bin b begins at the score of rank
        round(b n / n_bins), and bins may be empty. A target of probabilities counts as so many hits. State for equal
        width: three fp64 sums a bin (fp32 on mps). For equal mass the whole sample is kept and memory grows with it, 6
        bytes for each fp32 score, gathered over the ranks; ``exact=False`` keeps sums over 16384 cells in its place and
        moves each cell as a whole, so that the value is an approximation. All are the same over any split into batches
        and ranks, except that ``ties="split"`` depends on the order of equal scores. Metrics that differ only in norm,
        weighting and such share their state in a MetricCollection. A large batch is read in blocks of rows, each
        checked on its own. Nothing to average gives nan and a warning. Without gradients.

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019. arXiv:1904.01685
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. arXiv:1706.04599
        Kumar, Liang and Ma, "Verified Uncertainty Calibration", NeurIPS 2019. arXiv:1909.10155
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        n_bins: int = 15,
        norm: Norm = "l1",
        binning: Binning = "equal_width",
        reduce: Reduce | None = None,
        threshold: float = 0.0,
        debias: bool = False,
        squared: bool = False,
        per_class: bool = False,
        closed: Closed = "left",
        ties: Ties = "split",
        weighting: Weighting = "count",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        scheme = Scheme(
            task, num_classes, n_bins, binning, reduce, threshold, closed, ties, exact, input_kind, ignore_index
        )
        super().__init__(scheme, validate_args)
        self.norm: Norm = norm
        self.weighting: Weighting = weighting
        self.debias = debias
        self.squared = squared
        self.per_class = per_class
        self._measure = Measure(norm, weighting, debias, squared, per_class)
        self._measure.check(type(self).__name__, reduce)

    def compute(self) -> Tensor:
        return self._measure.value(type(self).__name__, self.binned().sums, warn=self.update_called)
