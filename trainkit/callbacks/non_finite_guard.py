"""Stop a run at the first loss that is no finite number."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from trainkit._core.checks import check_flag
from trainkit.distributed import gather_rows

__all__ = ["NonFiniteGuard"]

SHOWN = 10
"""Rows and parameters that a message names at most."""


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more


class NonFiniteGuard(Callback):
    """Stop at the first loss that is NaN or infinite, before it reaches the weights, and say where it came from.

    Use it in every run: weights and checkpoints stay those of the last good step, and the message names step, rank,
    batch and, where the batch is a mapping with an entry ``index``, the rows.

    Args:
        gradients: Look at the gradients after each backward too, and name the parameters; one more pass over them.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from trainkit.callbacks import NonFiniteGuard
        >>> trainer = Trainer(callbacks=[NonFiniteGuard()], logger=False, enable_checkpointing=False)

    Note:
        Raises FloatingPointError on all ranks at the same batch, whichever rank it came from, so that none waits
        for the others; that takes a small collective and one read from the device a batch. Gradients are not looked at
        under fp16 scaling, where infinite ones are part of the method. Changes nothing else in the training. Described
        in no paper.
    """

    def __init__(self, gradients: bool = False) -> None:
        check_flag("NonFiniteGuard", gradients=gradients)
        self.gradients = gradients
        self._batch: Any = None
        self._batch_idx = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._batch, self._batch_idx = batch, batch_idx

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        value = loss.detach().float().sum()
        self._require_finite(trainer, value, f"the loss is {float(value)}" if not value.isfinite() else "")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.gradients or getattr(trainer.precision_plugin, "scaler", None) is not None:
            return
        named = [(name, p.grad) for name, p in pl_module.named_parameters() if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(g) for _, g in named]) if named else torch.zeros(1)
        wrong = [name for (name, _), fine in zip(named, norms.isfinite().tolist(), strict=False) if not fine]
        self._require_finite(trainer, norms.sum(), f"the gradients of {_listed(wrong)} are not finite" if wrong else "")

    def _require_finite(self, trainer: Trainer, value: Tensor, found: str) -> None:
        """Raise on every rank if any has found something."""
        (bad,), _ = gather_rows(torch.tensor([bool(found)], device=value.device), call="NonFiniteGuard")
        ranks = bad.nonzero()[:, 0].tolist()
        if not ranks:
            return
        place = f"step {trainer.global_step}, epoch {trainer.current_epoch}, batch {self._batch_idx}"
        if found:
            raise FloatingPointError(f"NonFiniteGuard: {found} on rank {trainer.global_rank} at {place}{self._rows()}")
        raise FloatingPointError(f"NonFiniteGuard: rank {ranks[0]} found something that is not finite at {place}")

    def _rows(self) -> str:
        index = self._batch.get("index") if isinstance(self._batch, Mapping) else None
        if index is None:
            return ""
        rows = index.flatten().tolist() if isinstance(index, Tensor) else list(index)
        return f", rows {_listed([str(row) for row in rows])}"
