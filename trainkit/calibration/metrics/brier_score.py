"""Brier score of predicted probabilities."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import check_choice
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Predictions, Task, canonicalize, check_task

__all__ = ["BrierScore", "brier_score"]

Form: TypeAlias = Literal["full", "half", "top_label"]


def _check(owner: str, task: Task, form: Form, input_kind: InputKind, ignore_index: int) -> None:
    check_task(owner, task, input_kind, ignore_index)
    check_choice(owner, "form", form, ("full", "half", "top_label"))


def _sums(inputs: Predictions, form: Form) -> tuple[Tensor, Tensor]:
    """Weighted sum of the scores and sum of the weights."""
    p, t = inputs.probs, inputs.target_probs
    if form == "top_label":
        top = p.argmax(1, keepdim=True)
        p, t = p.gather(1, top), t.gather(1, top)
    # Expected score under a target that holds probabilities; the second term vanishes for an index.
    scores = ((p - t).square() + t * (1 - t)).to(inputs.weight.dtype).sum(1)
    return (inputs.weight * scores).sum() / (2 if form == "half" else 1), inputs.weight.sum()


@torch.no_grad()
def brier_score(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    form: Form = "full",
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`BrierScore`."""
    _check("brier_score", task, form, input_kind, ignore_index)
    inputs = canonicalize(
        "brier_score",
        logits,
        target,
        weight,
        task=task,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return mean_or_nan("brier_score", *_sums(inputs, form))


class BrierScore(StreamingMetric):
    r"""Mean squared distance between predicted probabilities and what happened.

    Use it to compare probabilistic classifiers: it is a proper score, least for the true probabilities, and unlike
    the negative log likelihood no single confident mistake can dominate it. It measures calibration and
    discrimination together.

    .. math:: \mathrm{BS} = \frac{1}{\sum_i w_i} \sum_i w_i \sum_k (p_{ik} - [y_i = k])^2

    ``form="half"`` is half of that; ``form="top_label"`` takes, in place of the sum, the one term of the class that is
    predicted: :math:`(\max_k p_{ik} - [y_i = \arg\max_k p_{ik}])^2`.

    Args:
        task: ``"multiclass"``; ``"binary"`` and ``"multilabel"`` targets are two classes each, so that for them
            ``"half"`` is the usual :math:`(p - y)^2`.
        form: ``"full"`` (in [0, 2]), ``"half"`` or ``"top_label"`` (in [0, 1]).
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out of value and count.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import BrierScore
        >>> metric = BrierScore()
        >>> metric.update(torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2]))
        >>> metric.compute()
        tensor(0.5185, dtype=torch.float64)

    Note:
        The argument is called ``logits`` after the tensor that a loop offers by name, also where ``input_kind`` says
        that it holds probabilities. A target of probabilities gives the expected score of a label drawn from it, which
        is linear in the target: :math:`\sum_k (p_k - t_k)^2 + 1 - \sum_k t_k^2`. State: two fp64 sums (fp32 on mps);
        exact over any split into batches and ranks, also for a rank without data, under any cast and under autocast,
        whose region computes in fp32. Nothing to average gives nan and a warning. Without gradients: train on a loss.

    References:
        Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review 1950.
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.
        doi:10.1198/016214506000001437
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0

    total: Tensor
    weight_sum: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        form: Form = "full",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        _check("BrierScore", task, form, input_kind, ignore_index)
        self.task: Task = task
        self.form: Form = form
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.add_sums("total", "weight_sum")
        self.tell_apart(task, form, input_kind, ignore_index)

    def update(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        inputs = canonicalize(
            "BrierScore",
            logits,
            target,
            weight,
            task=self.task,
            input_kind=self.input_kind,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )
        total, weight_sum = _sums(inputs, self.form)
        self.total = self.total + total
        self.weight_sum = self.weight_sum + weight_sum

    def compute(self) -> Tensor:
        return self.mean(self.total, self.weight_sum)
