"""The vocabulary: literals of common arguments and the names that tensors go by."""

from typing import Literal, TypeAlias

__all__ = ["TENSOR_NAMES", "DistributedKind", "InputKind", "Reduction"]

Reduction: TypeAlias = Literal["none", "mean", "sum"]
DistributedKind: TypeAlias = Literal["local", "gather", "statistics"]
InputKind: TypeAlias = Literal["logits", "probs", "log_probs"]

TENSOR_NAMES = (
    "logits",
    "target",
    "query",
    "key",
    "labels",
    "ids",
    "negatives",
    "exclude",
    "embeddings",
    "features",
    "prediction",
    "scores",
    "student_logits",
    "teacher_logits",
    "chosen_logps",
    "rejected_logps",
    "groups",
    "index",
    "bias_logits",
    "weight",
    "mask",
)
"""Every tensor that a ``forward`` may ask for; :func:`trainkit._core.binding.bind` passes them by name."""
