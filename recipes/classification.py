"""Tell classes apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric

from ._confusion import Accuracy, BalancedAccuracy
from ._module import RecipeModule
from ._optimizer import adamw
from ._row_loss import MeanLoss, row_losses

__all__ = ["ClassificationModule"]


class ClassificationModule(RecipeModule):
    """A network that gives a logit for each class.

    Batches are mappings with the rows ``x``, ``target`` and ``index``. Loss and metrics get by name what they ask for:
    ``logits``, ``target`` and ``index``; the logits also as ``input``, which losses of torch call them; metrics also
    ``probs``, as ``preds`` too, which torchmetrics calls them. The logged ``val/loss`` and ``test/loss`` are means of
    what the loss gives for each row, class weights included, whatever the batches and ranks.

    Args:
        network: Gives logits of shape (N, C). One with a method ``build(in_shape, num_classes)``, as ``ConvNet`` and
            ``MLP``, is built here; any other is taken as it is.
        loss: Any loss on ``logits`` and ``target``.
        num_classes: Number of classes, C; the command line takes it from the data.
        in_shape: Shape of a row, as (C, H, W) or (D,); the command line takes it from the data. None for a network
            that needs no building.
        optimizer: Makes the optimizer from parameter groups; AdamW with a learning rate of 1e-3 by default.
        metrics: More metrics, by name.
        weight_decay: Of weight matrices.
        warmup: Share of the run in which the learning rate rises; None keeps it as it is.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: nn.Module,
        num_classes: int,
        in_shape: Sequence[int] | None = None,
        optimizer: OptimizerCallable = adamw,
        metrics: dict[str, Metric] | None = None,
        weight_decay: float = 0.01,
        warmup: float | None = 0.1,
    ) -> None:
        usual = {
            "loss": MeanLoss(),
            "accuracy": Accuracy(num_classes),
            "balanced_accuracy": BalancedAccuracy(num_classes),
        }
        super().__init__(loss, optimizer, {**usual, **(metrics or {})}, weight_decay, warmup)
        self.network, self.num_classes = network, num_classes
        build: Any = getattr(network, "build", None)
        if in_shape is not None and build is not None:
            build(in_shape, num_classes)

    def setup(self, stage: str) -> None:
        """Learn the names of the classes."""
        classes = getattr(self.trainer.datamodule, "classes", None)  # type: ignore[attr-defined]
        for metric in self.measures:
            if isinstance(metric, BalancedAccuracy):
                metric.classes = classes

    def _logits(self, batch: Mapping[str, Any]) -> Tensor:
        logits: Tensor = self.network(batch["x"])
        wanted = (len(batch["x"]), self.num_classes)
        if logits.shape != wanted:
            told = f"must give a logit for each class, shape {wanted}, got {tuple(logits.shape)}"
            raise ValueError(f"{type(self.network).__name__}: {told}")
        return logits

    def _named(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        logits = self._logits(batch)
        return {"logits": logits, "target": batch["target"], "input": logits, "index": batch["index"]}

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        return self.train_on(self._named(batch), len(batch["x"]))

    def _evaluate(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        tensors = self._named(batch)
        probs = tensors["logits"].float().softmax(1)
        losses = row_losses(self.loss, tensors, len(probs))
        self.measure({**tensors, "probs": probs, "preds": probs, "row_losses": losses})
        return {name: tensors[name] for name in ("logits", "target", "index")}

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch)

    def test_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return self._evaluate(batch)

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return {"logits": self._logits(batch), "index": batch["index"]}
