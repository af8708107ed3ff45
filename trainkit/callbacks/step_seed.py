"""Random numbers of a training step that don't depend on what ran before it."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from trainkit._core.checks import check_integer
from trainkit._core.seeds import derive_seed, seed_everywhere

__all__ = ["StepSeed"]


class StepSeed(Callback):
    """Seed every training batch from seed, rank and step, so that dropout is the same after a resume.

    Use it with :class:`~trainkit.data.ResumableLoader`, which does the same for what is drawn while rows are loaded;
    with both, a run that was killed ends with the weights of one that was not, also if ``configure_optimizers`` asks
    for ``trainer.estimated_stepping_batches``. It comes first in the list of callbacks.

    Args:
        seed: Start of the numbers, >= 0.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from trainkit.callbacks import StepSeed
        >>> trainer = Trainer(callbacks=[StepSeed(seed=1)], logger=False, enable_checkpointing=False)

    Note:
        Seeds the global generators of Python, NumPy and torch, on all devices. Under accumulation each batch has
        numbers of its own, since its place in the epoch counts too. Ranks draw different numbers. Validation moves the
        generators without a trace, since the next training batch seeds them again; what is drawn outside of training
        batches, as at the start of an epoch, is not covered. A checkpoint that is written between two batches of one
        accumulated step lacks the gradient of the first: save at steps. Described in no paper.
    """

    def __init__(self, seed: int = 0) -> None:
        check_integer("StepSeed", "seed", seed, minimum=0)
        self.seed = seed

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint, by which Lightning also reports a resume with another seed."""
        return self._generate_state_key(seed=self.seed)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A schedule that asked for ``estimated_stepping_batches`` had the loaders set up before the checkpoint was
        # read, and Lightning tells them where they were only when it sets them up.
        trainer.fit_loop._load_combined_loader_states()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        seed_everywhere(derive_seed("step", self.seed, trainer.global_rank, trainer.global_step, batch_idx))

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.seed = state_dict["seed"]
