"""Reliability diagram: accuracy against confidence in bins, with intervals."""

from typing import Any

import torch
from torch import Tensor

from trainkit._core.binning import Binning, Closed, Ties
from trainkit._core.checks import reject
from trainkit._core.figures import Figure
from trainkit._core.rasters import to_matplotlib
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._bin_gaps import reliability, reliability_figure
from trainkit.calibration.metrics._binned import BinnedMetric, Reduce, Scheme, binned_once, chosen_class

__all__ = ["ReliabilityDiagram", "reliability_diagram"]


@torch.no_grad()
def reliability_diagram(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    n_bins: int = 15,
    binning: Binning = "equal_width",
    reduce: Reduce | None = None,
    threshold: float = 0.0,
    closed: Closed = "left",
    ties: Ties = "split",
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> dict[str, Tensor]:
    """Functional form of :class:`ReliabilityDiagram`."""
    scheme = Scheme(
        task, num_classes, n_bins, binning, reduce, threshold, closed, ties, exact, input_kind, ignore_index
    )
    return reliability(binned_once("reliability_diagram", scheme, logits, target, weight, validate_args))


class ReliabilityDiagram(BinnedMetric):
    r"""Accuracy, confidence and the interval of the accuracy in every bin of predicted probabilities.

    Use it to see where probabilities are too high or too low, and whether there is data enough to tell; for one number
    take :class:`BinnedCalibrationError`, which reads the same bins.

    .. math:: \mathrm{acc}_b = \frac{A_b}{n_b}, \quad \mathrm{conf}_b = \frac{S_b}{n_b}, \quad \mathrm{wilson}_b =
        \frac{A_b + z^2 / 2}{n_b + z^2} \pm \frac{z}{n_b + z^2} \sqrt{\frac{A_b (n_b - A_b)}{n_b} + \frac{z^2}{4}}

    with n the weight, S the sum of the scores and A the hits in bin b, and z = 1.96.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        num_classes: Number of classes or labels; needed for ``reduce="classwise"`` unless the task is binary.
        n_bins: Number of bins.
        binning: ``"equal_width"`` or ``"equal_mass"``.
        reduce: ``"top_label"``, ``"classwise"`` or ``"all"``, as in :class:`BinnedCalibrationError`.
        threshold: Leave out scores that are not above it; 0 keeps all.
        closed: Where a score on an edge of equal width belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
        ties: Of equal mass: ``"split"`` parts equal scores in the order they came, ``"together"`` keeps them in a bin.
        exact: False for bins of equal mass from a histogram of constant size in place of the sample.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: a dict of ``edges`` (B + 1,) and of ``count``, ``conf``, ``acc``, ``gap`` (acc - conf), ``wilson_lo``,
          ``wilson_hi`` (B,), each with a first dimension C for ``reduce="classwise"``; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import ReliabilityDiagram
        >>> metric = ReliabilityDiagram(task="binary", n_bins=2, input_kind="probs")
        >>> metric.update(torch.tensor([0.3, 0.1, 0.9, 0.8]), torch.tensor([0, 0, 1, 0]))
        >>> metric.compute()["acc"]
        tensor([0.0000, 0.5000], dtype=torch.float64)
        >>> metric.figure().axes[0].title
        'Reliability (4 scores)'

    Note:
        nan in bins that hold nothing. The interval takes weights for numbers of targets and the mean score for given.
        :meth:`figure` gives the figure as data, of one class for ``reduce="classwise"``; ``plot`` draws it with
        matplotlib and needs the extra ``plots``. State, and what is exact: as in :class:`BinnedCalibrationError`; for
        equal mass the sample is kept and memory grows with it unless ``exact=False``. In a MetricCollection the state
        is shared with calibration errors over the same bins. Without gradients.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. arXiv:1706.04599
        Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 1927.
        doi:10.1080/01621459.1927.10502953
    """

    is_differentiable = False
    higher_is_better = None

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        n_bins: int = 15,
        binning: Binning = "equal_width",
        reduce: Reduce | None = None,
        threshold: float = 0.0,
        closed: Closed = "left",
        ties: Ties = "split",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        scheme = Scheme(
            task, num_classes, n_bins, binning, reduce, threshold, closed, ties, exact, input_kind, ignore_index
        )
        super().__init__(scheme, validate_args)

    def compute(self) -> dict[str, Tensor]:
        return reliability(self.binned())

    def figure(self, class_index: int | None = None, title: str = "") -> Figure:
        """The diagram of what has come so far, and below it how much there is in each bin.

        Args:
            class_index: Class to show, for ``reduce="classwise"`` only.
            title: Above the figure.
        """
        return reliability_figure(self._chosen(self.compute(), class_index), title)

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw the figure with matplotlib, which the extra ``plots`` installs.

        Args:
            val: Values to show in place of those so far: what :meth:`compute` or a call gave.
            ax: Has to be None: the figure has axes of its own.
        """
        if ax is not None:
            reject("ReliabilityDiagram", "ax", "be None, since the figure has two axes of its own", ax)
        values = self._chosen(self.compute() if val is None else val, None)
        return to_matplotlib("ReliabilityDiagram", reliability_figure(values, ""))

    def _chosen(self, values: dict[str, Tensor], class_index: int | None) -> dict[str, Tensor]:
        """Values of one class, or of all scores."""
        classes = len(values["count"]) if values["count"].dim() > 1 else None
        chosen = chosen_class("ReliabilityDiagram", classes, class_index)
        return values if classes is None else {name: value[chosen] for name, value in values.items()}
