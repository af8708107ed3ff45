"""The learning rate over a run."""

import math

from lightning.pytorch import Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["total_steps", "warmup_cosine"]


def total_steps(trainer: Trainer) -> int:
    """Steps of the whole run, also after a resume."""
    steps = int(trainer.estimated_stepping_batches)
    # To count, Lightning sets the loader up; it would then not do so again once a checkpoint has been read, and the
    # loader would not learn where in the epoch it was.
    trainer.fit_loop._combined_loader = None
    return steps


def warmup_cosine(optimizer: Optimizer, warmup: float, steps: int) -> LambdaLR:
    """Rise along a line over the first ``warmup`` share of ``steps``, then fall to zero along a cosine."""
    rise = max(1, round(warmup * steps))

    def share(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise)))

    return LambdaLR(optimizer, share)
