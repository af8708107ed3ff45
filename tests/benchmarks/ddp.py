"""The two-sided loss on two gloo ranks, each with its own rows: cost per rank, and exactness against one process."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks import contrastive, peers
from tests.benchmarks.measure import Case, Step

RANKS = 2
ROWS = 4096
RAW = 16


class Towers(nn.Module):
    """Two linear encoders, in float64."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.query = nn.Linear(RAW, width, dtype=torch.float64)
        self.key = nn.Linear(RAW, width, dtype=torch.float64)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.query(x), dim=1), F.normalize(self.key(y), dim=1)


def flat_gradient(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def ours(n: int) -> Callable[[], float]:
    return contrastive.ours("ClipLoss", {"normalize": False}, n, seed=dist.get_rank())


def theirs(n: int) -> Callable[[], float]:
    return contrastive.theirs("open_clip_local", n, seed=dist.get_rank())


def gradient_error(n: int) -> Callable[[], float]:
    """Relative error of the gradient that DDP leaves on this rank, ``n`` rows a rank, against one process."""
    from trainkit.losses import ClipLoss

    def step() -> float:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(n * ranks, RAW, dtype=torch.float64, generator=draw)
        y = x + torch.randn(n * ranks, RAW, dtype=torch.float64, generator=draw)
        torch.manual_seed(1)
        whole = Towers()
        shared = DistributedDataParallel(Towers())
        shared.module.load_state_dict(whole.state_dict())
        peers.open_clip(*whole(x, y)).backward()
        own = slice(rank * n, (rank + 1) * n)
        ClipLoss(temperature=1 / peers.SCALE, learnable=False)(*shared(x[own], y[own])).backward()
        right = flat_gradient(whole)
        return float((flat_gradient(shared) - right).norm() / right.norm())

    return step


def step(function: str, n: int, tiny: int | None = None) -> Step:
    return Step(f"tests.benchmarks.ddp:{function}", {"n": n}, {"n": tiny} if tiny else {})


def cases() -> list[Case]:
    def exact(n: int, form: str) -> Case:
        name = f"ClipLoss fp64 gradient, {form}, {RANKS}x{n} rows"
        return Case(name, step("gradient_error", n), "one process", error=1e-12, ranks=RANKS)

    mine, other = (step(name, ROWS, contrastive.BLOCKED) for name in ("ours", "theirs"))
    cost: dict[str, Any] = {"time": 0.70, "memory": 0.15, "ranks": RANKS}
    return [
        Case(f"ClipLoss {RANKS}x{ROWS} rows", mine, "open_clip local_loss", other, **cost),
        exact(24, "plain"),
        exact(800, "blocked"),
    ]
