"""The learning rate over a run."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["warmup_cosine"]


def warmup_cosine(optimizer: Optimizer, warmup: float, steps: int) -> LambdaLR:
    """Rise along a line over the first ``warmup`` share of ``steps``, then fall to zero along a cosine."""
    rise = max(1, round(warmup * steps))

    def share(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise)))

    return LambdaLR(optimizer, share)
