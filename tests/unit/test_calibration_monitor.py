"""The monitor logs what its metrics give on all rows, for any module, and leaves the training as it is."""

import copy
import json
import pickle
import re

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from tests.unit import lightning_fits as fits
from tests.unit.lightning_fits import Net, OnlyTheLoss, OtherNames, Tuples, fit, loader, quiet, trainer_of
from trainkit.calibration.calibrators import TemperatureScaling
from trainkit.calibration.metrics import (
    ECE,
    MCE,
    BootstrapInterval,
    BrierScore,
    ClasswiseECE,
    KSCalibrationError,
    NegativeLogLikelihood,
    ReliabilityDiagram,
)
from trainkit.callbacks import CalibrationMonitor, PostHocCalibration
from trainkit.testing.callbacks.runs import group_options
from trainkit.testing.configs import check_config


def once(metric, logits, target):
    metric.update(logits, target)
    return metric.compute()


def usual(logits, target, n_bins=15):
    return {
        "ece": once(ECE(n_bins=n_bins), logits, target),
        "classwise_ece": once(ClasswiseECE(num_classes=logits.shape[1], n_bins=n_bins), logits, target),
        "nll": once(NegativeLogLikelihood(), logits, target),
        "brier": once(BrierScore(), logits, target),
    }


def logged(trainer, start="calibration/"):
    return {k.removeprefix(start): float(v) for k, v in trainer.callback_metrics.items() if k.startswith(start)}


def close(found, expected):
    assert found == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-9)


def test_values_of_a_fit_are_those_of_the_metrics_on_all_rows(tmp_path):
    net = Net()
    trainer = fit(net, [CalibrationMonitor(n_bins=5)], tmp_path, max_epochs=1)
    expected = usual(*net.rows_seen(), n_bins=5)
    close(logged(trainer), {f"val_{k}": v for k, v in expected.items()})
    assert len(net.rows_seen()[1]) == fits.ROWS


@pytest.mark.parametrize(
    ("net", "outputs"),
    [
        (OtherNames, {"logits": "y_hat", "target": "labels"}),
        (Tuples, lambda returned, batch: {"logits": returned[0], "target": batch["labels"]}),
    ],
    ids=["names", "function"],
)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_of_a_module_is_bitwise_the_same_with_a_monitor(net, outputs, precision, tmp_path):
    alone, watched = net(), net()
    fit(alone, [], tmp_path, precision=precision)
    trainer = fit(watched, [CalibrationMonitor(outputs=outputs)], tmp_path, precision=precision)
    assert fits.same_training(watched, alone)
    assert len(logged(trainer)) == 4
    assert [name for name, _ in watched.named_modules()] == [name for name, _ in alone.named_modules()]


def test_values_under_bf16_are_those_of_its_logits(tmp_path):
    net = Net()
    trainer = fit(net, [CalibrationMonitor()], tmp_path, max_epochs=1, precision="bf16-mixed")
    assert net.rows_seen()[0].dtype == torch.bfloat16
    close(logged(trainer), {f"val_{k}": v for k, v in usual(*net.rows_seen()).items()})


def test_metrics_of_ones_own_and_what_they_take(tmp_path):
    class Accuracy(torch.nn.Module):
        """A metric of somebody else, which names its tensors its own way."""

        def __init__(self):
            super().__init__()
            self.right = self.count = 0

        def update(self, preds, target):
            self.right += int((preds.argmax(1) == target).sum())
            self.count += len(target)

        def compute(self):
            return torch.tensor(self.right / self.count)

    metrics = {"mce": MCE(n_bins=4), "accuracy": Accuracy()}
    net = Net()
    monitor = CalibrationMonitor(metrics, outputs={"preds": "logits"}, prefix="mine")
    trainer = fit(net, [monitor], tmp_path)
    logits, target = (part[-fits.ROWS :] for part in net.rows_seen())
    right = (logits.argmax(1) == target).double().mean()
    assert logged(trainer, "mine/") == pytest.approx(
        {"val_mce": float(once(MCE(n_bins=4), logits, target)), "val_accuracy": float(right)}, rel=1e-6
    )
    assert metrics["accuracy"].count == 0


def test_validate_and_test_of_several_dataloaders(tmp_path):
    loaders = [loader(10), loader(7, 50)]
    for stage in ("validate", "test"):
        net = Net()
        trainer = trainer_of(tmp_path, [CalibrationMonitor()])
        with quiet():
            getattr(trainer, stage)(net, loaders, verbose=False)
        short = {"validate": "val"}.get(stage, stage)
        expected = {f"{short}_{k}/dataloader_idx_{i}": v for i in range(2) for k, v in usual(*net.rows_seen(i)).items()}
        close(logged(trainer), expected)
        assert len(expected) == 8


