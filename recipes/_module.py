"""What every recipe does the same way."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric

from trainkit.binding import bind
from trainkit.callbacks import publish_figure
from trainkit.optim import param_groups

from ._schedule import warmup_cosine

__all__ = ["RecipeModule"]


class RecipeModule(LightningModule):
    """Loss, optimizer and metrics from the outside; a recipe adds how a batch becomes tensors with names.

    Args:
        loss: Any module; it is given the tensors that its ``forward`` names.
        optimizer: Makes the optimizer from parameter groups.
        metrics: By the name they are logged under; each is given the tensors that its ``update`` names.
        weight_decay: Of weight matrices; biases, norms and embeddings have none.
        warmup: Share of the run in which the learning rate rises, before it falls as a cosine; None keeps it as it is.
    """

    test_after_fit = True

    def __init__(
        self,
        loss: nn.Module,
        optimizer: OptimizerCallable,
        metrics: Mapping[str, Metric],
        weight_decay: float,
        warmup: float | None,
    ) -> None:
        super().__init__()
        self.loss, self.optimizer, self.weight_decay, self.warmup = loss, optimizer, weight_decay, warmup
        self.names = list(metrics)
        self.measures = nn.ModuleList(metrics.values())

    def train_on(self, tensors: Mapping[str, Any], rows: int) -> Tensor:
        """The loss of named tensors, logged."""
        loss: Tensor = self.loss(**bind(self.loss, tensors))
        self.log("train/loss", loss, batch_size=rows, prog_bar=True, sync_dist=True)
        return loss

    def measure(self, tensors: Mapping[str, Any]) -> None:
        """Give every metric what it asks for."""
        metric: Any
        for metric in self.measures:
            metric.update(**bind(metric, tensors))

    def finish(self, stage: str) -> None:
        """Log and draw the metrics on every rank, also one that had no batch, and start anew."""
        metric: Any
        for name, metric in zip(self.names, self.measures, strict=True):
            value = metric.compute()
            if isinstance(value, Tensor):
                self.log(f"{stage}/{name}", value.float(), prog_bar=stage == "val", sync_dist=True)
            if hasattr(metric, "figure") and not self.trainer.sanity_checking:
                publish_figure(self.trainer, f"{stage}/{name}", metric.figure())
            metric.reset()

    def on_validation_epoch_end(self) -> None:
        self.finish("val")

    def on_test_epoch_end(self) -> None:
        self.finish("test")

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(param_groups(self, weight_decay=self.weight_decay))
        if self.warmup is None:
            return optimizer
        schedule = warmup_cosine(optimizer, self.warmup, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
