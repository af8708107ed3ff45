"""One page per run that tells what was trained, how it went and what came out."""

import math
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from trainkit._core.checks import check_integer
from trainkit._core.svg import to_svg
from trainkit.callbacks._history import LEARNING_RATE, History, Series, curves
from trainkit.callbacks._report_page import Picture, Report, number, page
from trainkit.callbacks._run_facts import (
    checkpoints,
    configuration,
    datasets,
    directions,
    host,
    impersonal,
    parameters,
    title,
)
from trainkit.callbacks._run_folder import once, run_folder, write_text, writes
from trainkit.callbacks._warning_log import WarningLog

__all__ = ["RunReport"]

SHARE = 100
"""A page is written anew during training once this many times its cost has passed."""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours and not minutes:
        return f"{seconds:.1f} s"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


class RunReport(Callback):
    """Write one HTML page per run: metrics, curves, figures, configuration, checkpoints, and what ran where.

    Use it in every run. ``report.html`` in the run folder is one file that needs nothing from outside, to be read
    years later or sent to someone; it is written during training, at the end, and when an error stops the run. What
    :func:`~trainkit.callbacks.publish_figure` publishes appears on it. A test after the training goes onto the same
    page; ``trainer.validate``, ``test`` and ``predict`` alone write ``report_validate.html`` and so on.

    Args:
        every_n_epochs: Epochs of training after which the page is written, >= 1.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from trainkit.callbacks import RunReport
        >>> trainer = Trainer(callbacks=[RunReport()], logger=False, enable_checkpointing=False)

    Note:
        Needs no logger: it reads ``trainer.logged_metrics`` every ``log_every_n_steps`` steps, at each validation and
        at the end of each epoch; steps are optimizer steps taken. Curves are as logged, never smoothed; of long ones
        the lowest and the highest value of each stretch stay, at most 1000 a metric, kept in checkpoints so that a
        resumed run shows them from its beginning. During training the page is also left for later while writing
        would take more than a hundredth of the time. Rank zero writes, without a collective of its own; the training
        is bitwise the same. A page that can't be written warns once. Names of user and host are left out, and paths are
        relative to the run folder or to the working directory. ``fast_dev_run`` writes nothing. Described in no paper.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        check_integer("RunReport", "every_n_epochs", every_n_epochs, minimum=1)
        self.every_n_epochs = every_n_epochs
        self._page = ""
        self._stage = "fit"
        self._host: list[tuple[str, ...]] = []
        self._warnings = WarningLog()
        self._begin()

    def _begin(self) -> None:
        """Start with an empty page."""
        self._history = History()
        self._figures: dict[str, Picture] = {}
        self._data: dict[str, list[tuple[str, ...]]] = {}
        self._seen: dict[str, Tensor] = {}
        self._started = ""
        self._seconds = self._clock = 0.0
        self._epoch = self._logged_at = 0
        self._cost, self._written = 0.0, -math.inf

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint."""
        return self._generate_state_key(every_n_epochs=self.every_n_epochs)

    def state_dict(self) -> dict[str, Any]:
        return {"series": self._history.state(), "started": self._started, "seconds": self._elapsed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # A test loads the callbacks of its checkpoint too, which is often older than the training that it comes after.
        if self._stage == "fit":
            self._history.load(state_dict["series"])
            self._started, self._seconds = state_dict["started"], state_dict["seconds"]

    def _elapsed(self) -> float:
        return self._seconds + (time.perf_counter() - self._clock if self._clock else 0.0)

    def add_figure(self, trainer: Trainer, name: str, svg: str) -> None:
        """Show a figure, in place of an earlier one of the name.

        Args:
            trainer: Trainer of the run.
            name: Name of the figure.
            svg: The figure as an SVG element.
        """
        self._figures[name] = Picture(svg, f"{name}: step {trainer.global_step:,}, epoch {trainer.current_epoch}")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # The stage may be a member of an enumeration, whose text is another than its value.
        stage = str(getattr(stage, "value", stage))
        own = "report.html" if stage == "fit" else f"report_{stage}.html"
        name = "report.html" if self._page == "report.html" else own
        if name != self._page:
            self._begin()
        self._page, self._stage, self._seen = name, stage, {}
        self._started = self._started or f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
        self._clock = time.perf_counter()
        if writes(trainer):
            self._warnings.start()
            self._host = host(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._history.cut(trainer.global_step)
        self._epoch, self._logged_at = trainer.current_epoch, trainer.global_step
        self._add_rates(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # What the module logs at the end of an epoch comes after the hook of callbacks.
        self._read(trainer, "train")
        self._epoch = trainer.current_epoch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Later than the end of the batch before, where other callbacks still log.
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and trainer.global_step // every > self._logged_at // every:
            self._read(trainer, "train")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer, "train")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer, "validate")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer, "test")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer, "train")
        due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if due and time.perf_counter() - self._written > SHARE * self._cost:
            self._write(trainer, pl_module, "running")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer, "train")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.training or trainer.validating:
            self._read(trainer, "validate" if trainer.validating else "train")
            # The states of callbacks were taken before.
            checkpoint["callbacks"][self.state_key] = self.state_dict()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop(trainer, pl_module, "finished")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # Metrics are not read: other ranks may be elsewhere, and a mean over ranks would wait for them.
        if self._clock:
            text = f"{type(exception).__name__}: {exception}" if str(exception) else type(exception).__name__
            self._stop(trainer, pl_module, "stopped", text)

    def _stop(self, trainer: Trainer, pl_module: LightningModule, state: str, error: str = "") -> None:
        self._seconds, self._clock = self._elapsed(), 0.0
        self._warnings.stop()
        self._write(trainer, pl_module, state, error)

    def _read(self, trainer: Trainer, stage: str) -> None:
        """Note the values that were logged since the last time."""
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        # On every rank: means of an epoch are computed when they are first read, over all ranks.
        values = dict(trainer.logged_metrics)
        step, self._logged_at = trainer.global_step, trainer.global_step
        if trainer.is_global_zero:
            for name, value in values.items():
                # Of an evaluation this is the value of the last batch.
                single = stage != "train" and name.endswith("_step") and f"{name[:-5]}_epoch" in values
                if value is not self._seen.get(name) and not single:
                    self._history.add(stage, name, step, self._epoch, float(value))
            if stage == "train":
                self._add_rates(trainer)
        self._seen = values

    def _add_rates(self, trainer: Trainer) -> None:
        for i, optimizer in enumerate(trainer.optimizers):
            for j, group in enumerate(optimizer.param_groups):
                name = "lr" if i == j == 0 else f"lr, optimizer {i}, group {j}"
                self._history.add(LEARNING_RATE, name, trainer.global_step, self._epoch, float(group["lr"]))

    def _write(self, trainer: Trainer, pl_module: LightningModule, state: str, error: str = "") -> None:
        folder = run_folder(trainer) if writes(trainer) and pl_module is not None else None
        if folder is None:
            return
        start = time.perf_counter()
        try:
            text = page(self._report(trainer, pl_module, folder, state, error))
        # Lengths and descriptions come from the user's own classes; none of them may end a training.
        except Exception as fault:
            once.warn(f"RunReport: the page could not be made: {type(fault).__name__}: {fault}")
            return
        write_text(folder / self._page, text)
        self._written = time.perf_counter()
        self._cost = self._written - start

    def _report(self, trainer: Trainer, pl_module: LightningModule, folder: Path, state: str, error: str) -> Report:
        metrics = self._history.metrics()
        progress = f"{trainer.global_step:,} steps, epoch {self._epoch}"
        config_name, config = configuration(trainer, pl_module, folder)
        facts = [(name, impersonal(value, folder)) for name, value in self._host]
        # Lightning forgets the loaders of a stage when the next one begins.
        self._data |= datasets(trainer)
        data = [row for rows in self._data.values() for row in rows]
        noted = [impersonal(text, folder) for text in self._warnings.texts]
        return Report(
            title=title(trainer, pl_module, data),
            state=state,
            error=impersonal(error, folder),
            times=(f"Started {self._started}, {_duration(self._elapsed())}", progress),
            metrics=metrics,
            directions=directions(trainer),
            curves=[Picture(to_svg(figure), _caption(group)) for figure, group in curves(self._history)],
            figures=[self._figures[name] for name in sorted(self._figures)],
            tables=(
                ("Checkpoints", ("File", "Kind", "Monitored", "Value"), checkpoints(trainer, folder)),
                ("Data", ("Stage", "Data set", "Rows", "Batches"), data),
                ("Parameters", ("Part", "Class", "Parameters", "Trainable"), parameters(pl_module)),
                ("Environment", (), facts),
            ),
            config_name=config_name,
            config=impersonal(config, folder),
            warnings=[*map(_not_finite, filter(lambda series: series.bad, metrics)), *noted],
        )


def _caption(group: list[Series]) -> str:
    """The last values in words."""
    return "Last: " + "; ".join(f"{series.name} {number(series.values[-1])}" for series in group)


def _not_finite(series: Series) -> str:
    times = "once" if series.bad == 1 else f"{series.bad} times, first"
    return f"{series.name} was no finite number {times} at step {series.first_bad:,}"
