"""Metrics over one evaluation, for every dataloader, logged alike on all ranks."""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from trainkit._core.binding import accepted, bind
from trainkit.calibration.metrics import (
    ECE,
    BootstrapInterval,
    BrierScore,
    GroupedMetric,
    NegativeLogLikelihood,
    ReliabilityDiagram,
)
from trainkit.distributed import all_reduce_max

__all__ = ["Evaluation", "Metrics", "fitting", "log_value", "require_own_prefix", "usual_metrics", "wanted_by"]

Metrics: TypeAlias = Iterable[tuple[str, nn.Module]]
"""Names and metrics; the name of a metric may come again with the same for each group."""


def usual_metrics(task: Any, n_bins: int, input_kind: Any = "logits", ignore_index: int = -100) -> dict[str, nn.Module]:
    """What a run is told of its calibration, by the names of the logged values."""
    scores = {"task": task, "input_kind": input_kind, "ignore_index": ignore_index}
    bins = {**scores, "n_bins": n_bins}
    return {
        "ece": ECE(**bins),
        "nll": NegativeLogLikelihood(**scores),
        "brier": BrierScore(**scores),
        "reliability": ReliabilityDiagram(**bins),
    }


def wanted_by(metrics: Iterable[Any]) -> list[tuple[str, bool]]:
    """Names of the tensors that the metrics take, each with whether one of them requires it."""
    wanted: dict[str, bool] = {}
    for metric in metrics:
        for name, required in accepted(metric):
            wanted[name] = required or wanted.get(name, False)
    return list(wanted.items())


def log_value(pl_module: LightningModule, name: str, value: Any) -> None:
    """Log a value at the end of an epoch that is the same on all ranks; reducing it once more silences a warning."""
    pl_module.log(name, value, on_step=False, on_epoch=True, sync_dist=True, batch_size=1, add_dataloader_idx=False)


def fitting(trainer: Trainer) -> bool:
    """Whether what runs is part of ``trainer.fit``."""
    return trainer.state.fn == TrainerFn.FITTING


def require_own_prefix(callback: Any, trainer: Trainer) -> None:
    """Two callbacks of a class that log under one name would be averaged silently."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    others = [c for c in callbacks if type(c) is type(callback) and c is not callback]
    if any(other.prefix == callback.prefix for other in others):
        owner = type(callback).__name__
        raise ValueError(f"{owner}: prefix must differ from that of another {owner}, got {callback.prefix!r} twice")


class Evaluation:
    """Metrics of one pass over some dataloaders; they are made at its start and thrown away at its end.

    Args:
        owner: Class that errors name.
        build: Gives new metrics by name, for the number of classes.
        num_classes: Number of classes; None for what the logits say, 0 where metrics need none.
    """

    def __init__(self, owner: str, build: Callable[[int], Metrics], num_classes: int | None = None) -> None:
        self.owner = owner
        self.build = build
        self.num_classes = num_classes
        self.metrics: dict[int, list[tuple[str, Any]]] = {}
        self.classes: dict[int, int] = {}

    def update(self, dataloader: int, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Add a batch of a dataloader."""
        if dataloader not in self.metrics:
            told = self.num_classes
            # Logits of too few dimensions are refused by the metrics, in better words.
            self.classes[dataloader] = (*tensors["logits"].shape, 1, 1)[1] if told is None else told
            self._start(dataloader, device)
        for _, metric in self.metrics[dataloader]:
            metric.update(**bind(metric, tensors))

    def _start(self, dataloader: int, device: torch.device) -> None:
        built = self.build(self.classes[dataloader])
        self.metrics[dataloader] = [(name, copy.deepcopy(metric).to(device)) for name, metric in built]

    def finish(self, device: torch.device) -> dict[str, list[tuple[str, Any]]]:
        """Names with their numbers and figures, for the suffix of every dataloader; the same on all ranks."""
        # Ranks without a batch learn from the others which dataloaders there are, and how many classes.
        last = torch.tensor(max(self.metrics, default=-1), device=device)
        count = int(all_reduce_max(last, call=self.owner)) + 1
        own = [self.classes.get(i, -1) for i in range(count)]
        classes = all_reduce_max(torch.tensor(own, device=device, dtype=torch.int64), call=self.owner).tolist()
        found = {}
        for dataloader, number in enumerate(classes):
            if number < 0:
                continue
            if dataloader not in self.metrics:
                self.classes[dataloader] = number
                self._start(dataloader, device)
            suffix = f"/dataloader_idx_{dataloader}" if count > 1 else ""
            told = self.metrics[dataloader]
            found[suffix] = [pair for name, metric in told for pair in self._told(name, metric)]
        self.metrics, self.classes = {}, {}
        return found

    def _told(self, name: str, metric: Any) -> list[tuple[str, Any]]:
        """What a metric has to say: numbers, each under the name of its entry, and figures."""
        with warnings.catch_warnings():
            # Of torchmetrics, on a rank that had no batch; ours come where no rank had any.
            warnings.filterwarnings("ignore", "The ``compute`` method of metric .* was called before", UserWarning)
            value = metric.compute()
            entries = value if isinstance(value, Mapping) else {"value": value}
            named = [(name if key == "value" else f"{name}_{key}", entry) for key, entry in entries.items()]
            if _groups(metric):
                found = _of_groups(named, _groups(metric)) + _figures_of_groups(name, metric, value)
            else:
                found = [(own, entry) for own, entry in named if _is_number(entry)]
                if hasattr(metric, "figure") and (found or not isinstance(metric, BootstrapInterval)):
                    found.append((name, metric.figure()))
        if found:
            return found
        told = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{self.owner}: metrics[{name!r}] must give one number or have a method figure, got {told}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)


def _groups(metric: Any) -> int:
    """Number of groups that the metric tells apart; 0 if it doesn't."""
    inner = metric.metric if isinstance(metric, BootstrapInterval) else metric
    return inner.num_groups if isinstance(inner, GroupedMetric) else 0


def _of_groups(named: Iterable[tuple[str, Any]], groups: int) -> list[tuple[str, Any]]:
    """One number for each group, of entries that are such."""
    vectors = [(name, entry) for name, entry in named if isinstance(entry, Tensor) and entry.shape == (groups,)]
    return [(f"{name}/group_{group}", entry[group]) for name, entry in vectors for group in range(groups)]


def _figures_of_groups(name: str, metric: Any, value: Any) -> list[tuple[str, Any]]:
    """Bars where there is one number a group, else the figure of each group, if there is one."""
    if not isinstance(metric, GroupedMetric):
        return []
    if isinstance(value, Tensor) and value.dim() == 1:
        return [(f"{name}/groups", metric.figure())]
    if not hasattr(metric.metric, "figure"):
        return []
    return [(f"{name}/group_{group}", metric.figure(group)) for group in range(metric.num_groups)]
