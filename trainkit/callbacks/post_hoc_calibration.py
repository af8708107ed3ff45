"""A calibrator for every checkpoint, fitted while training."""

import copy
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from trainkit._core.checks import check_integer, check_number, reject
from trainkit._core.figures import Figure
from trainkit._core.seeds import seeded
from trainkit.calibration.calibrators import Calibrator, TemperatureScaling
from trainkit.callbacks._evaluation import Evaluation, Metrics, fitting, log_value, require_own_prefix, usual_metrics
from trainkit.callbacks._held_out import HeldOut, HeldOutRows
from trainkit.callbacks._outputs import Outputs, check_outputs, read_outputs
from trainkit.callbacks.publish_figure import publish_figure

__all__ = ["PostHocCalibration"]

Scores: TypeAlias = tuple[Evaluation, Evaluation]

OWNER = "PostHocCalibration"
WANTED = (("logits", True), ("target", True), ("weight", False), ("index", False))
FEW = 4
"""Fitted numbers that are logged one by one."""


class PostHocCalibration(Callback):
    """Fit a calibrator at every validation, keep it in the checkpoint of its weights, and apply it to predictions.

    Use it with any classifier. A checkpoint that is chosen later brings its own calibrator: ``trainer.predict`` adds
    ``calibrated_logits`` and ``calibrated_probs`` to the mappings that ``predict_step`` returns, ``trainer.test`` logs
    the scores before and after, and ``callback.fitted`` is the calibrator itself.

    Args:
        calibrator: Calibrator that copies are fitted of; None for ``TemperatureScaling()``.
        holdout: Share of the validation rows, in [0, 1), that the fit does not see and is judged on.
        max_rows: Rows that are kept at most, on all ranks together.
        n_bins: Bins of the calibration error and the diagram.
        prefix: Start of all names, as in ``posthoc/val_nll_after``; two in one Trainer need two.
        outputs: Where to find the tensors, as in :class:`CalibrationMonitor`.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from trainkit.callbacks import PostHocCalibration
        >>> trainer = Trainer(callbacks=[PostHocCalibration(holdout=0.3)], logger=False, enable_checkpointing=False)

    Note:
        Passive: training is bitwise the same with and without. The fit is over before checkpoints are saved at the end
        of a validation; one that is saved between validations holds the last fit, and loading it warns. Rows of the
        first dataloader are split by a hash of ``index`` (a number for each row, from the step or the batch; else the
        position of the row: the i-th of rank r of W is r + i W), so the split depends neither on epochs nor on ranks.
        Rows with an index that came before are left out; beyond ``max_rows`` those with the smallest hashes are kept.
        ``trainer.validate`` fits only if there is no fit yet. With a ``ckpt_path``, validate, test and predict read
        the fit from the file, which Lightning itself does for a resume only; where the file has none, predict raises.
        The sanity check does not count. Described in no paper.
    """

    def __init__(
        self,
        calibrator: Calibrator | None = None,
        holdout: float = 0.5,
        max_rows: int = 100_000,
        n_bins: int = 15,
        prefix: str = "posthoc",
        outputs: Outputs = None,
    ) -> None:
        if calibrator is not None and not isinstance(calibrator, Calibrator):
            reject(OWNER, "calibrator", "be a Calibrator or None", calibrator, TypeError)
        check_number(OWNER, "holdout", holdout, minimum=0, maximum=1, open_maximum=True)
        check_integer(OWNER, "max_rows", max_rows, minimum=1)
        check_integer(OWNER, "n_bins", n_bins, minimum=1)
        check_outputs(OWNER, outputs)
        self.calibrator = calibrator
        self.holdout = holdout
        self.max_rows = max_rows
        self.n_bins = n_bins
        self.prefix = prefix
        self.outputs = outputs
        self._fit: Calibrator | None = None
        self._step = 0
        self._rows: HeldOutRows | None = None
        self._scores: Scores | None = None
        self._told = False

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint."""
        return self._generate_state_key(prefix=self.prefix)

    @property
    def fitted(self) -> Calibrator:
        """The calibrator of the last validation, or of what was loaded.

        Raises:
            RuntimeError: If there is none.
        """
        if self._fit is None:
            raise RuntimeError(f"{OWNER}: there is no fit yet; run trainer.fit, give a ckpt_path or call load")
        return self._fit

    def state_dict(self) -> dict[str, Any]:
        if self._fit is None:
            return {}
        state = {name: value.detach().cpu().clone() for name, value in self._fit.state_dict().items()}
        return {"calibrator": state, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        calibrator = self._new()
        calibrator.load_state_dict(state_dict["calibrator"])
        self._fit, self._step = calibrator, state_dict["step"]

    def load(self, path: str | Path) -> Calibrator:
        """The calibrator in a checkpoint file, which becomes ``fitted``.

        Args:
            path: A checkpoint of a Trainer with this callback.

        Raises:
            ValueError: If the checkpoint holds none for this ``prefix``.
        """
        missing = self._take(torch.load(path, map_location="cpu", weights_only=True), path)
        if missing:
            raise ValueError(missing)
        return self.fitted

    def _new(self) -> Calibrator:
        return TemperatureScaling() if self.calibrator is None else copy.deepcopy(self.calibrator)

    def _take(self, checkpoint: dict[str, Any], path: Any) -> str:
        """Take the fit out of a checkpoint; says what is wrong if there is none."""
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        self._fit = None
        if not state:
            return f"{OWNER}: the checkpoint {path} must hold a calibrator under {self.state_key}, got none"
        self.load_state_dict(state)
        if self._step != checkpoint["global_step"]:
            step = checkpoint["global_step"]
            rank_zero_warn(f"{OWNER}: {path} has weights of step {step}, but the calibrator was fitted at {self._step}")
        return ""

    def _fetch(self, trainer: Trainer) -> str:
        """Read the fit from the checkpoint that the weights came from; says what is wrong if there is none."""
        if trainer.ckpt_path is None:
            return "" if self._fit is not None else f"{OWNER}: there is no fit yet; run trainer.fit or give a ckpt_path"
        return self._take(trainer.strategy.load_checkpoint(trainer.ckpt_path, weights_only=True), trainer.ckpt_path)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_own_prefix(self, trainer)
        if stage == "fit":
            # That of an earlier run; a checkpoint to resume from is read after this.
            self._fit = None
        # A new list, since Lightning walks through the old one now: writers must see what is added to predictions.
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        place = callbacks.index(self)
        early = [c for c in callbacks[:place] if isinstance(c, BasePredictionWriter)]
        others = [c for c in callbacks[:place] if c not in early]
        trainer.callbacks = [*others, self, *early, *callbacks[place + 1 :]]  # type: ignore[attr-defined]

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = None
        if trainer.sanity_checking:
            return
        if not fitting(trainer) and trainer.ckpt_path is not None:
            missing = self._fetch(trainer)
            if missing:
                rank_zero_warn(f"{missing}; one is fitted now")
        ranks = trainer.global_rank, trainer.world_size
        self._rows = HeldOutRows(OWNER, self.holdout, self.max_rows, *ranks)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._rows is not None and dataloader_idx == 0:
            self._rows.add(read_outputs(OWNER, "on_validation_batch_end", self.outputs, WANTED, outputs, batch))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._rows is None:
            return
        # Fits may need gradients, and tensors of the validation's inference mode can't have any.
        with torch.inference_mode(False), torch.no_grad():
            held_out = self._rows.finish(pl_module.device)
            self._rows = None
            if held_out is None:
                return
            self._tell(held_out)
            if fitting(trainer) or self._fit is None:
                self._refit(trainer, pl_module, held_out)
        if self._fit is None:
            return
        scores = self._start_scores()
        if len(held_out.score["logits"]):
            self._score(scores, 0, held_out.score, pl_module)
        self._report(trainer, pl_module, scores, "val")
        for name, value in self._fit.state_dict().items():
            if value.is_floating_point() and name != "nll" and value.numel() <= FEW:
                for i, number in enumerate(value.flatten()):
                    suffix = "" if value.numel() == 1 else f"_{i}"
                    log_value(pl_module, f"{self.prefix}/val_{name}{suffix}", number)

    def _tell(self, held_out: HeldOut) -> None:
        if held_out.kept < held_out.seen and not self._told:
            self._told = True
            rank_zero_info(
                f"{OWNER}: {held_out.kept} of {held_out.seen} rows are used, those with the smallest hashes of their "
                "index and each index once"
            )

    def _refit(self, trainer: Trainer, pl_module: LightningModule, held_out: HeldOut) -> None:
        self._fit = None
        if not held_out.fit_rows:
            rank_zero_warn(f"{OWNER}: no fit, since holdout={self.holdout} leaves none of {held_out.kept} rows for it")
            return
        rows = {name: value.clone() for name, value in held_out.fit.items()}
        with torch.enable_grad(), seeded(0):
            self._fit = self._new().to(pl_module.device).fit(rows.pop("logits"), rows.pop("target"), **rows)
        self._step = trainer.global_step

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        missing = self._fetch(trainer)
        self._scores = None if missing else self._start_scores()
        if missing:
            rank_zero_warn(f"{missing}; nothing is logged")

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._scores is not None:
            tensors = read_outputs(OWNER, "on_test_batch_end", self.outputs, WANTED, outputs, batch)
            self._score(self._scores, dataloader_idx, tensors, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._scores is not None:
            self._report(trainer, pl_module, self._scores, "test")
            self._scores = None

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        missing = self._fetch(trainer)
        if missing:
            raise RuntimeError(missing)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not isinstance(outputs, MutableMapping):
            reject(OWNER, "predict_step", "return a mapping, which calibrated logits are added to", outputs, TypeError)
        (logits,) = read_outputs(OWNER, "on_predict_batch_end", self.outputs, WANTED[:1], outputs, batch).values()
        calibrator = self.fitted.to(pl_module.device)
        outputs["calibrated_logits"] = calibrator(logits)
        outputs["calibrated_probs"] = calibrator.predict_proba(logits)

    def _start_scores(self) -> Scores:
        """Metrics before and after."""
        own = self.fitted

        def after(_: int) -> Metrics:
            return usual_metrics(own.task, self.n_bins, ignore_index=own.ignore_index).items()

        def before(_: int) -> Metrics:
            return usual_metrics(own.task, self.n_bins, own.input_kind, own.ignore_index).items()

        return Evaluation(OWNER, before, 0), Evaluation(OWNER, after, 0)

    def _score(
        self,
        scores: Scores,
        dataloader: int,
        rows: dict[str, Tensor],
        pl_module: LightningModule,
    ) -> None:
        device = pl_module.device
        after = self.fitted.to(device)(rows["logits"].to(device))
        for evaluation, logits in zip(scores, (rows["logits"], after), strict=True):
            evaluation.update(dataloader, {**rows, "logits": logits}, device)

    def _report(self, trainer: Trainer, pl_module: LightningModule, scores: Scores, stage: str) -> None:
        """Log the scores before and after, and publish both diagrams as one."""
        before, after = (evaluation.finish(pl_module.device) for evaluation in scores)
        for suffix, values in before.items():
            for (name, value), (_, calibrated) in zip(values, after[suffix], strict=True):
                full = f"{self.prefix}/{stage}_{name}"
                if isinstance(value, Figure):
                    publish_figure(trainer, full + suffix, _one_above_the_other(value, calibrated))
                    continue
                log_value(pl_module, f"{full}_before{suffix}", value)
                log_value(pl_module, f"{full}_after{suffix}", calibrated)


def _one_above_the_other(before: Figure, after: Figure) -> Figure:
    """The diagrams before and after, without the counts."""
    told = (("Before", before), ("After", after))
    axes = tuple(replace(f.axes[0], title=f"{when}: {f.axes[0].title}", x_label="confidence") for when, f in told)
    return Figure(axes, height=640)
