"""The text that parts show of themselves."""

import inspect

from torch import Tensor, nn

__all__ = ["hyper_parameters"]


def hyper_parameters(part: nn.Module) -> str:
    """Constructor arguments as ``name=value``, read from the attributes that hold them; modules show themselves."""
    shown = []
    for name in inspect.signature(type(part)).parameters:
        value = getattr(part, name)
        if isinstance(value, nn.Module):
            continue
        shown.append(f"{name}={value.tolist() if isinstance(value, Tensor) else value!r}")
    return ", ".join(shown)
