"""Training in which some batches are far larger than the rest."""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trainkit.recipes.data.arrays import read_arrays
from trainkit.recipes.data.sets import locate

from trainkit.optim import AdaBelief, LaProp, MVNGrad

__all__ = ["train"]

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adabelief": AdaBelief,
    "laprop": LaProp,
    "mvn_grad": MVNGrad,
}
VALIDATION = 5000
AFTER = 5
"""Steps after a large batch among which the highest loss counts."""
WARMUP = 20
"""First steps, which stay as they are."""


def train(
    seed: int,
    optimizer: Literal["adam", "adabelief", "laprop", "mvn_grad"],
    lr: float,
    steps: int = 1500,
    batch_size: int = 128,
    share: float = 0.01,
    factor: float = 100.0,
) -> dict[str, float]:
    """Train a small network on MNIST; the loss of a ``share`` of the batches is multiplied by ``factor``.

    Which rows make up a batch and which batches are large is drawn from the seed alone, alike for all optimizers.

    Returns:
        ``val/loss``, ``test/loss`` and ``test/accuracy`` at the end, and ``spike``: how far the loss of validation rows
        rises above what it was before a large batch, at its highest in the steps after, on average.
    """
    torch.manual_seed(seed)
    x, y, splits = _mnist(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 128), nn.GELU(), nn.Linear(128, int(y.max()) + 1))
    stepper = OPTIMIZERS[optimizer](network.parameters(), lr=lr)
    draw = torch.Generator().manual_seed(seed)
    large = torch.rand(steps, generator=draw) < share
    large[:WARMUP] = False
    probe = splits["val"][:1000]
    rises: list[float] = []
    before, highest, left = 0.0, -math.inf, 0
    for is_large in large.tolist():
        rows = splits["train"][torch.randint(len(splits["train"]), (batch_size,), generator=draw)]
        if is_large and not left:
            before, highest, left = _evaluate(network, x[probe], y[probe])[0], -math.inf, AFTER
        loss = F.cross_entropy(network(x[rows]), y[rows]) * (factor if is_large else 1.0)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        if left:
            highest, left = max(highest, _evaluate(network, x[probe], y[probe])[0]), left - 1
            if not left:
                rises.append(highest - before)
    val, test = (_evaluate(network, x[splits[name]], y[splits[name]]) for name in ("val", "test"))
    return {"val/loss": val[0], "test/loss": test[0], "test/accuracy": test[1], "spike": fmean(rises)}


def _mnist(seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Pixels in [0, 1], classes, and rows of the splits."""
    told: Any = read_arrays(locate("mnist"))
    order = torch.randperm(len(told.own["train"]), generator=torch.Generator().manual_seed(seed))
    rows = torch.tensor(told.own["train"])[order]
    splits = {"train": rows[VALIDATION:], "val": rows[:VALIDATION], "test": torch.tensor(told.own["test"])}
    return told.x.flatten(1).float() / 255, told.y, splits


@torch.no_grad()
def _evaluate(network: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    logits = network(x)
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).double().mean().item()
