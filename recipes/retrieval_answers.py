"""What the retrieval recipe answers."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from ._files import write_predictions

__all__ = ["RetrievalAnswers"]


class RetrievalAnswers(Callback):
    """Prints the best keys for the queries of ``predict``, or writes those of the test split to predictions.jsonl.

    Probabilities are calibrated where a ``PostHocCalibration`` stands before it in the list of callbacks.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Mapping[str, Tensor],
        batch: Mapping[str, Any],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        module: Any = pl_module
        probs = outputs["calibrated_probs"] if "calibrated_probs" in outputs else outputs["logits"].softmax(1)
        best = probs.topk(min(module.top_k, probs.shape[1]), dim=1)
        for text, values, places in zip(batch["text"], best.values.tolist(), best.indices.tolist(), strict=True):
            found = [
                {"name": module.corpus.pairs[module.rows[place]].name, "probability": value}
                for value, place in zip(values, places, strict=True)
            ]
            self._rows.append({"query": text, "answers": found})

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rows, self._rows = self._rows, []
        if trainer.datamodule.queries is not None:  # type: ignore[attr-defined]
            for row in rows if trainer.is_global_zero else ():
                print(f"\n{row['query']}")
                print("\n".join(f"  {a['probability']:8.2%}  {a['name']}" for a in row["answers"]))
            return
        count, path = write_predictions(trainer, rows)
        rank_zero_info(f"{count:,} queries answered in {path}")
