"""How often a change of the predictions, as by a calibrator, changes the predicted class."""

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_flag
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task, check_task
from trainkit.calibration.metrics._changes import PARTS, Tie, change_sums

__all__ = ["TopOneChangeRate", "top_one_change_rate"]


def _check(owner: str, task: Task, tie: Tie, return_parts: bool, input_kind: InputKind, ignore_index: int) -> None:
    check_task(owner, task, input_kind, ignore_index)
    check_choice(owner, "tie", tie, ("keep", "first"))
    check_flag(owner, return_parts=return_parts)


def _told(rate: Tensor, parts: Tensor, return_parts: bool) -> Tensor | dict[str, Tensor]:
    return {"rate": rate, **dict(zip(PARTS, parts.clone(), strict=True))} if return_parts else rate


@torch.no_grad()
def top_one_change_rate(
    logits: Tensor,
    new_logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    tie: Tie = "keep",
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`TopOneChangeRate`."""
    owner = "top_one_change_rate"
    _check(owner, task, tie, return_parts, input_kind, ignore_index)
    parts, weight_sum = change_sums(
        owner,
        logits,
        new_logits,
        target,
        weight,
        task=task,
        tie=tie,
        input_kind=input_kind,
        ignore_index=ignore_index,
        validate_args=validate_args,
    )
    return _told(mean_or_nan(owner, parts[0], weight_sum), parts, return_parts)


class TopOneChangeRate(StreamingMetric):
    r"""Share of rows whose predicted class changes when predictions are changed, as by a calibrator.

    Use it beside a calibration error: a calibrator that changes predictions can lower the error and cost accuracy.

    .. math:: \mathrm{TPCR} = \frac{1}{\sum_i w_i} \sum_i w_i [\arg\max_k p_{ik} \ne \arg\max_k q_{ik}]

    with p the predictions before the change and q those after it.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        tie: Where the class predicted before is among several largest ones afterwards: ``"keep"`` counts it as
            unchanged; ``"first"`` takes the first of these, as argmax does, so that calibrators which round to few
            values look worse for the order of the classes.
        return_parts: Give a dict with the rate and what became of the changed rows, in place of the rate.
        input_kind: What ``logits`` and ``new_logits`` hold: ``"logits"``, ``"probs"`` or ``"log_probs"``; not guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: before the change, (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...)
          for binary
        - new_logits: after the change, as logits
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of ``rate`` and of the weights ``changed``, ``right_to_wrong``,
          ``wrong_to_right`` and ``wrong_to_wrong``, which is zero for two classes; float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import TopOneChangeRate
        >>> metric = TopOneChangeRate()
        >>> before = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
        >>> metric.update(before, torch.tensor([[1.0, 2.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)

    Note:
        Of equal values before the change the first class is predicted. The values given are compared, without a softmax
        that could round them to ties; those of binary targets and labels with even odds, where class 0 is predicted.
        The rate does not depend on the target, except that ignored rows are left out. A target of probabilities counts
        as its expectation. State: five fp64 sums (fp32 on mps), exact over any split into batches and ranks. Nothing
        to average gives nan and a warning. Without gradients.

    References:
        Kim, Chung and Jang, "Let Confidence Change, Not the Prediction: Prediction-Preserving Repair for Post-hoc
        Calibration", 2026. arXiv:2609.01072
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    parts: Tensor
    weight_sum: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        tie: Tie = "keep",
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        _check("TopOneChangeRate", task, tie, return_parts, input_kind, ignore_index)
        self.task: Task = task
        self.tie: Tie = tie
        self.return_parts = return_parts
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.add_sums("parts", shape=(len(PARTS),))
        self.add_sums("weight_sum")
        self.tell_apart(task, tie, input_kind, ignore_index)

    def update(self, logits: Tensor, new_logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        parts, weight_sum = change_sums(
            "TopOneChangeRate",
            logits,
            new_logits,
            target,
            weight,
            task=self.task,
            tie=self.tie,
            input_kind=self.input_kind,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )
        self.parts = self.parts + parts
        self.weight_sum = self.weight_sum + weight_sum

    def compute(self) -> Tensor | dict[str, Tensor]:
        return _told(self.mean(self.parts[0], self.weight_sum), self.parts, self.return_parts)
