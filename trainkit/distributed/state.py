"""Rank and world size; a single process is the world of one."""

import torch.distributed as dist

__all__ = ["is_distributed", "rank", "world_size"]


def is_distributed(group: dist.ProcessGroup | None = None) -> bool:
    """Whether a process group of more than one rank is up."""
    return world_size(group) > 1


def rank(group: dist.ProcessGroup | None = None) -> int:
    """Rank of this process in ``group`` (default: the world); 0 when no group is up."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Number of ranks in ``group`` (default: the world); 1 when no group is up."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1
