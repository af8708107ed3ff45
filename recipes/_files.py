"""Files that are whole or absent."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

__all__ = ["write_predictions", "write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name and rename it, so that a kill leaves no half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_predictions(trainer: Trainer, rows: list[dict[str, Any]]) -> tuple[int, Path]:
    """Write the rows of all ranks, which took them in turn, to predictions.jsonl; gives their number and the file."""
    gathered: list[Any] = [rows]
    if trainer.world_size > 1:
        gathered = [None] * trainer.world_size
        torch.distributed.all_gather_object(gathered, rows)
    most = max(map(len, gathered))
    ordered = [part[i] for i in range(most) for part in gathered if i < len(part)]
    path = Path(trainer.log_dir or trainer.default_root_dir) / "predictions.jsonl"
    if trainer.is_global_zero:
        write_whole(path, "".join(json.dumps(row) + "\n" for row in ordered))
    return len(ordered), path
