"""Changed copies of images."""

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["flip_and_shift"]


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
    down, right = (
        torch.randint(2 * m + 1, (rows, 1)) + torch.arange(n) for m, n in ((most[0], height), (most[1], width))
    )
    return padded[torch.arange(rows)[:, None, None], down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)
