"""Properties of callbacks on several ranks."""

import copy
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trainkit.testing.callbacks.runs import fit, group_options, training, validation
from trainkit.testing.callbacks.state import CallbackCase
from trainkit.testing.faults import compare
from trainkit.testing.pool import Pool
from trainkit.testing.properties import prop

__all__ = ["fit_on_rank"]


def fit_on_rank(cls: type[Any], config: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """What a callback logs, and its state, after a fit; on each rank of a group every so manieth row of each batch."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    callback = cls(**copy.deepcopy(dict(config)))
    run = fit(
        [callback],
        train=training(rank, ranks),
        held_out=validation(rank=rank, ranks=ranks),
        max_epochs=1,
        **(group_options() if ranks > 1 else {}),
    )
    return run.logged, _numbers(callback.state_dict())


def _numbers(state: Any, name: str = "state") -> dict[str, Any]:
    """Tensors and numbers in a state, by where they are."""
    if isinstance(state, Mapping):
        return {k: v for key, value in state.items() for k, v in _numbers(value, f"{name} {key}").items()}
    if isinstance(state, (list, tuple)):
        return _numbers(dict(enumerate(state)), name)
    return {name: state} if isinstance(state, (Tensor, int, float)) else {}


@prop("K8", "ranks", ranks=True, dear=True)
def ranks(case: CallbackCase, pool: Pool | None) -> None:
    """On two ranks, what it logs and its state are on both what they are on one process over all rows."""
    if pool is None:
        raise ValueError("K8 needs a pool of ranks, got None")
    logged, state = fit_on_rank(case.spec.cls, case.config)
    for rank, (own_logged, own_state) in enumerate(pool.run(fit_on_rank, [(case.spec.cls, case.config)] * pool.ranks)):
        compare("what is logged", own_logged, logged, rtol=1e-6, atol=1e-9, rank=rank, ranks=pool.ranks)
        compare("state", own_state, state, rtol=1e-6, atol=1e-9, rank=rank, ranks=pool.ranks)
