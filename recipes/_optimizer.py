"""The optimizer that recipes use if they are told no other."""

from typing import Any

import torch

__all__ = ["adamw"]


def adamw(params: Any) -> torch.optim.Optimizer:
    """AdamW in one kernel, with the usual learning rate of the recipes."""
    return torch.optim.AdamW(params, lr=1e-3, fused=True)
