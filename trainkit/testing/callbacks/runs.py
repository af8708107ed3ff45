"""A small classifier that knows nothing of trainkit, and its fits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainkit.testing.common import quiet

__all__ = ["BATCH", "ROWS", "RowStream", "Run", "fit", "group_options", "training", "validation"]

ROWS, BATCH, CLASSES = 16, 4, 3
VALIDATION_ROWS, VALIDATION_BATCH = 94, 32
EPOCHS = 2


class Rows(Dataset[dict[str, Any]]):
    """Row i, by its number; every ``ranks``-th from ``rank`` on."""

    def __init__(self, rows: int, start: int = 0, rank: int = 0, ranks: int = 1) -> None:
        self.numbers = range(start + rank, start + rows, ranks)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self.numbers[index]
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(4, generator=generator, dtype=torch.float64)
        # Hard to learn but not by chance, so that a temperature that fits is finite.
        noise = torch.randn(CLASSES, generator=generator, dtype=torch.float64)
        return {"x": x, "target": int((x[:CLASSES] + noise).argmax()), "index": number}


class RowStream(IterableDataset[dict[str, Any]]):
    """The same rows without a length."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = Rows(ROWS, 1000)
        return (rows[i] for i in range(len(rows)))


def training(rank: int = 0, ranks: int = 1) -> Any:
    """Batches of training, in order; on several ranks the rows of each batch in turn."""
    return DataLoader(Rows(ROWS, 1000, rank, ranks), BATCH // ranks)


def validation(rows: int = VALIDATION_ROWS, rank: int = 0, ranks: int = 1) -> Any:
    """Batches of validation, the last one uneven."""
    return DataLoader(Rows(rows, 0, rank, ranks), VALIDATION_BATCH // ranks)


@dataclass
class Run:
    """What is left of a fit.

    Args:
        losses: Loss of each batch.
        weights: Parameters and buffers.
        modes: Whether each module is in training mode, and each parameter is trained.
        logged: What the callbacks logged.
        steps: Steps of the optimizer.
        random: State of the generator of random numbers.
    """

    losses: list[float]
    weights: dict[str, Tensor]
    modes: dict[str, bool]
    logged: dict[str, float]
    steps: int
    random: Tensor


def _network(noisy: bool) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, last = nn.Linear(4, 8, dtype=torch.float64), nn.Linear(8, CLASSES, dtype=torch.float64)
    if not noisy:
        return nn.Sequential(first, nn.Tanh(), last)
    return nn.Sequential(first, nn.BatchNorm1d(8, dtype=torch.float64), nn.Dropout(0.3), last)


def _module(noisy: bool) -> Any:
    from lightning.pytorch import LightningModule

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _network(noisy)
            self.losses: list[float] = []

        def _step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            logits = self.net(batch["x"])
            loss = nn.functional.cross_entropy(logits, batch["target"])
            return {"loss": loss, "logits": logits, "target": batch["target"], "index": batch["index"]}

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
            out = self._step(batch)
            self.losses.append(float(out["loss"].detach()))
            return out

        def validation_step(
            self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0
        ) -> dict[str, Tensor]:
            return self._step(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    return Classifier()


def group_options() -> dict[str, Any]:
    """Options of a Trainer that runs on the group of processes that is already up."""
    import torch.distributed as dist
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Group(LightningEnvironment):
        @property
        def creates_processes_externally(self) -> bool:
            return True

        def world_size(self) -> int:
            return dist.get_world_size()

        def global_rank(self) -> int:
            return dist.get_rank()

        def local_rank(self) -> int:
            return dist.get_rank()

        def set_world_size(self, size: int) -> None:
            pass

        def set_global_rank(self, rank: int) -> None:
            pass

        def teardown(self) -> None:
            pass

    strategy = DDPStrategy(cluster_environment=Group(), process_group_backend="gloo")
    return {"strategy": strategy, "devices": dist.get_world_size(), "use_distributed_sampler": False}


def fit(
    callbacks: Sequence[Any],
    *,
    noisy: bool = False,
    train: Any = None,
    held_out: Any = None,
    save_to: Path | None = None,
    ckpt_path: Path | None = None,
    **options: Any,
) -> Run:
    """Fit the classifier.

    Args:
        callbacks: Of the Trainer.
        noisy: With dropout and batch norm.
        train: Batches of training.
        held_out: Batches of validation.
        save_to: Write a checkpoint here when the last epoch ends.
        ckpt_path: Go on from here.
        options: Of the Trainer, in place of the usual ones.
    """
    from lightning.pytorch import Callback, Trainer

    class Saves(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if save_to is not None:
                trainer.save_checkpoint(save_to)

    module = _module(noisy)
    torch.manual_seed(1)
    usual = {"max_epochs": EPOCHS, "devices": 1, "num_sanity_val_steps": 0}
    with quiet("lightning.pytorch", "lightning.fabric"), TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[*callbacks, Saves()],
            **{**usual, **options},
        )
        trainer.fit(
            module,
            training() if train is None else train,
            validation() if held_out is None else held_out,
            ckpt_path=ckpt_path,
        )
    modes = {f"module {name}": m.training for name, m in module.named_modules()}
    modes |= {f"parameter {name}": p.requires_grad for name, p in module.named_parameters()}
    return Run(
        losses=module.losses,
        weights={name: value.detach().clone() for name, value in module.state_dict().items()},
        modes=modes,
        logged={name: float(value) for name, value in trainer.callback_metrics.items()},
        steps=trainer.global_step,
        random=torch.get_rng_state(),
    )
