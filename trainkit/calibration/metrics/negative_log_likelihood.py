"""Negative log likelihood of predicted probabilities."""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit._core.checks import check_flag, check_integer, reject
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.typing import InputKind
from trainkit.calibration._common import FLOOR, Predictions, Task, canonicalize, check_classes, check_task

__all__ = ["NegativeLogLikelihood", "negative_log_likelihood"]


def _check(
    owner: str, task: Task, num_classes: int | None, per_class: bool, input_kind: InputKind, ignore_index: int
) -> None:
    check_task(owner, task, input_kind, ignore_index)
    check_flag(owner, per_class=per_class)
    if num_classes is not None:
        check_integer(owner, "num_classes", num_classes, minimum=1)
    elif per_class and task != "binary":
        reject(owner, "num_classes", "be given for per_class", num_classes)


class _Sums(NamedTuple):
    total: Tensor
    weight_sum: Tensor
    clamped: Tensor


def _sums(inputs: Predictions, per_class: bool, labels: int | None) -> _Sums:
    """Weighted sums of -log p and of the weights, and how many probabilities were clamped.

    Args:
        inputs: Predictions and targets.
        per_class: Whether sums are per class.
        labels: Number of labels if rows belong to labels in turn, None if they are told apart by their class.
    """
    values, shares, soft = inputs.values, inputs.weight.unsqueeze(1), inputs.target.is_floating_point()
    if soft:
        shares = shares * inputs.target
    else:
        values = values.gather(1, inputs.target.unsqueeze(1))
    low = values.isneginf() if inputs.logarithmic else values < FLOOR
    log_p = torch.where(low, math.log(FLOOR), values if inputs.logarithmic else values.clamp_max(1).log())
    totals = -shares * log_p
    clamped = (low & (shares > 0)).sum()
    if not per_class:
        return _Sums(totals.sum(), inputs.weight.sum(), clamped)
    if labels is not None:
        return _Sums(totals.sum(1).view(-1, labels).sum(0), inputs.weight.view(-1, labels).sum(0), clamped)
    if soft:
        return _Sums(totals.sum(0), shares.sum(0), clamped)
    empty = totals.new_zeros(inputs.values.shape[1])
    by_class = empty.index_add(0, inputs.target, totals.squeeze(1))
    return _Sums(by_class, empty.index_add(0, inputs.target, shares.squeeze(1)), clamped)


def _warn_clamped(owner: str, count: Tensor) -> None:
    message = (
        f"{owner}: {int(count)} probabilities of targets below {FLOOR:g} were clamped to it; see the count `clamped`"
    )
    warnings.warn(message, UserWarning, stacklevel=3)


@torch.no_grad()
def negative_log_likelihood(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    per_class: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`NegativeLogLikelihood`."""
    owner = "negative_log_likelihood"
    _check(owner, task, num_classes, per_class, input_kind, ignore_index)
    inputs = canonicalize(
        owner,
        logits,
        target,
        weight,
        task=task,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    check_classes(owner, logits, task, num_classes)
    sums = _sums(inputs, per_class, num_classes if task == "multilabel" else None)
    if sums.clamped:
        _warn_clamped(owner, sums.clamped)
    return mean_or_nan(owner, sums.total, sums.weight_sum)


class NegativeLogLikelihood(StreamingMetric):
    r"""Mean of the negative logarithm of the probability that was given to what happened.

    Use it to compare probabilistic classifiers and to choose a temperature: it is a proper score, least for the true
    probabilities. A single confident mistake weighs without limit; where that misleads, use the Brier score.

    .. math:: \mathrm{NLL} = -\frac{1}{\sum_i w_i} \sum_i w_i \sum_k t_{ik} \log p_{ik}

    with t the target as probabilities: one for the class of the target, zero for the others.

    Args:
        task: ``"multiclass"``; ``"binary"`` and ``"multilabel"`` targets are two classes each, and their mean is over
            all labels.
        num_classes: Number of classes or labels, needed for ``per_class`` unless the task is binary.
        per_class: Give one value a class of the target (of a label, for ``"multilabel"``); nan for a class that no
            target has.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out of value and count.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``per_class``, (C,), two classes for binary; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import NegativeLogLikelihood
        >>> metric = NegativeLogLikelihood()
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2]))
        >>> metric.compute()
        tensor(0.8606, dtype=torch.float64)

    Note:
        The argument is called ``logits`` after the tensor that a loop offers by name, also where ``input_kind`` says
        that it holds probabilities. From logits the logarithm is that of softmax or sigmoid and never infinite. A
        probability of a target below 1e-12 is clamped to it, with one warning in the life of the metric; the state
        ``clamped`` counts them since the last reset, on this rank. State: fp64 sums (fp32 on mps) and that count; exact
        over any split into batches and ranks, also for a rank without data, under any cast and under autocast, whose
        region computes in fp32. Nothing to average gives nan and a warning. Without gradients: train on a loss.

    References:
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0

    total: Tensor
    weight_sum: Tensor
    clamped: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        num_classes: int | None = None,
        per_class: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        _check("NegativeLogLikelihood", task, num_classes, per_class, input_kind, ignore_index)
        self.task: Task = task
        self.num_classes = num_classes
        self.per_class = per_class
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self._warned = False
        shape = () if not per_class else (2,) if task == "binary" or num_classes is None else (num_classes,)
        self.add_sums("total", "weight_sum", shape=shape)
        self.add_counts("clamped")
        self.tell_apart(task, num_classes, per_class, input_kind, ignore_index)

    def update(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        inputs = canonicalize(
            "NegativeLogLikelihood",
            logits,
            target,
            weight,
            task=self.task,
            input_kind=self.input_kind,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )
        check_classes("NegativeLogLikelihood", logits, self.task, self.num_classes)
        sums = _sums(inputs, self.per_class, self.num_classes if self.task == "multilabel" else None)
        self.total = self.total + sums.total
        self.weight_sum = self.weight_sum + sums.weight_sum
        self.clamped = self.clamped + sums.clamped

    def compute(self) -> Tensor:
        # Here and not in update, which would have to wait for the device at every batch.
        if not self._warned and self.clamped:
            self._warned = True
            _warn_clamped("NegativeLogLikelihood", self.clamped)
        return self.mean(self.total, self.weight_sum)
