"""A small net and its data, for fits in Lightning and on ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["NET_SHAPES", "Net", "draw_batches"]

NET_SHAPES = ((4, 3), (3,))


class Net(nn.Module):
    """One layer: a matrix and, for optimizers that take vectors, a bias.

    Args:
        parameters: Parameters of the shapes.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameters)

    def forward(self, x: Tensor) -> Tensor:
        weight, *bias = self.weights
        out: Tensor = x @ weight + (bias[0] if bias else 0)
        return out.tanh()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared error."""
        return (self.forward(x) - y).square().mean()


def draw_batches(count: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of 8 rows."""
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.randn(8, 7, dtype=torch.float64, generator=generator).to(dtype) for _ in range(count)]
    return [(rows[:, :4], rows[:, 4:]) for rows in drawn]
