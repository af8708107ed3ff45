"""What is done to rows before a network sees them."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["flip_and_shift", "statistics"]

BLOCK = 4096
"""Rows that are summed up at once."""


def flip_and_shift(x: Tensor) -> Tensor:
    """Flip half of the images left to right, and move each by up to an eighth of its size; zeros come in.

    Draws from torch's global generator, which a ``ResumableLoader`` seeds for each batch.

    Args:
        x: (N, C, H, W).
    """
    rows, _, height, width = x.shape
    x = torch.where(torch.rand(rows)[:, None, None, None] < 0.5, x.flip(3), x)
    most = (height // 8, width // 8)
    padded = F.pad(x, (most[1], most[1], most[0], most[0])).permute(0, 2, 3, 1)
    down, right = (torch.randint(0, 2 * m + 1, (rows, 1)) + torch.arange(n) for m, n in zip(most, (height, width)))
    return padded[torch.arange(rows)[:, None, None], down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)


def statistics(x: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and deviation over ``rows`` of each channel of images or entry of vectors, in a shape to go with a batch.

    The deviation is 1 where all values are alike.
    """
    over = [0, 2, 3] if x.dim() == 4 else [0]

    def blocks() -> Iterator[Tensor]:
        return (x[list(rows[i : i + BLOCK])].double() for i in range(0, len(rows), BLOCK))

    count = len(rows) * x[0, 0].numel()
    mean = torch.stack([block.sum(over, keepdim=True) for block in blocks()]).sum(0) / count
    variance = torch.stack([(block - mean).square().sum(over, keepdim=True) for block in blocks()]).sum(0) / count
    # Equal values differ from their mean by rounding.
    std = torch.where(variance > 1e-24 * (1 + mean.square()), variance.sqrt(), 1)
    return mean.float(), std.float()
