"""What the classification recipe answers."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from ._files import write_predictions

__all__ = ["ClassPredictions"]


class ClassPredictions(Callback):
    """Writes predictions.jsonl: for each row of ``predict`` its class and the probabilities of all classes.

    They are calibrated where a ``PostHocCalibration`` stands before it in the list of callbacks. Classes have the names
    that the data module has under ``classes``. The file is written at the end, whole or not at all.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Mapping[str, Tensor],
        batch: Mapping[str, Any],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        probs = outputs["calibrated_probs"] if "calibrated_probs" in outputs else outputs["logits"].float().softmax(1)
        told = getattr(trainer.datamodule, "classes", None)  # type: ignore[attr-defined]
        classes = [str(i) for i in range(probs.shape[1])] if told is None else told
        named = batch.get("name", [None] * len(probs))
        for index, name, best, row in zip(
            batch["index"].tolist(), named, probs.argmax(1).tolist(), probs.tolist(), strict=True
        ):
            source = {"index": index} if name is None else {"index": index, "name": name}
            answer = {"predicted": classes[best], "probabilities": dict(zip(classes, row, strict=True))}
            self._rows.append({**source, **answer})

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        count, path = write_predictions(trainer, self._rows)
        self._rows = []
        rank_zero_info(f"{count:,} rows classified in {path}")
