"""Error of the most confident predictions at a coverage, and the coverage at an error."""

import torch
from torch import Tensor

from trainkit._core.checks import check_number
from trainkit._core.metric import mean_or_nan
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._risk_coverage import RiskCoverage, RiskCoverageMetric, risk_coverage_once

__all__ = ["CoverageAtRisk", "SelectiveRisk", "coverage_at_risk", "selective_risk"]

SLACK = 1e-12
"""What rounding may add to a share of errors."""


def _check(owner: str, coverage: float) -> None:
    check_number(owner, "coverage", coverage, minimum=0, open_minimum=True, maximum=1)


def _sums(curve: RiskCoverage, coverage: float) -> tuple[Tensor, Tensor]:
    """Errors among the rows that are kept, and how many these are."""
    total = curve.totals[0]
    # A product that rounding puts above a whole number is that number: 0.55 of 20 rows are 11.
    count = (coverage * total * (1 - 4 * torch.finfo(total.dtype).eps)).ceil().minimum(total)
    return (curve.errors_among(count.unsqueeze(0)).sum() if len(curve.weight) else total), count


def _check_risk(owner: str, risk: float) -> None:
    check_number(owner, "risk", risk, minimum=0, maximum=1)


def _most(curve: RiskCoverage, risk: float) -> Tensor:
    """Largest number of the most confident rows whose mean error is at most the risk, zero if none is."""
    rows, errors = curve.before
    last = rows + curve.weight
    rate = curve.error / curve.weight
    # Inside of a tie the mean error moves towards that of the tie, and passes the risk at most once.
    passes = (rate * rows - errors) / (rate - risk)
    inside = torch.where(rate > risk, (passes * (1 + SLACK)).floor(), 0).minimum(last)
    whole = torch.where(errors + curve.error <= risk * last * (1 + SLACK), last, 0)
    kept = torch.where(inside > rows, inside, 0).maximum(whole)
    return torch.cat([kept, kept.new_zeros(1)]).max()


@torch.no_grad()
def selective_risk(
    logits: Tensor,
    target: Tensor,
    *,
    coverage: float,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`SelectiveRisk`."""
    _check("selective_risk", coverage)
    curve = risk_coverage_once(
        "selective_risk",
        logits,
        target,
        weight,
        task=task,
        exact=exact,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return mean_or_nan("selective_risk", *_sums(curve, coverage))


@torch.no_grad()
def coverage_at_risk(
    logits: Tensor,
    target: Tensor,
    *,
    risk: float,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    exact: bool = True,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`CoverageAtRisk`."""
    _check_risk("coverage_at_risk", risk)
    curve = risk_coverage_once(
        "coverage_at_risk",
        logits,
        target,
        weight,
        task=task,
        exact=exact,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return mean_or_nan("coverage_at_risk", _most(curve, risk), curve.totals[0])


class SelectiveRisk(RiskCoverageMetric):
    r"""Share of errors among the most confident predictions, so many as the coverage says.

    Use it where it is settled how many predictions are to be kept; :class:`AURC` is its mean over all coverages.

    .. math:: \mathrm{risk}(c) = \frac{1}{k} \sum_{i \le k} e_{(i)}, \quad k = \lceil c N \rceil

    with :math:`e_{(i)}` whether the prediction of rank i is wrong, the most confident first.

    Args:
        coverage: Share of predictions that are kept, in (0, 1].
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
        >>> from trainkit.calibration.metrics import SelectiveRisk
        >>> metric = SelectiveRisk(0.5, task="binary", input_kind="probs")
        >>> metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)

    Note:
        Where only some of equally confident predictions are kept, the errors among them are spread evenly, which is
        the mean over all orders. A weight counts as so many rows. All else that :class:`AURC` says of targets of
        probabilities and state holds here: exact from the whole sample, so that memory grows with it, or an
        approximation of constant size for ``exact=False``, which takes each cell for a tie. Nothing to average gives
        nan and a warning. Without gradients.

    References:
        Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019.
        arXiv:1805.08206
    """

    def __init__(
        self,
        coverage: float,
        task: Task = "multiclass",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(task, exact, input_kind, ignore_index, validate_args)
        _check("SelectiveRisk", coverage)
        self.coverage = coverage

    def compute(self) -> Tensor:
        return self.mean(*_sums(self.curve(), self.coverage))


class CoverageAtRisk(RiskCoverageMetric):
    r"""Largest share of predictions that can be kept, the most confident first, at an error of at most the risk.

    Use it where it is settled how many errors are allowed among what is kept; :class:`SelectiveRisk` takes the coverage
    and gives the error.

    .. math:: \mathrm{coverage}(r) = \max \Big\{ \frac{k}{N} : \frac{1}{k} \sum_{i \le k} e_{(i)} \le r \Big\}

    with :math:`e_{(i)}` whether the prediction of rank i is wrong, the most confident first; zero if there is no k.

    Args:
        risk: Largest share of errors among the predictions that are kept, in [0, 1].
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
        >>> from trainkit.calibration.metrics import CoverageAtRisk
        >>> metric = CoverageAtRisk(0.4, task="binary", input_kind="probs")
        >>> metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)

    Note:
        The error need not rise with the coverage: the largest k counts, also where a smaller one has a larger error.
        Errors among equally confident predictions are spread evenly, which is the mean over all orders. A weight counts
        as so many rows. A share of errors above the risk by a relative 1e-12 counts as equal. It is chosen on the data
        it is read from, so that new data may have a larger error. All else that :class:`AURC` says of targets of
        probabilities and state holds here: exact from the whole sample, so that memory grows with it, or an
        approximation of constant size for ``exact=False``, which takes each cell for a tie. Nothing to average gives
        nan and a warning. Without gradients.

    References:
        Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019.
        arXiv:1805.08206
    """

    higher_is_better = True

    def __init__(
        self,
        risk: float,
        task: Task = "multiclass",
        exact: bool = True,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(task, exact, input_kind, ignore_index, validate_args)
        _check_risk("CoverageAtRisk", risk)
        self.risk = risk

    def compute(self) -> Tensor:
        curve = self.curve()
        return self.mean(_most(curve, self.risk), curve.totals[0])
