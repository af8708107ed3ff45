"""Binding by name: the whole protocol between a part and the loop that feeds it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import nn

__all__ = ["accepted", "bind", "pick"]


def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, bool], ...]:
    """Names of a function's parameters and whether each is required; ``self`` and star arguments are left out."""
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        (p.name, p.default is inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
        if p.kind not in skipped and p.name != "self"
    )


def _entry_point(part: Any) -> Callable[..., Any]:
    """The function that a call of ``part`` runs: ``update`` of a metric, ``forward`` of a module, else itself."""
    if isinstance(part, nn.Module):
        # A metric; other modules may have an update of their own that no loop calls.
        if hasattr(part, "update") and hasattr(part, "compute"):
            # Of the instance: a wrapper takes what the metric inside takes.
            return cast("Callable[..., Any]", part.update)
        return type(part).forward
    return part  # type: ignore[no-any-return]


def accepted(part: Any) -> tuple[tuple[str, bool], ...]:
    """Names of the tensors that ``part`` takes, each with whether it is required."""
    return _parameters(_entry_point(part))


def bind(part: Any, available: Mapping[str, Any]) -> dict[str, Any]:
    """Pick from ``available`` what the signature of ``part`` asks for, by name.

    Args:
        part: A loss, metric or other module, or a function.
        available: Tensors by their vocabulary name.

    Returns:
        Keyword arguments for the call.

    Raises:
        ValueError: If a required tensor is missing; names the part, the tensor and what there was.

    Example:
        >>> import torch
        >>> from trainkit.losses import FocalLoss
        >>> batch = {"logits": torch.zeros(2, 3), "target": torch.tensor([0, 2]), "features": torch.zeros(2, 8)}
        >>> sorted(bind(FocalLoss(), batch))
        ['logits', 'target']
    """
    owner = type(part).__name__ if isinstance(part, nn.Module) else getattr(part, "__name__", repr(part))
    return pick(owner, accepted(part), available)


def pick(owner: str, wanted: Sequence[tuple[str, bool]], available: Mapping[str, Any]) -> dict[str, Any]:
    """Pick from ``available`` the ``wanted`` names, each with whether it is required; see :func:`bind`."""
    picked = {}
    for name, required in wanted:
        if name in available:
            picked[name] = available[name]
        elif required:
            there = ", ".join(available) or "nothing"
            raise ValueError(f"{owner}: needs the tensor {name!r}, but only these were given: {there}")
    return picked
