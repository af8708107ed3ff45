"""Parameters that lie on several ranks, and the part of them that this process holds."""

from typing import Any

from torch import Tensor

from trainkit.optim._tape import Layout

__all__ = ["is_sharded", "layout_of", "local"]


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    # By its attribute: importing DTensor costs programs without ranks a second.
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this process holds; other tensors as they are."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def layout_of(owner: str, parameter: Tensor, gradient: Tensor) -> Layout:
    """How a DTensor lies on ranks, whose gradient must lie alike.

    Raises:
        ValueError: If parameter and gradient lie differently, or a placement is neither shard nor replica.
    """
    entries = parameter.numel() * (2 if parameter.is_complex() else 1)
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
    placements = parameter.placements  # type: ignore[attr-defined]
    other = getattr(gradient, "placements", None)
    if placements != other or any(p.is_partial() for p in placements):
        raise ValueError(f"{owner}: gradients must lie on the ranks as their parameters, got {other} for {placements}")
    groups = tuple(mesh.get_group(i) for i, placement in enumerate(placements) if placement.is_shard())
    return Layout(entries, groups)
