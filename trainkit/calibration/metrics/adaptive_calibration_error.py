"""Calibration errors over bins of equal mass, by the names they go by."""

from trainkit._core.binning import Ties
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics.binned_calibration_error import BinnedCalibrationError

__all__ = ["RMSCE", "AdaptiveCalibrationError", "ThresholdedACE"]


class RMSCE(BinnedCalibrationError):  # noqa: N818 - no exception, whatever its base is called
    r"""Root mean square calibration error of the predicted class, over bins of equal mass.

    Use it in place of :class:`ECE` where large errors matter more and scores crowd at one end.

    .. math:: \mathrm{RMSCE} = \sqrt{\sum_b \frac{n_b}{N} (\mathrm{acc}_b - \mathrm{conf}_b)^2}

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        n_bins: Number of bins.
        ties: ``"split"`` parts equal scores in the order they came, ``"together"`` keeps them in a bin.
        exact: False for a histogram of constant size in place of the sample.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import RMSCE
        >>> metric = RMSCE(n_bins=5)
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), torch.tensor([0, 2, 1]))
        >>> metric.compute()
        tensor(0.3562, dtype=torch.float64)

    Note:
        The whole sample is kept, so that memory grows with it, and gathered over the ranks; ``exact=False`` keeps
        sums over 16384 cells in its place and gives an approximation. Exact over any split into batches and ranks,
        but for the order of equal scores. See :class:`BinnedCalibrationError` for what else holds. Nothing to average
        gives nan and a warning.

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019. arXiv:1904.01685
    """

    def __init__(
        self,
        task: Task = "multiclass",
        n_bins: int = 15,
        ties: Ties = "split",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(
            task=task,
            n_bins=n_bins,
            ties=ties,
            exact=exact,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=validate_args,
            norm="l2",
            binning="equal_mass",
        )


class AdaptiveCalibrationError(BinnedCalibrationError):
    r"""Mean over classes of the calibration error of each class's probability, over bins of equal mass.

    Use it in place of :class:`ClasswiseECE`, most of whose scores are in the first bin when there are many classes.

    .. math:: \mathrm{ACE} = \frac{1}{C} \sum_k \sum_b \frac{n_{bk}}{N} | \mathrm{acc}_{bk} - \mathrm{conf}_{bk} |

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed unless the task is binary.
        n_bins: Number of bins.
        ties: ``"split"`` parts equal scores in the order they came, ``"together"`` keeps them in a bin.
        exact: False for a histogram of constant size in place of the sample.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import AdaptiveCalibrationError
        >>> metric = AdaptiveCalibrationError(num_classes=3, n_bins=5)
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), torch.tensor([0, 2, 1]))
        >>> metric.compute()
        tensor(0.2445, dtype=torch.float64)

    Note:
        The whole sample is kept, so that memory grows with it, and gathered over the ranks; ``exact=False`` keeps
        sums over 16384 cells in its place and gives an approximation. Exact over any split into batches and ranks,
        but for the order of equal scores. See :class:`BinnedCalibrationError` for what else holds. Nothing to average
        gives nan and a warning.

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019. arXiv:1904.01685
    """

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        n_bins: int = 15,
        ties: Ties = "split",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(
            task=task,
            num_classes=num_classes,
            n_bins=n_bins,
            ties=ties,
            exact=exact,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=validate_args,
            reduce="classwise",
            binning="equal_mass",
        )


class ThresholdedACE(BinnedCalibrationError):  # noqa: N818 - no exception, whatever its base is called
    r"""Adaptive calibration error of the probabilities above a threshold.

    Use it in place of :class:`AdaptiveCalibrationError` where most probabilities are next to nothing.

    .. math:: \mathrm{TACE} = \frac{1}{C} \sum_k \sum_b \frac{n_{bk}}{N_k} | \mathrm{acc}_{bk} - \mathrm{conf}_{bk} |,
        \quad N_k = \sum_b n_{bk}

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed unless the task is binary.
        n_bins: Number of bins.
        threshold: Leave out scores that are not above it.
        ties: ``"split"`` parts equal scores in the order they came, ``"together"`` keeps them in a bin.
        exact: False for a histogram of constant size in place of the sample.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import ThresholdedACE
        >>> metric = ThresholdedACE(num_classes=3, n_bins=5)
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), torch.tensor([0, 2, 1]))
        >>> metric.compute()
        tensor(0.2445, dtype=torch.float64)

    Note:
        Bins hold the scores above the threshold, and their shares are of these, as in the code of the authors; a
        class without any has the error 0 and counts. The whole sample is kept, so that memory grows with it, and
        gathered over the ranks; ``exact=False`` keeps sums over 16384 cells in its place and gives an approximation.
        Exact over any split into batches and ranks, but for the order of equal scores. See
        :class:`BinnedCalibrationError` for what else holds. Nothing to average gives nan and a warning.

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019. arXiv:1904.01685
    """

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        n_bins: int = 15,
        threshold: float = 0.01,
        ties: Ties = "split",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(
            task=task,
            num_classes=num_classes,
            n_bins=n_bins,
            threshold=threshold,
            ties=ties,
            exact=exact,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=validate_args,
            reduce="classwise",
            binning="equal_mass",
        )
