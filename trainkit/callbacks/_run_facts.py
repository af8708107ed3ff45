"""What ran where: facts of a run for people who read about it later."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, TypeAlias

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

import trainkit

__all__ = ["checkpoints", "configuration", "datasets", "directions", "host", "impersonal", "parameters", "title"]

Rows: TypeAlias = list[tuple[str, ...]]
SAVED = "config_filename"
"""Attribute of the callback by which LightningCLI saves the configuration of a run."""


def impersonal(text: str, folder: Path | None) -> str:
    """The text with paths in the run folder and the working directory made relative, and the home folder as ``~``."""
    for place in (folder, Path.cwd()):
        root = str(place.resolve()) if place is not None else "/"
        if root != "/":
            text = re.sub(rf"{re.escape(root)}(?=[/\W]|$)/?", lambda found: "./" if found[0][-1] != "/" else "", text)
    home = str(Path.home())
    return text if home == "/" else re.sub(rf"{re.escape(home)}(?![\w-])", "~", text)


def _commit() -> str:
    """Commit of the working directory; empty where there is none or no git."""
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        # The environment may point git at another repository, as that of a hook does.
        own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        told = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            [git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=2, check=False, env=own
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def host(trainer: Trainer) -> Rows:
    """Software, machine and command, as names and values."""
    devices = f"{trainer.num_devices} x {type(trainer.accelerator).__name__.removesuffix('Accelerator').lower()}"
    if trainer.strategy.root_device.type == "cuda":
        devices += f" ({torch.cuda.get_device_name(trainer.strategy.root_device)})"
    command = [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]] if sys.orig_argv else sys.argv
    facts = {
        "trainkit": trainkit.__version__,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "CPUs": str(os.cpu_count() or ""),
        "Devices": devices,
        "Nodes": str(trainer.num_nodes),
        "World size": str(trainer.world_size),
        "Strategy": type(trainer.strategy).__name__,
        "Precision": str(trainer.precision),
        "Accumulated batches": str(trainer.accumulate_grad_batches),
        "Seed": os.environ.get("PL_GLOBAL_SEED", ""),
        "Command": shlex.join(command),
        "Commit": _commit(),
    }
    return [(name, value) for name, value in facts.items() if value]


def parameters(module: LightningModule) -> Rows:
    """Parameters by part of the module: name, class, number, number of those that train."""

    def counted(owner: str, kind: str, found: Iterable[torch.nn.Parameter]) -> tuple[str, ...]:
        sizes = [(0 if is_lazy(p) else p.numel(), p.requires_grad) for p in found]
        return owner, kind, f"{sum(n for n, _ in sizes):,}", f"{sum(n for n, trains in sizes if trains):,}"

    rows = [counted(name, type(child).__name__, child.parameters()) for name, child in module.named_children()]
    own = [*module.parameters(recurse=False)]
    rows += [counted("its own", type(module).__name__, own)] if own else []
    return [*rows, counted("all", "", module.parameters())]


def _loaders(trainer: Trainer) -> Iterator[tuple[str, Any, Any]]:
    """Stage, loader and its number of batches."""
    given = (
        ("train", trainer.train_dataloader, [trainer.num_training_batches]),
        ("validate", trainer.val_dataloaders, trainer.num_val_batches),
        ("test", trainer.test_dataloaders, trainer.num_test_batches),
        ("predict", trainer.predict_dataloaders, trainer.num_predict_batches),
    )
    for stage, structure, counts in given:
        leaves = [] if structure is None else tree_leaves(getattr(structure, "flattened", structure))
        counts = [*counts] if isinstance(counts, (list, tuple)) else [counts]
        for i, loader in enumerate(leaves):
            yield stage, loader, counts[i] if len(counts) == len(leaves) else ""


def datasets(trainer: Trainer) -> dict[str, Rows]:
    """Data sets by stage: stage, class, rows, batches of an epoch on one rank."""
    found: dict[str, Rows] = {}
    for stage, loader, batches in _loaders(trainer):
        data = getattr(loader, "dataset", loader)
        size = f"{len(data):,}" if isinstance(data, Sized) else "unknown"
        count = f"{batches:,}" if isinstance(batches, int) else "unknown"
        found.setdefault(stage, []).append((stage, type(data).__name__, size, count))
    return found


def title(trainer: Trainer, module: LightningModule, data: Rows) -> str:
    """Names of the module and of the data: its data module, or its data sets."""
    whole: Any = trainer.datamodule  # type: ignore[attr-defined]
    found = [type(whole).__name__] if whole is not None else [*dict.fromkeys(kind for _, kind, *_ in data)]
    return f"{type(module).__name__} on {', '.join(found)}" if found else type(module).__name__


def directions(trainer: Trainer) -> dict[str, str]:
    """Whether the best value is the ``min`` or the ``max`` of what callbacks monitor."""
    found = ((getattr(c, "monitor", None), getattr(c, "mode", None)) for c in trainer.callbacks)  # type: ignore[attr-defined]
    return {name: mode for name, mode in found if name and mode in ("min", "max")}


def checkpoints(trainer: Trainer, folder: Path | None) -> Rows:
    """Checkpoints that are kept: file, what it is, monitored metric, its value."""
    rows: Rows = []
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        scores = {path: float(score) for path, score in callback.best_k_models.items()}
        best = callback.best_model_path
        paths = dict.fromkeys(path for path in (best, *scores, callback.last_model_path) if path)
        for path in paths:
            kinds = ("best" if callback.monitor else "latest", "last")
            known = zip(kinds, (best, callback.last_model_path), strict=True)
            what = ", ".join(kind for kind, own in known if own == path)
            value = f"{scores[path]:.4g}" if callback.monitor and path in scores else ""
            rows.append((impersonal(path, folder), what or "kept", callback.monitor or "", value))
    return rows


def configuration(trainer: Trainer, module: LightningModule, folder: Path | None) -> tuple[str, str]:
    """Where the configuration stands, and its text: the file in the run folder, or what module and data say."""
    saved = [getattr(c, SAVED) for c in trainer.callbacks if hasattr(c, SAVED)]  # type: ignore[attr-defined]
    # A folder that no logger made for the run may hold the configuration of something else.
    shared = folder is None or folder == Path(trainer.default_root_dir)
    name = saved[0] if saved else "config.yaml"
    if folder is not None and (saved or not shared) and (folder / name).is_file():
        return name, (folder / name).read_text(encoding="utf-8", errors="replace")
    parts = [module, trainer.datamodule]  # type: ignore[attr-defined]
    return "module and data", "\n\n".join(repr(part) for part in parts if part is not None)
