"""Small networks for images and vectors."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

__all__ = ["MLP", "ConvNet"]


class BuiltNetwork(nn.Module):
    """A network that learns the shape of a row and the number of classes from :meth:`build`, before its first use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: nn.Module | None = None

    def build(self, in_shape: Sequence[int], num_classes: int) -> None:
        """Make the layers for rows of ``in_shape``; a recipe calls it with what its data says."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.layers is None:
            raise RuntimeError(f"{type(self).__name__}: call build(in_shape, num_classes) before the first forward")
        logits: Tensor = self.layers(x)
        return logits


class ConvNet(BuiltNetwork):
    """Three convolutions with batch norm, a mean over all places and a linear layer.

    Use it for small images of any size. Batch norm sees the rows of its own rank only: on GPUs set
    ``trainer.sync_batchnorm`` where ranks have few rows each.

    Args:
        width: Channels of the first convolution; the others have two and four times as many.
        dropout: Before the linear layer.
    """

    def __init__(self, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.width, self.dropout = width, dropout

    def build(self, in_shape: Sequence[int], num_classes: int) -> None:
        if len(in_shape) != 3:
            raise ValueError(f"ConvNet: in_shape must be (C, H, W), an image, got {tuple(in_shape)}; MLP takes vectors")
        widths = [in_shape[0], self.width, 2 * self.width, 4 * self.width]
        blocks = []
        for i, (before, after) in enumerate(pairwise(widths)):
            # Images of a few pixels have nothing left to halve.
            halve = nn.MaxPool2d(2) if i < 2 and min(in_shape[1:]) >= 2 ** (i + 1) else nn.Identity()
            blocks += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), halve]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(self.dropout), nn.Linear(widths[-1], num_classes)]
        self.layers = nn.Sequential(*blocks, *head)


class MLP(BuiltNetwork):
    """Linear layers with GELU between them.

    Use it for vectors, or for images as vectors of their pixels.

    Args:
        hidden: Width of the hidden layers.
        depth: Number of hidden layers.
        dropout: After each hidden layer.
    """

    def __init__(self, hidden: int = 128, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden, self.depth, self.dropout = hidden, depth, dropout

    def build(self, in_shape: Sequence[int], num_classes: int) -> None:
        widths = [math.prod(in_shape), *[self.hidden] * self.depth]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.GELU(), nn.Dropout(self.dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
