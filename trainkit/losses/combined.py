"""A weighted sum of losses, each fed by name."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from trainkit._core.binding import accepted, pick
from trainkit._core.checks import check_choice, check_number, reject
from trainkit._core.reduction import graph_zero

__all__ = ["CombinedLoss", "Ramp"]

RampShape: TypeAlias = Literal["linear", "cosine"]


class Ramp:
    r"""A weight that changes over training progress.

    .. math::

        w(s) = \text{start} + (\text{end} - \text{start})\,
        f\left(\frac{s - \text{begin}}{\text{until} - \text{begin}}\right)

    with s the progress in [0, 1] and f the identity (linear) or (1 - cos(pi u)) / 2 (cosine), clamped to [0, 1].

    Args:
        start: Weight up to ``begin``.
        end: Weight from ``until`` on.
        begin: Progress at which the change begins, in [0, 1).
        until: Progress at which it ends, in (``begin``, 1].
        shape: ``"linear"`` or ``"cosine"``.

    Example:
        >>> import torch
        >>> Ramp(0.0, 2.0, until=0.5)(torch.tensor(0.25))
        tensor(1.)
    """

    def __init__(
        self, start: float, end: float, begin: float = 0.0, until: float = 1.0, shape: RampShape = "linear"
    ) -> None:
        for name, value in {"start": start, "end": end}.items():
            check_number("Ramp", name, value)
        check_number("Ramp", "begin", begin, minimum=0, maximum=1, open_maximum=True)
        check_number("Ramp", "until", until, minimum=begin, maximum=1, open_minimum=True)
        check_choice("Ramp", "shape", shape, ("linear", "cosine"))
        self.start = start
        self.end = end
        self.begin = begin
        self.until = until
        self.shape: RampShape = shape

    def __call__(self, progress: Tensor) -> Tensor:
        """Weight at ``progress``, a scalar tensor in [0, 1]."""
        done = ((progress - self.begin) / (self.until - self.begin)).clamp(0, 1)
        if self.shape == "cosine":
            done = (1 - torch.cos(math.pi * done)) / 2
        return self.start + (self.end - self.start) * done

    def __repr__(self) -> str:
        return f"Ramp({self.start}, {self.end}, begin={self.begin}, until={self.until}, shape={self.shape!r})"


class CombinedLoss(nn.Module):
    r"""Weighted sum of losses that take different tensors.

    Use it to train on several losses at once, or to let one fade into another. Each part gets by name the tensors that
    its ``forward`` asks for.

    .. math:: L = \sum_j w_j(s)\, L_j

    Args:
        parts: Pairs of weight and loss. A weight is a number or a :class:`Ramp` over training progress s.

    Shape:
        - inputs: what the parts take; data first, target second, everything by keyword as well
        - output: (), or what the parts return with ``reduction="none"``

    Example:
        >>> import torch
        >>> from trainkit.losses import CombinedLoss, FocalLoss, Ramp, SmoothedCrossEntropyLoss
        >>> loss = CombinedLoss([(1.0, SmoothedCrossEntropyLoss()), (Ramp(0.0, 1.0), FocalLoss())])
        >>> logits, target = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
        >>> loss(logits, target)
        tensor(0.3365)
        >>> loss.set_progress(1.0)
        >>> loss(logits, target)
        tensor(0.3407)

    Note:
        A missing tensor raises, naming the part. Every part behaves on ranks, in reduced precision and on degenerate
        batches as it does alone. Parts must share one ``reduction``. The progress is a buffer in ``state_dict``; call
        :meth:`set_progress` with the fraction of the training that is done. A part whose weight is 0 still counts as
        used, so that DDP sees its parameters. There is no paper.
    """

    progress: Tensor

    def __init__(self, parts: list[tuple[float | Ramp, nn.Module]]) -> None:
        super().__init__()
        if not parts:
            reject("CombinedLoss", "parts", "hold at least one pair of weight and loss", parts)
        for part in parts:
            if not isinstance(part, Sequence) or len(part) != 2 or not isinstance(part[1], nn.Module):
                reject("CombinedLoss", "parts", "hold pairs of weight and loss", part, TypeError)
            if not isinstance(part[0], Ramp):
                check_number("CombinedLoss", "weight", part[0])
        reductions = {loss.reduction for _, loss in parts if hasattr(loss, "reduction")}
        if len(reductions) > 1:
            reject("CombinedLoss", "parts", "share one reduction", sorted(map(str, reductions)))
        self.weights = [weight if isinstance(weight, Ramp) else float(weight) for weight, _ in parts]
        self.losses = nn.ModuleList(loss for _, loss in parts)
        # Read once: a signature can't be looked at while compiling.
        self._wanted = [(type(loss).__name__, accepted(loss)) for loss in self.losses]
        self.register_buffer("progress", torch.zeros(()))

    @property
    def parts(self) -> list[tuple[float | Ramp, nn.Module]]:
        """Pairs of weight and loss."""
        return list(zip(self.weights, self.losses, strict=True))

    def extra_repr(self) -> str:
        return f"weights={self.weights}"

    def set_progress(self, progress: float) -> None:
        """Set the fraction of the training that is done, in [0, 1]; ramps follow it."""
        check_number("CombinedLoss", "progress", progress, minimum=0, maximum=1)
        self.progress.fill_(progress)

    def _names(self) -> list[str]:
        """Name of each part: its class, numbered where a class comes twice."""
        names: list[str] = []
        for loss in self.losses:
            name = type(loss).__name__
            names.append(name if name not in names else f"{name}_{sum(n.split('_')[0] == name for n in names)}")
        return names

    def forward(
        self,
        logits: Tensor | None = None,
        target: Tensor | None = None,
        *,
        query: Tensor | None = None,
        key: Tensor | None = None,
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        negatives: Tensor | None = None,
        exclude: Tensor | None = None,
        embeddings: Tensor | None = None,
        features: Tensor | None = None,
        prediction: Tensor | None = None,
        scores: Tensor | None = None,
        student_logits: Tensor | None = None,
        teacher_logits: Tensor | None = None,
        chosen_logps: Tensor | None = None,
        rejected_logps: Tensor | None = None,
        groups: Tensor | None = None,
        index: Tensor | None = None,
        bias_logits: Tensor | None = None,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        return_parts: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        given: Mapping[str, Tensor | None] = {
            "logits": logits,
            "target": target,
            "query": query,
            "key": key,
            "labels": labels,
            "ids": ids,
            "negatives": negatives,
            "exclude": exclude,
            "embeddings": embeddings,
            "features": features,
            "prediction": prediction,
            "scores": scores,
            "student_logits": student_logits,
            "teacher_logits": teacher_logits,
            "chosen_logps": chosen_logps,
            "rejected_logps": rejected_logps,
            "groups": groups,
            "index": index,
            "bias_logits": bias_logits,
            "weight": weight,
            "mask": mask,
        }
        available = {name: tensor for name, tensor in given.items() if tensor is not None}
        values = [
            loss(**pick(name, wanted, available))
            for loss, (name, wanted) in zip(self.losses, self._wanted, strict=True)
        ]
        total = graph_zero(*values)
        for factor, value in zip(self.weights, values, strict=True):
            total = total + (factor(self.progress).to(value.dtype) if isinstance(factor, Ramp) else factor) * value
        if not return_parts:
            return total
        return total, {name: value.detach() for name, value in zip(self._names(), values, strict=True)}
