"""Records of the parts of trainkit.distributed that are classes."""

import torch

from trainkit.distributed import MemoryQueue
from trainkit.testing import BadCall, ModuleSpec


def enqueue(queue, inputs):
    queue.enqueue(inputs["embeddings"], inputs["labels"])
    return {"features": queue.features, "labels": queue.feature_labels}


def last_rows(embeddings, labels, size, dim, state):
    held = state["filled"]
    rows = [*zip(state["memory"][:held], state["memory_labels"][:held], strict=True)]
    rows += zip(embeddings, labels, strict=True)
    kept = rows[max(0, len(rows) - size) :]
    return {"features": [row for row, _ in kept], "labels": [label for _, label in kept]}


SPECS = (
    ModuleSpec(
        cls=MemoryQueue,
        kind="embeddings",
        call=enqueue,
        configs=({"size": 20, "dim": 4}, {"size": 5, "dim": 4}, {"size": 1, "dim": 4}),
        reference=last_rows,
        errors=(
            BadCall(ValueError, "size must be >= 1, got 0", {"size": 0}),
            BadCall(TypeError, "dim must be an integer, got 2.5", {"dim": 2.5}),
            BadCall(ValueError, "embeddings must have shape (N, 4)", inputs={"embeddings": torch.zeros(4, 3)}),
            BadCall(TypeError, "labels must be int64", inputs={"labels": torch.zeros(4)}),
        ),
    ),
)