def test_stages_and_epochs_can_be_chosen(tmp_path):
    trainer = trainer_of(tmp_path, [CalibrationMonitor(stages=["test"])])
    with quiet():
        trainer.validate(Net(), loader(), verbose=False)
        assert logged(trainer) == {}
        trainer.test(Net(), loader(), verbose=False)
        assert len(logged(trainer)) == 4

    class Kept(Callback):
        def __init__(self):
            self.values = []

        def on_validation_end(self, trainer, pl_module):
            self.values.append(logged(trainer).get("val_nll"))

    kept = Kept()
    fit(Net(), [CalibrationMonitor(every_n_epochs=2), kept], tmp_path, max_epochs=4, num_sanity_val_steps=0)
    first, second, third, fourth = kept.values
    assert first == second != third == fourth


@pytest.mark.parametrize(
    "options",
    [{"fast_dev_run": True}, {"limit_val_batches": 0}, {"num_sanity_val_steps": 2, "max_epochs": 0}],
    ids=["fast_dev_run", "no validation", "sanity check"],
)
def test_short_runs(options, tmp_path):
    trainer = fit(Net(), [CalibrationMonitor()], tmp_path, **options)
    assert len(logged(trainer)) == (4 if "fast_dev_run" in options else 0)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("at_epoch_end", [True, False])
def test_early_stopping_and_checkpoints_see_the_value_of_their_epoch_wherever_they_stand(place, at_epoch_end, tmp_path):
    class Rising(Net):
        def validation_step(self, batch, index):
            # Wrong with more confidence at each epoch.
            logits = torch.nn.functional.one_hot((batch["labels"] + 1) % 3, 3) * float(self.current_epoch + 1)
            return {"logits": logits, "target": batch["labels"]}

    stopping = EarlyStopping("calibration/val_nll", patience=1, check_on_train_epoch_end=at_epoch_end)
    keeping = ModelCheckpoint(tmp_path, monitor="calibration/val_nll", save_top_k=-1, filename="{epoch}")
    callbacks = [stopping, keeping]
    callbacks.insert(place, CalibrationMonitor())
    trainer = fit(Rising(), callbacks, tmp_path, max_epochs=5, enable_checkpointing=True)
    nll = [float(torch.tensor(2.0 + e**k).log()) for k, e in enumerate([torch.e] * 2, 1)]
    assert stopping.stopped_epoch == 1
    assert float(stopping.best_score) == pytest.approx(nll[0], rel=1e-6)
    assert trainer.current_epoch == 2
    found = {path.rpartition("=")[2]: float(v) for path, v in keeping.best_k_models.items()}
    assert found == pytest.approx({"0.ckpt": nll[0], "1.ckpt": nll[1]}, rel=1e-6)


def test_the_diagram_is_published_and_values_reach_the_logger(tmp_path):
    net = Net()
    trainer = fit(net, [CalibrationMonitor(n_bins=4)], tmp_path, max_epochs=1, logger=CSVLogger(tmp_path))
    (path,) = tmp_path.rglob("calibration-val_reliability.json")
    diagram = ReliabilityDiagram(n_bins=4)
    diagram.update(*net.rows_seen())
    counts = json.loads(path.read_text())["axes"][1]["marks"][0]["height"]
    assert counts == diagram.compute()["count"].tolist()
    assert trainer.logged_metrics["calibration/val_ece"] == trainer.callback_metrics["calibration/val_ece"]


def test_weights_count_where_the_step_returns_them(tmp_path):
    class Weighted(Net):
        def returned(self, logits, batch):
            return super().returned(logits, batch) | {"weight": batch["index"] % 2}

    net = Weighted()
    trainer = fit(net, [CalibrationMonitor()], tmp_path, max_epochs=1)
    logits, target = net.rows_seen()
    close(logged(trainer), {f"val_{k}": v for k, v in usual(logits[1::2], target[1::2]).items()})


def test_numbers_entries_figures_and_intervals_of_any_metric(tmp_path):
    net = Net()
    wanted = {
        "ks": KSCalibrationError(),
        "nll": BootstrapInterval(NegativeLogLikelihood(), n_resamples=20),
    }
    trainer = fit(net, [CalibrationMonitor(wanted)], tmp_path, max_epochs=1)
    rows = net.rows_seen()
    interval = BootstrapInterval(NegativeLogLikelihood(), n_resamples=20)
    interval.update(*rows)
    told = interval.compute()
    found = logged(trainer)
    assert found["val_ks"] == pytest.approx(once(KSCalibrationError(), *rows).item(), rel=1e-9)
    for key, name in {"val_nll": "value", "val_nll_low": "low", "val_nll_high": "high"}.items():
        assert found[key] == pytest.approx(told[name].item(), rel=1e-6)
    assert {path.stem for path in tmp_path.rglob("calibration-val_*.svg")} == {
        "calibration-val_ks",
        "calibration-val_nll",
    }


