"""Base class of the losses."""

import inspect
from typing import ClassVar

from torch import Tensor, nn

from trainkit._core.checks import check_flag
from trainkit._core.reduction import check_reduction
from trainkit._core.typing import DistributedKind, Reduction

__all__ = ["Loss"]


class Loss(nn.Module):
    """An ``nn.Module`` that stores the hyper-parameters of its constructor under their own names.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        sync: Whether the loss of several ranks is that of one process on the whole batch.
        validate_args: Whether values of the inputs are checked, with one read from the device a call.
    """

    distributed: ClassVar[DistributedKind] = "local"
    """How the loss behaves on several ranks."""

    def __init__(self, reduction: Reduction = "mean", sync: bool = True, validate_args: bool = True) -> None:
        super().__init__()
        owner = type(self).__name__
        check_reduction(owner, reduction)
        check_flag(owner, sync=sync, validate_args=validate_args)
        self.reduction: Reduction = reduction
        self.sync = sync
        self.validate_args = validate_args

    def extra_repr(self) -> str:
        shown = []
        for name in inspect.signature(type(self)).parameters:
            value = getattr(self, name)
            if isinstance(value, nn.Module):
                continue
            shown.append(f"{name}={value.tolist() if isinstance(value, Tensor) else value!r}")
        return ", ".join(shown)
