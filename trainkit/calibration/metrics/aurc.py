"""Areas under risk-coverage curves: how well confidence tells right predictions from wrong ones."""

import torch
from torch import Tensor

from trainkit._core.metric import mean_or_nan
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._risk_coverage import RiskCoverage, RiskCoverageMetric, risk_coverage_once

__all__ = ["AUGRC", "AURC", "EAURC", "augrc", "aurc", "eaurc"]


def _excess(curve: RiskCoverage) -> Tensor:
    return (curve.aurc() - curve.best_aurc()).clamp_min(0)


@torch.no_grad()
def aurc(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`AURC`."""
    curve = risk_coverage_once(
        "aurc",
        logits,
        target,
        weight,
        task=task,
        exact=exact,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return mean_or_nan("aurc", curve.aurc(), curve.totals[0])


@torch.no_grad()
def eaurc(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`EAURC`."""
    curve = risk_coverage_once(
        "eaurc",
        logits,
        target,
        weight,
        task=task,
        exact=exact,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return mean_or_nan("eaurc", _excess(curve), curve.totals[0])


@torch.no_grad()
def augrc(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`AUGRC`."""
    curve = risk_coverage_once(
        "augrc",
        logits,
        target,
        weight,
        task=task,
        exact=exact,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return mean_or_nan("augrc", curve.augrc() / curve.totals[0], curve.totals[0])


class AURC(RiskCoverageMetric):
    r"""Area under the risk-coverage curve: mean error of the k most confident predictions, averaged over k.

    Use it to compare confidences that decide which predictions are kept, as when doubtful cases go to a person. It
    falls with the error itself; :class:`EAURC` takes that off, and :class:`AUGRC` weighs an early error less heavily.

    .. math:: \mathrm{AURC} = \frac{1}{N} \sum_{k=1}^{N} \frac{1}{k} \sum_{i \le k} e_{(i)}

    with :math:`e_{(i)}` whether the prediction of rank i is wrong, the most confident first.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own. The
            confidence is the largest probability, for binary targets too: max(p, 1 - p).
        exact: False for sums over cells of constant size in place of the sample.
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
        >>> from trainkit.calibration.metrics import AURC
        >>> metric = AURC(task="binary", input_kind="probs")
        >>> metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0]))
        >>> metric.compute()
        tensor(0.3333, dtype=torch.float64)

    Note:
        Of predictions with equal confidence every order is as good: the errors among them are spread evenly, which is
        the mean over all orders, so that the value does not depend on the order of rows; large logits in fp32 are such
        ties. It is the sum over k, and no trapezoid rule, which differs for small N. A weight counts as so many rows;
        between whole numbers the sum is continued by the digamma function. A target of probabilities counts as so much
        of an error. State: the whole sample, so that memory grows with it, 6 bytes for each fp32 row, gathered over the
        ranks; exact over any split into batches and ranks. ``exact=False`` keeps fp64 sums over 16384 cells of equal
        width in its place and takes each cell for a tie: an approximation, the same over any split. Sums are fp64 (fp32
        on mps). The metrics of this curve share their state in a MetricCollection. :meth:`figure` gives the curve as
        data; ``plot`` draws it and needs the extra ``plots``. Nothing to average gives nan and a warning. Without
        gradients.

    References:
        Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019.
        arXiv:1805.08206
    """

    def compute(self) -> Tensor:
        curve = self.curve()
        return self.mean(curve.aurc(), curve.totals[0])


class EAURC(RiskCoverageMetric):
    r"""Excess area under the risk-coverage curve: AURC above that of the same errors if all of them came last.

    Use it in place of :class:`AURC` to compare confidences of models that are not equally accurate.

    .. math:: \mathrm{EAURC} = \mathrm{AURC} - \frac{1}{N} \sum_{k=N-E+1}^{N} \frac{k - (N - E)}{k}

    with E the number of errors.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own. The
            confidence is the largest probability, for binary targets too: max(p, 1 - p).
        exact: False for sums over cells of constant size in place of the sample.
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
        >>> from trainkit.calibration.metrics import EAURC
        >>> metric = EAURC(task="binary", input_kind="probs")
        >>> metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0]))
        >>> metric.compute()
        tensor(0.1250, dtype=torch.float64)

    Note:
        The best area is that of the N rows, and not the closed form :math:`e + (1 - e) \ln(1 - e)` of the paper, which
        is its limit for many rows and lies below it. Of a target of probabilities it is that of the expected number of
        errors. All that :class:`AURC` says of ties, weights and state holds here: exact from the whole sample, so that
        memory grows with it, or an approximation of constant size for ``exact=False``. Nothing to average gives nan and
        a warning. Without gradients.

    References:
        Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019.
        arXiv:1805.08206
    """

    def compute(self) -> Tensor:
        curve = self.curve()
        return self.mean(_excess(curve), curve.totals[0])


class AUGRC(RiskCoverageMetric):
    r"""Area under the generalized risk-coverage curve: mean share of undetected errors over all coverages.

    Use it in place of :class:`AURC` where one early error should not decide: each counts with the share of coverages
    at which it goes undetected, whatever else is kept.

    .. math:: \mathrm{AUGRC} = \frac{1}{N} \sum_{k=1}^{N} \frac{1}{N} \sum_{i \le k} e_{(i)}

    with :math:`e_{(i)}` whether the prediction of rank i is wrong, the most confident first.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own. The
            confidence is the largest probability, for binary targets too: max(p, 1 - p).
        exact: False for sums over cells of constant size in place of the sample.
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
        >>> from trainkit.calibration.metrics import AUGRC
        >>> metric = AUGRC(task="binary", input_kind="probs")
        >>> metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)

    Note:
        All that :class:`AURC` says of ties, weights, targets of probabilities and state holds here: exact from the
        whole sample, so that memory grows with it, or an approximation of constant size for ``exact=False``. Nothing
        to average gives nan and a warning. Without gradients.

    References:
        Traub et al., "Overcoming Common Flaws in the Evaluation of Selective Classification Systems", NeurIPS 2024.
        arXiv:2407.01032
    """

    generalized = True

    def compute(self) -> Tensor:
        curve = self.curve()
        total = curve.totals[0]
        return self.mean(curve.augrc() / total, total)
