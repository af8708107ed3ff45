"""Base class of the losses."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from trainkit._core.buffers import ExactBuffers
from trainkit._core.checks import check_flag
from trainkit._core.reduction import check_reduction
from trainkit._core.repr import hyper_parameters
from trainkit._core.typing import DistributedKind, Reduction

__all__ = ["Loss"]


class Loss(ExactBuffers):
    """A module that stores the hyper-parameters of its constructor under their own names.

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

    def register_constant(self, name: str, values: Sequence[float] | Tensor | None) -> None:
        """Keep hyper-parameters as a buffer that moves with the module but never loses precision to a cast.

        They belong to the configuration: ``state_dict`` leaves them out.
        """
        constant = None if values is None else torch.as_tensor(values, dtype=torch.float64).clone()
        self.register_exact(name, constant, persistent=False)

    def extra_repr(self) -> str:
        return hyper_parameters(self)
