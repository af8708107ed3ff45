"""Properties of optimizers on several ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainkit.testing.faults import compare
from trainkit.testing.optimizers.common import OptimizerCase, build_optimizer, draw_parameters, shapes_of, step_on
from trainkit.testing.optimizers.net import NET_SHAPES, Net, draw_batches
from trainkit.testing.pool import Pool
from trainkit.testing.properties import prop

__all__ = ["fit_on_rank"]


def fit_on_rank(
    cls: type[Any],
    config: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    batches: Sequence[tuple[Tensor, Tensor]],
    sharded: bool = False,
) -> list[Tensor]:
    """Parameters after one step on each batch, under DDP if there are ranks."""
    import torch.distributed as dist

    torch.manual_seed(0)
    net = Net(draw_parameters(shapes))
    model = torch.nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
    if sharded:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = build_optimizer(ZeroRedundancyOptimizer, config, net.parameters(), optimizer_class=cls)
    else:
        optimizer = build_optimizer(cls, config, list(net.parameters()))
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(x) - y).square().mean()
            loss.backward()
            return loss

        step_on(optimizer, closure)
    return [p.detach().clone() for p in net.parameters()]


@prop("O19", "ranks", ranks=True)
def ranks(case: OptimizerCase, pool: Pool | None) -> None:
    """On two ranks, under DDP and with ZeRO, all parameters are those of one process on the whole batches."""
    if pool is None:
        raise ValueError("O19 needs a pool of ranks, got None")
    cls, config, shapes = case.spec.cls, case.config, shapes_of(case, NET_SHAPES)
    batches = draw_batches(6, torch.float64)
    whole = fit_on_rank(cls, config, shapes, batches)
    halves = [[(x[own], y[own]) for x, y in batches] for own in (slice(0, 4), slice(4, 8))]
    for sharded in (False, True):
        got = pool.run(fit_on_rank, [(cls, config, shapes, own, sharded) for own in halves])
        what = "with ZeroRedundancyOptimizer" if sharded else "under DDP"
        for rank, parameters in enumerate(got):
            for i, (own, first, expected) in enumerate(zip(parameters, got[0], whole, strict=True)):
                label = f"parameter {i} of shape {tuple(own.shape)} {what}"
                compare(f"{label}, against rank 0", own, first, rtol=0, atol=0, rank=rank, ranks=2)
                compare(f"{label}, against one process", own, expected, rtol=1e-10, rank=rank, ranks=2)