def test_values_of_each_group(tmp_path):
    class Grouped(Net):
        def returned(self, logits, batch):
            return super().returned(logits, batch) | {"groups": batch["index"] % 3 - 1}

    net = Grouped()
    wanted = {"brier": BrierScore(), "reliability": ReliabilityDiagram(), "interval": BootstrapInterval(BrierScore())}
    trainer = fit(net, [CalibrationMonitor(wanted, num_groups=2)], tmp_path, max_epochs=1)
    logits, target = net.rows_seen()
    found = logged(trainer)
    assert found["val_brier"] == pytest.approx(once(BrierScore(), logits, target).item(), rel=1e-9)
    for group in range(2):
        own = once(BrierScore(), logits[group + 1 :: 3], target[group + 1 :: 3]).item()
        assert found[f"val_brier/group_{group}"] == pytest.approx(own, rel=1e-9)
        assert found[f"val_interval/group_{group}"] == pytest.approx(own, rel=1e-9)
        assert found[f"val_interval_low/group_{group}"] < own < found[f"val_interval_high/group_{group}"]
    names = {path.stem.removeprefix("calibration-val_") for path in tmp_path.rglob("calibration-val_*.svg")}
    groups = {f"reliability-group_{group}" for group in range(2)}
    assert names == {"brier-groups", "reliability", "interval", *groups}
    with pytest.raises(ValueError, match="looked for 'groups'"):
        fit(Net(), [CalibrationMonitor(num_groups=2)], tmp_path)
    with pytest.raises(ValueError, match="num_groups must be >= 1, got 0"):
        CalibrationMonitor(num_groups=0)


def validated(folder, sizes):
    """Values of a validation, on a rank of a group over the rows that ``sizes`` gives it; None for rows in turn."""
    net, options = Net(), {}
    data = loader()
    if dist.is_initialized():
        options = group_options()
        data = fits.rank_loader(dist.get_rank(), sizes)
    trainer = trainer_of(folder, [CalibrationMonitor()], **options)
    with quiet():
        trainer.validate(net, data, verbose=False)
    return logged(trainer)


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("sizes", [None, (15, 7), (22, 0), (0, 22)])
def test_two_ranks_have_the_values_of_one_process_and_one_may_have_no_rows(pool, sizes, tmp_path):
    expected = validated(tmp_path, None)
    first, second = pool.run(validated, [(tmp_path, sizes)] * 2)
    assert first == second == pytest.approx(expected, rel=1e-9)
    assert len(first) == 4


@pytest.mark.parametrize(
    ("net", "arguments", "words"),
    [
        (
            OnlyTheLoss,
            {},
            "CalibrationMonitor: on_validation_batch_end looked for 'logits', but what the step returned has loss and "
            "the batch has x, labels, index; return it from the step, or name it with outputs={'logits': 'key'} or a "
            "function (outputs, batch) -> mapping",
        ),
        (Tuples, {}, "looked for 'logits', but what the step returned is of type tuple and the batch has x"),
        (OtherNames, {"outputs": {"logits": "z"}}, "looked for 'logits' as 'z', but what the step returned has y_hat"),
        (
            Tuples,
            {"outputs": lambda returned, batch: {"logits": returned[0]}},
            "looked for 'target', but what outputs gave has logits;",
        ),
    ],
)
def test_what_is_missing_is_named(net, arguments, words, tmp_path):
    with pytest.raises(ValueError, match=re.escape(words)):
        fit(net(), [CalibrationMonitor(**arguments)], tmp_path)


def test_other_faults_are_named(tmp_path):
    with pytest.raises(ValueError, match="prefix must differ from that of another CalibrationMonitor, got 'a' twice"):
        fit(Net(), [CalibrationMonitor(prefix="a"), CalibrationMonitor(prefix="a")], tmp_path)
    per_class = {"each": NegativeLogLikelihood(num_classes=3, per_class=True)}
    words = r"metrics\['each'\] must give one number or have a method figure, got of shape \(3,\)"
    with pytest.raises(ValueError, match=words):
        fit(Net(), [CalibrationMonitor(per_class)], tmp_path)


def test_the_command_line_reads_and_writes_it():
    config = {"metrics": {"mce": MCE(n_bins=4)}, "stages": ["test"], "outputs": {"logits": "y_hat"}}
    monitor = check_config(CalibrationMonitor, config, Callback)
    assert monitor.outputs == {"logits": "y_hat"}
    assert monitor.metrics["mce"].n_bins == 4
    assert list(monitor.stages) == ["test"]
    assert check_config(CalibrationMonitor, {}, Callback).outputs is None
    calibrator = TemperatureScaling(t_max=9.0)
    callback = check_config(PostHocCalibration, {"calibrator": calibrator, "outputs": {"target": "y"}}, Callback)
    assert callback.calibrator.t_max == 9.0
    assert callback.outputs == {"target": "y"}


def test_two_monitors_and_copies(tmp_path):
    net = Net()
    callbacks = [CalibrationMonitor(), CalibrationMonitor(n_bins=3, prefix="coarse")]
    trainer = fit(net, copy.deepcopy(pickle.loads(pickle.dumps(callbacks))), tmp_path, max_epochs=1)
    close(logged(trainer), {f"val_{k}": v for k, v in usual(*net.rows_seen()).items()})
    close(logged(trainer, "coarse/"), {f"val_{k}": v for k, v in usual(*net.rows_seen(), n_bins=3).items()})


def test_a_trained_net_in_training_mode_stays_in_it(tmp_path):
    assert dist.is_initialized() is False
    net = Net()
    fit(net, [CalibrationMonitor()], tmp_path)
    assert all(module.training for module in net.modules())
