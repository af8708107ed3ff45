"""Calibration errors on bins of labels: how many predictions a test rejects, and how far they are from the rates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_number
from trainkit._core.figures import Axes, Bars, Figure, numbers
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._bin_gaps import Norm
from trainkit.calibration.metrics._binned import Reduce
from trainkit.calibration.metrics._label_bins import (
    Bins,
    LabelBinning,
    LabelBinsMetric,
    Strategy,
    Test,
    bins_once,
    check_parts,
    label_scheme,
    reduced,
)

__all__ = ["LabelConstrainedECE", "TestBasedCalibrationError", "label_constrained_ece", "tce"]


@dataclass(frozen=True)
class _Test:
    """How predictions are tested."""

    siglevel: float
    test: Test
    official_compat: bool

    def check(self, owner: str) -> None:
        check_number(owner, "siglevel", self.siglevel, minimum=0, maximum=1, open_minimum=True, open_maximum=True)
        check_choice(owner, "test", self.test, ("binom", "t"))

    def value(
        self, owner: str, bins: Sequence[Bins], device: torch.device, return_parts: bool, warn: bool = True
    ) -> Tensor | dict[str, Tensor]:
        rejected = [own.rejected(self.siglevel, self.test, self.official_compat) for own in bins]
        shares = [100.0 * int(wrong.sum()) / max(len(own.scores), 1) for own, wrong in zip(bins, rejected, strict=True)]
        value = reduced(owner, shares, bins, device, warn)
        if not return_parts:
            return value
        return {**bins[0].parts(value), "rejected": torch.from_numpy(rejected[0]).to(value)}


def _ece(own: Bins, norm: Norm) -> float:
    gaps, count = own.gaps(), own.count
    if norm == "l1":
        return float(gaps.sum()) / max(int(count.sum()), 1)
    rates: list[float] = (gaps / count.clip(1)).tolist()
    if norm == "max":
        return max(rates)
    return math.sqrt(sum(n * g * g for n, g in zip(count.tolist(), rates, strict=True)) / max(int(count.sum()), 1))


def tce(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    reduce: Reduce | None = None,
    siglevel: float = 0.05,
    strategy: Strategy = "pavabc",
    n_min: int = 10,
    n_max: int = 1000,
    n_bins: int = 10,
    test: Test = "binom",
    official_compat: bool = False,
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`TestBasedCalibrationError`; a name that began with ``test`` would be run by pytest."""
    tested = _Test(siglevel, test, official_compat)
    tested.check("tce")
    check_parts("tce", return_parts, reduce)
    scheme = label_scheme(task, num_classes, reduce, input_kind, ignore_index)
    binning = LabelBinning(strategy, n_min, n_max, n_bins, official_compat)
    bins = bins_once("tce", scheme, binning, logits, target, weight, validate_args)
    return tested.value("tce", bins, logits.device, return_parts)


