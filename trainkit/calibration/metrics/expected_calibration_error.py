"""Calibration errors over bins of equal width, by the names they go by."""

from trainkit._core.binning import Closed
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics.binned_calibration_error import BinnedCalibrationError

__all__ = ["ECE", "MCE", "ClasswiseECE"]


class ECE(BinnedCalibrationError):  # noqa: N818 - no exception, whatever its base is called
    r"""Expected calibration error: mean distance of confidence and accuracy over bins of equal width.

    Use it because everybody reports it; it hides errors that cancel in a bin, and all classes but the predicted one.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{N} \big| \mathrm{acc}_b - \mathrm{conf}_b \big|

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        n_bins: Number of bins.
        closed: Where a score on an edge belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
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
        >>> from trainkit.calibration.metrics import ECE
        >>> metric = ECE(n_bins=5)
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), torch.tensor([0, 2, 1]))
        >>> metric.compute()
        tensor(0.2962, dtype=torch.float64)

    Note:
        Binary targets and labels are looked at through the probability of class 1; for max(p, 1 - p) give two columns
        as ``task="multiclass"``. State: three fp64 sums a bin (fp32 on mps), exact over any split into batches and
        ranks. See :class:`BinnedCalibrationError` for what else holds. Nothing to average gives nan and a warning.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. arXiv:1706.04599
        Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
    """

    def __init__(
        self,
        task: Task = "multiclass",
        n_bins: int = 15,
        closed: Closed = "left",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(
            task=task,
            n_bins=n_bins,
            closed=closed,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=validate_args,
        )


class MCE(BinnedCalibrationError):  # noqa: N818 - no exception, whatever its base is called
    r"""Maximum calibration error: largest distance of confidence and accuracy in any bin of equal width.

    Use it where the worst bin matters; a bin of few scores can decide it.

    .. math:: \mathrm{MCE} = \max_b \big| \mathrm{acc}_b - \mathrm{conf}_b \big|

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        n_bins: Number of bins.
        closed: Where a score on an edge belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
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
        >>> from trainkit.calibration.metrics import MCE
        >>> metric = MCE(n_bins=5)
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), torch.tensor([0, 2, 1]))
        >>> metric.compute()
        tensor(0.5761, dtype=torch.float64)

    Note:
        Binary targets and labels are looked at through the probability of class 1; for max(p, 1 - p) give two columns
        as ``task="multiclass"``. State: three fp64 sums a bin (fp32 on mps), exact over any split into batches and
        ranks. See :class:`BinnedCalibrationError` for what else holds. Nothing to average gives nan and a warning.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. arXiv:1706.04599
        Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
    """

    def __init__(
        self,
        task: Task = "multiclass",
        n_bins: int = 15,
        closed: Closed = "left",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(
            task=task,
            n_bins=n_bins,
            closed=closed,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=validate_args,
            norm="max",
        )


class ClasswiseECE(BinnedCalibrationError):  # noqa: N818 - no exception, whatever its base is called
    r"""Mean over classes of the calibration error of each class's probability, over bins of equal width.

    Use it where all probabilities matter and not only the largest; also known as the static calibration error.

    .. math:: \mathrm{SCE} = \frac{1}{C} \sum_k \sum_b \frac{n_{bk}}{N} | \mathrm{acc}_{bk} - \mathrm{conf}_{bk} |

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed unless the task is binary.
        n_bins: Number of bins.
        closed: Where a score on an edge belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
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
        >>> from trainkit.calibration.metrics import ClasswiseECE
        >>> metric = ClasswiseECE(num_classes=3, n_bins=5)
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), torch.tensor([0, 2, 1]))
        >>> metric.compute()
        tensor(0.2445, dtype=torch.float64)

    Note:
        State: three fp64 sums a class and bin (fp32 on mps), exact over any split into batches and ranks. See
        :class:`BinnedCalibrationError` for what else holds. Nothing to average gives nan and a warning.

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019. arXiv:1904.01685
        Kull et al., "Beyond Temperature Scaling: Obtaining Well-Calibrated Multiclass Probabilities with Dirichlet
        Calibration", NeurIPS 2019. arXiv:1910.12656
    """

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        n_bins: int = 15,
        closed: Closed = "left",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(
            task=task,
            num_classes=num_classes,
            n_bins=n_bins,
            closed=closed,
            input_kind=input_kind,
            ignore_index=ignore_index,
            validate_args=validate_args,
            reduce="classwise",
        )
