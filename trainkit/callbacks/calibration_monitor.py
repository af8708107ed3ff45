"""Calibration of any ``LightningModule`` in validation and test."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from trainkit._core.checks import check_choice, check_integer, reject
from trainkit._core.figures import Figure
from trainkit.calibration.metrics import BootstrapInterval, ClasswiseECE, GroupedMetric
from trainkit.callbacks._evaluation import (
    Evaluation,
    fitting,
    log_value,
    require_own_prefix,
    usual_metrics,
    wanted_by,
)
from trainkit.callbacks._outputs import Outputs, check_outputs, read_outputs
from trainkit.callbacks.publish_figure import publish_figure

__all__ = ["CalibrationMonitor"]

SHORT = {"validate": "val", "test": "test"}


class CalibrationMonitor(Callback):
    """Log how well calibrated a model is, with a reliability diagram, at the end of every validation and test.

    Use it with any classifier whose steps return a mapping with ``logits`` and ``target``, or say with ``outputs``
    where they are. The values are there for ``ModelCheckpoint`` and ``EarlyStopping``, as ``calibration/val_ece``.

    Args:
        metrics: Metrics by the name of their value; None for ``ece``, ``classwise_ece`` (multiclass only), ``nll``,
            ``brier`` and the diagram ``reliability``. Each takes what its ``update`` names, and gives a number, a
            mapping whose numbers are logged as ``NAME_KEY``, a figure by its method ``figure``, or all of these.
            :class:`trainkit.calibration.metrics.BootstrapInterval` around one adds ``NAME_low`` and ``NAME_high``.
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``, for the metrics that None stands for.
        num_classes: Number of classes, for these metrics; None for what the logits say.
        n_bins: Number of bins, for these metrics.
        num_groups: Number of groups of rows, G, if the metrics are wanted for each of them too: ``groups``, integers in
            [0, G) or -1 for none, comes from the step or the batch, and values are named ``ece/group_0`` and so on.
        stages: ``"validate"``, ``"test"`` or both.
        every_n_epochs: In training, look at epochs 0, n, 2n and so on.
        prefix: Start of all names; two monitors in one Trainer need two.
        outputs: Where to find the tensors: keys by name, as ``{"logits": "y_hat"}``, looked up in what the step
            returned and then in the batch; or a function ``(outputs, batch) -> mapping``; None for their own names,
            with ``target`` taken from the batch where the step returns none.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from trainkit.callbacks import CalibrationMonitor
        >>> monitor = CalibrationMonitor(outputs={"logits": "y_hat", "target": "labels"})
        >>> trainer = Trainer(callbacks=[monitor], logger=False, enable_checkpointing=False)

    Note:
        Passive: training is bitwise the same with and without. ``weight`` counts where the step returns it. Every rank
        takes part, also one without batches, and the values are those of one process over all rows; the sampler that
        Lightning puts in repeats rows to even out the ranks, and these count twice. (A rank whose loaders all have the
        length zero runs no hook in Lightning, and others would wait for it.) Several dataloaders have names that end on
        ``/dataloader_idx_i``, as Lightning's. The sanity check does not count. The usual metrics take a constant
        amount of memory. Callbacks that monitor a value may stand anywhere in the list, since Lightning asks them
        after the epoch's values are in; between two looks they see the last one. Described in no paper.
    """

    def __init__(
        self,
        metrics: dict[str, nn.Module] | None = None,
        task: Literal["binary", "multiclass", "multilabel"] = "multiclass",
        num_classes: int | None = None,
        n_bins: int = 15,
        num_groups: int | None = None,
        stages: Sequence[Literal["validate", "test"]] = ("validate", "test"),
        every_n_epochs: int = 1,
        prefix: str = "calibration",
        outputs: Outputs = None,
    ) -> None:
        owner = "CalibrationMonitor"
        for name, metric in ({} if metrics is None else _mapping(owner, metrics)).items():
            if not (hasattr(metric, "update") and hasattr(metric, "compute")):
                reject(owner, f"metrics[{name!r}]", "have update and compute", metric, TypeError)
        for stage in stages:
            check_choice(owner, "stages", stage, SHORT)
        check_integer(owner, "every_n_epochs", every_n_epochs, minimum=1)
        if num_groups is not None:
            check_integer(owner, "num_groups", num_groups, minimum=1)
        check_outputs(owner, outputs)
        self.metrics = metrics
        self.task = task
        self.num_classes = num_classes
        self.n_bins = n_bins
        self.num_groups = num_groups
        self.stages = stages
        self.every_n_epochs = every_n_epochs
        self.prefix = prefix
        self.outputs = outputs
        # Built once here, so that arguments they refuse are refused at once.
        self._wanted = wanted_by(metric for _, metric in self._build(num_classes or 1))
        self._evaluation: Evaluation | None = None

    def _build(self, num_classes: int) -> list[tuple[str, nn.Module]]:
        metrics: dict[str, Any] = dict(usual_metrics(self.task, self.n_bins) if self.metrics is None else self.metrics)
        if self.metrics is None and self.task == "multiclass":
            metrics["classwise_ece"] = ClasswiseECE(num_classes=num_classes, n_bins=self.n_bins)
        told_apart = metrics.items() if self.num_groups is not None else ()
        return [*metrics.items(), *((name, _grouped(metric, self.num_groups)) for name, metric in told_apart)]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_own_prefix(self, trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer, "validate")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer, "test")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._update("on_validation_batch_end", pl_module, outputs, batch, dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._update("on_test_batch_end", pl_module, outputs, batch, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._finish(trainer, pl_module, "validate")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._finish(trainer, pl_module, "test")

    def _start(self, trainer: Trainer, stage: str) -> None:
        """Take new metrics, if there is anything to look at."""
        self._evaluation = None
        due = not fitting(trainer) or trainer.current_epoch % self.every_n_epochs == 0
        if due and stage in self.stages and not trainer.sanity_checking:
            needed = self.metrics is None and self.task == "multiclass"
            self._evaluation = Evaluation("CalibrationMonitor", self._build, self.num_classes if needed else 0)

    def _update(self, hook: str, pl_module: LightningModule, returned: Any, batch: Any, dataloader: int) -> None:
        if self._evaluation is not None:
            tensors = read_outputs("CalibrationMonitor", hook, self.outputs, self._wanted, returned, batch)
            self._evaluation.update(dataloader, tensors, pl_module.device)

    def _finish(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._evaluation is None:
            return
        for suffix, values in self._evaluation.finish(pl_module.device).items():
            for name, value in values:
                full = f"{self.prefix}/{SHORT[stage]}_{name}{suffix}"
                if isinstance(value, Figure):
                    publish_figure(trainer, full, value)
                else:
                    log_value(pl_module, full, value)
        self._evaluation = None


def _grouped(metric: Any, num_groups: Any) -> nn.Module:
    """The metric for each group; of an interval, that of each group's value."""
    if not isinstance(metric, BootstrapInterval):
        return GroupedMetric(metric, num_groups)
    return BootstrapInterval(
        GroupedMetric(metric.metric, num_groups),
        metric.n_blocks,
        metric.n_resamples,
        metric.confidence,
        metric.method,
        metric.seed,
    )


def _mapping(owner: str, metrics: Any) -> Mapping[str, Any]:
    if not isinstance(metrics, Mapping):
        reject(owner, "metrics", "be a mapping of names to metrics or None", metrics, TypeError)
    return metrics