def label_constrained_ece(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    reduce: Reduce | None = None,
    norm: Norm = "l1",
    n_min: int = 10,
    n_max: int = 1000,
    official_compat: bool = False,
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`LabelConstrainedECE`."""
    owner = "label_constrained_ece"
    check_choice(owner, "norm", norm, ("l1", "l2", "max"))
    check_parts(owner, return_parts, reduce)
    scheme = label_scheme(task, num_classes, reduce, input_kind, ignore_index)
    binning = LabelBinning("pavabc", n_min, n_max, official_compat=official_compat)
    bins = bins_once(owner, scheme, binning, logits, target, weight, validate_args)
    value = reduced(owner, [_ece(own, norm) for own in bins], bins, logits.device, True)
    return bins[0].parts(value) if return_parts else value


class TestBasedCalibrationError(LabelBinsMetric):
    r"""Percentage of predictions that a test rejects as the rate of the labels in their bin.

    Use it where classes are rare: it stays on one scale from 0 to 100 however few positives there are, where an
    expected calibration error shrinks with their share. It says how many predictions are wrong, not by how much; show
    :class:`LabelConstrainedECE` beside it, which has the same bins.

    .. math:: \mathrm{TCE} = \frac{100}{N} \sum_b \sum_{i \in b} [\, \mathrm{pvalue}(k_b, n_b; p_i) \le \alpha \,]

    with :math:`k_b` of the :math:`n_b` labels of a bin being one.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed for ``reduce="classwise"`` unless the task is binary.
        reduce: ``"top_label"``, ``"classwise"`` (the mean over classes) or ``"all"``, as in
            :class:`BinnedCalibrationError`. None is ``"top_label"`` for multiclass, else ``"all"``.
        siglevel: Level of the test, within (0, 1).
        strategy: ``"pavabc"`` pools adjacent violators into bins of between ``n_min`` and ``n_max`` labels, as far as
            it can; ``"pava"`` without these limits; ``"uniform"`` has ``n_bins`` bins of equal width and
            ``"quantile"`` of about as many labels.
        n_min: Labels that a bin of ``"pavabc"`` should have.
        n_max: Labels that it may have, at least twice ``n_min``.
        n_bins: Bins of ``"uniform"`` and ``"quantile"``.
        test: ``"binom"`` for the exact two-sided test, ``"t"`` for the t-test of the mean of the labels.
        official_compat: Do as the paper's code where that differs, see Note.
        return_parts: Give a mapping with ``value``, ``edges`` of the bins and, for each bin, ``count``, ``positives``,
            ``conf`` (the mean prediction) and ``rejected``. Not for ``"classwise"``.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices for multiclass; (N, ...) for binary, (N, C, ...) for multilabel, zeros and ones
        - weight: one whole number >= 0 for each target, optional: how often it is there
        - output: (), float64, or a mapping with that

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import TestBasedCalibrationError
        >>> metric = TestBasedCalibrationError("binary", strategy="uniform", n_bins=2, input_kind="probs")
        >>> metric.update(torch.tensor([0.01, 0.4, 0.4, 0.6, 0.7]), torch.tensor([1, 0, 1, 1, 0]))
        >>> metric.compute()
        tensor(20., dtype=torch.float64)

    Note:
        Departs from the paper's code, which ``official_compat=True`` brings back, in three places. Equal predictions
        are in one bin, which may then have more than ``n_max`` labels, so that the value does not depend on the order
        of rows. The last ``n_min`` labels are pooled with the bin before them where both have ``n_max`` or fewer; the
        code looks at twice ``n_min`` instead. A t-test of a single label rejects nothing; of labels that are all
        equal it rejects every other prediction, in the code each one. Both divide by the standard deviation, where the
        code has the variance. N of ``n_min`` or fewer are one bin. The exact test sums the probability of all counts
        that are no likelier than the one seen, up to 1e-7. State: the whole sample, so that memory grows with it,
        gathered over the ranks; exact over any split into batches and ranks. Bins are computed on the CPU, in time that
        grows with the number of predictions times the labels of a bin. :meth:`figure` gives bins and rejected shares as
        data; ``plot`` draws them and needs the extra ``plots``. Nothing to average gives nan and a warning; a class
        without labels has the error 0. Without gradients.

    References:
        Matsubara et al., "TCE: A Test-Based Approach to Measuring Calibration Error", UAI 2023. arXiv:2306.14343
    """

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        reduce: Reduce | None = None,
        siglevel: float = 0.05,
        strategy: Strategy = "pavabc",
        n_min: int = 10,
        n_max: int = 1000,
        n_bins: int = 10,
        test: Test = "binom",
        official_compat: bool = False,
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        scheme = label_scheme(task, num_classes, reduce, input_kind, ignore_index)
        super().__init__(
            scheme, LabelBinning(strategy, n_min, n_max, n_bins, official_compat), return_parts, validate_args
        )
        self.siglevel = siglevel
        self.test: Test = test
        self._test = _Test(siglevel, test, official_compat)
        self._test.check("TestBasedCalibrationError")

    def compute(self) -> Tensor | dict[str, Tensor]:
        bins = self.label_bins()
        name = "TestBasedCalibrationError"
        return self._test.value(name, bins, self.device, self.return_parts, warn=self.update_called)

    def figure(self, class_index: int | None = None, title: str = "") -> Figure:
        """Mean score and rate of each bin, and the share that is rejected; all ranks call it together.

        Args:
            class_index: Class to show, for ``reduce="classwise"`` only.
            title: Above the figure.
        """
        own = self.shown(class_index)
        rejected = own.rejected(self.siglevel, self.test, self._test.official_compat)
        share = 100 * int(rejected.sum()) / max(len(own.scores), 1)
        left, right = numbers(own.edges[:-1]), numbers(own.edges[1:])
        below = Axes(
            (Bars(left, right, numbers(rejected / own.count.clip(1))),),
            x_label="score",
            y_label="rejected",
            x_range=(0.0, 1.0),
            y_range=(0.0, 1.0),
        )
        return Figure((own.axes(f"test-based calibration error {share:.1f} %"), below), title=title)


class LabelConstrainedECE(LabelBinsMetric):
    r"""Expected calibration error on bins that hold a limited number of labels and ascending rates.

    Use it beside :class:`TestBasedCalibrationError`, whose bins it has, for the size of the errors that are counted
    there; or for a binned error whose bins follow the data instead of a number that somebody chose.

    .. math:: \mathrm{LCE} = \sum_b \frac{n_b}{N} \Big| \frac{k_b}{n_b} - \frac{1}{n_b} \sum_{i \in b} p_i \Big|

    with :math:`k_b` of the :math:`n_b` labels of a bin being one.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed for ``reduce="classwise"`` unless the task is binary.
        reduce: ``"top_label"``, ``"classwise"`` (the mean over classes) or ``"all"``, as in
            :class:`BinnedCalibrationError`. None is ``"top_label"`` for multiclass, else ``"all"``.
        norm: ``"l1"``, ``"l2"`` (the root of the mean square of the gaps) or ``"max"``.
        n_min: Labels that a bin should have.
        n_max: Labels that it may have, at least twice ``n_min``.
        official_compat: Do as the paper's code where that differs, see :class:`TestBasedCalibrationError`.
        return_parts: Give a mapping with ``value``, ``edges`` of the bins and, for each bin, ``count``, ``positives``
            and ``conf`` (the mean prediction). Not for ``"classwise"``.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices for multiclass; (N, ...) for binary, (N, C, ...) for multilabel, zeros and ones
        - weight: one whole number >= 0 for each target, optional: how often it is there
        - output: (), float64, or a mapping with that

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import LabelConstrainedECE
        >>> metric = LabelConstrainedECE("binary", n_min=1, n_max=4, input_kind="probs")
        >>> metric.update(torch.tensor([0.1, 0.3, 0.4, 0.5, 0.9]), torch.tensor([0, 0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.1200, dtype=torch.float64)

    Note:
        A share, not a percentage. Bins, states, ties and the places where the paper's code differs are those of
        :class:`TestBasedCalibrationError`: the whole sample is kept, so that memory grows with it, and the value is
        exact over any split into batches and ranks. :meth:`figure` gives the bins as data; ``plot`` draws them and
        needs the extra ``plots``. Nothing to average gives nan and a warning; a class without labels has the error 0.
        Without gradients.

    References:
        Matsubara et al., "TCE: A Test-Based Approach to Measuring Calibration Error", UAI 2023. arXiv:2306.14343
    """

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        reduce: Reduce | None = None,
        norm: Norm = "l1",
        n_min: int = 10,
        n_max: int = 1000,
        official_compat: bool = False,
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        scheme = label_scheme(task, num_classes, reduce, input_kind, ignore_index)
        binning = LabelBinning("pavabc", n_min, n_max, official_compat=official_compat)
        super().__init__(scheme, binning, return_parts, validate_args)
        check_choice("LabelConstrainedECE", "norm", norm, ("l1", "l2", "max"))
        self.norm: Norm = norm

    def compute(self) -> Tensor | dict[str, Tensor]:
        bins = self.label_bins()
        errors = [_ece(own, self.norm) for own in bins]
        value = reduced("LabelConstrainedECE", errors, bins, self.device, warn=self.update_called)
        return bins[0].parts(value) if self.return_parts else value

    def figure(self, class_index: int | None = None, title: str = "") -> Figure:
        """Mean score and rate of each bin; all ranks call it together.

        Args:
            class_index: Class to show, for ``reduce="classwise"`` only.
            title: Above the figure.
        """
        own = self.shown(class_index)
        return Figure((own.axes(f"label-constrained ECE {_ece(own, self.norm):.4f}"),), title=title)
