"""The retrieval recipe, from the command line and on ranks: what it learns, prints, writes and resumes."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from trainkit.recipes import DualEncoder, RetrievalData, RetrievalModule

from tests.unit.lightning_fits import quiet, trainer_of
from trainkit.calibration.calibrators import TemperatureScaling
from trainkit.callbacks import PostHocCalibration, StepSeed
from trainkit.losses import InfoNCELoss, MannWhitneyLoss
from trainkit.testing.callbacks.runs import group_options

SMALL = {"buckets": 2048, "dim": 32, "hidden": 32, "depth": 1}
FAST = (
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.max_epochs=8",
    "--data.batch_size=32",
    "--data.group_field=group",
    *(f"--model.encoder.{name}={value}" for name, value in SMALL.items()),
)


def test_fit_predict_and_test_from_the_command_line(run, pairs_file, tmp_path):
    status, out, err = run("fit", "--config", "retrieval/info_nce", "--data.path", pairs_file, *FAST)
    assert status == 0, err
    folder = tmp_path / "runs" / "retrieval" / "version_0"
    table = dict(re.findall(r"^ *(\S.*?) {2,}([\d.e-]+) *$", out, re.MULTILINE))
    assert float(table["test/R@10"]) > max(float(table[f"test/R@10 {other}"]) for other in ("untrained", "n-grams"))
    assert float(table["test/R@10"]) > 0.6
    assert {"test/R@1 n-grams", "test/MRR", "test/AUROC", "posthoc/test_nll_after"} <= table.keys()
    assert float(table["posthoc/test_nll_after"]) < float(table["posthoc/test_nll_before"])
    assert "report: runs/retrieval/version_0/report.html\n" in out
    page = (folder / "report.html").read_text()
    for words in ("val/R@10", "test/R@1 untrained", "ROC curve", "Reliability", "train/loss", "InfoNCELoss"):
        assert words in page

    saved = ("--config", folder / "config.yaml", "--ckpt_path", "best")
    status, again, err = run("test", *saved)
    assert status == 0, err
    assert re.search(rf"test/R@1 +{table['test/R@1']}", again)
    status, answers, err = run("predict", *saved, "--data.query", "amber birch ceber delrch")
    assert status == 0, err
    shown = re.findall(r"^ +([\d.]+)%  (\S+)$", answers, re.MULTILINE)
    assert len(shown) == 10
    shares = [float(share) for share, _ in shown]
    assert shares == sorted(shares, reverse=True)
    assert {"rebma", "hcrib", "rebec", "hcrled"} & set(shown[0][1].split("_"))

    status, _, err = run("predict", *saved)
    assert status == 0, err
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(rows) >= 330 // 7
    assert all(len(row["answers"]) == 10 for row in rows)
    assert sorted(p.name for p in (tmp_path / "runs" / "retrieval").iterdir()) == ["version_0"]


def test_wrong_calls_say_so_in_a_few_lines_and_leave_nothing(run, pairs_file, tmp_path):
    fit = ("fit", "--config", "retrieval/info_nce")
    (tmp_path / "bad.jsonl").write_text('{"query": "x", "key": ')
    (tmp_path / "few.jsonl").write_text('{"query": "x y", "key": "z"}\n')
    calls = {
        ("fit", "--config", "retrieval/infonce"): (2, "did you mean retrieval/info_nce"),
        (*fit, "--model.loss.tau=3"): (2, "Option 'tau' is not accepted"),
        (*fit, "--model.lr=3"): (2, "Option 'lr' is not accepted"),
        (*fit, "--trainer.max_epoch=3"): (2, "--trainer.max_epoch=3"),
        (*fit, "--data.batch_size=many"): (2, "Expected a <class 'int'>. Got value: many"),
        (*fit, "--data.path=no.jsonl"): (1, "no.jsonl: there is no such file"),
        (*fit, "--data.path=bad.jsonl"): (1, "bad.jsonl:1: is no JSON"),
        (*fit, "--data.path=few.jsonl"): (1, "the val split is empty: 1 rows in 1 groups"),
        (*fit, f"--data.path={pairs_file}", "--data.batch_size=1000"): (1, "batch_size=1000 is more than the"),
        (*fit, "--ckpt_path=no.ckpt"): (2, "--ckpt_path: there is no file no.ckpt"),
        ("test", "--config", "retrieval/info_nce", "--ckpt_path", "best"): (2, "needs --config RUN/config.yaml"),
    }
    for call, (status, words) in calls.items():
        found, out, err = run(*call)
        assert found == status, (call, err)
        assert words in err
        said = [line for line in (out + err).splitlines() if "litlogger" not in line and " available: " not in line]
        assert len(said) <= 12, said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jsonl", "few.jsonl"]


def test_a_checkpoint_of_another_model_is_one_clear_error(run, pairs_file, tmp_path):
    options = ("--data.path", pairs_file, *FAST, "--trainer.max_epochs=1", "--trainer.limit_train_batches=1")
    assert run("fit", "--config", "retrieval/info_nce", *options)[0] == 0
    (checkpoint,) = (tmp_path / "runs" / "retrieval" / "version_0" / "checkpoints").glob("epoch=*.ckpt")
    status, _, err = run(
        "test", "--config", "retrieval/info_nce", *options, "--model.encoder.dim=16", "--ckpt_path", checkpoint
    )
    assert status == 1
    assert "the checkpoint is of another model\n" in err
    assert "encoder.query.table.weight" in err
    assert len(err.split("trainkit test: ")[1].splitlines()) <= 5


class Steps(Callback):
    """Losses and norms of the gradients."""

    def __init__(self):
        self.rows = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        norms = [p.grad.double().norm() for p in pl_module.parameters() if p.grad is not None]
        self.norm = float(torch.stack(norms).norm())

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rows.append((float(trainer.callback_metrics["train/loss"]), self.norm))


def fitted(
    path, folder, *, loss, optimizer, steps=20, epochs=-1, ranks=1, dropout=0.0, clip=None, callbacks=(), ckpt=None
):
    """A run of the recipe: its module and trainer."""
    seed_everything(0)
    module = RetrievalModule(DualEncoder(**SMALL, token_dropout=dropout, dropout=dropout), loss, optimizer)
    # A quarter of the rows leaves a remainder on two ranks.
    data = RetrievalData(path=path, group_field="group", batch_size=32, val_size=51, test_size=51)
    options = {
        "max_steps": steps,
        "max_epochs": epochs,
        "gradient_clip_val": clip,
        **(group_options() if ranks > 1 else {}),
    }
    options["enable_checkpointing"] = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    trainer = trainer_of(folder, list(callbacks), **options)
    with quiet():
        trainer.fit(module, data, ckpt_path=ckpt)
    return module, trainer


OPTIMIZERS = {
    "sgd clipped": (partial(torch.optim.SGD, lr=0.1), 0.1),
    "adamw": (partial(torch.optim.AdamW, lr=1e-3), None),
}
LOSSES = {"info_nce": InfoNCELoss(temperature=0.05), "mann_whitney": MannWhitneyLoss(temperature=0.05)}


def losses_and_scores(path, folder, ranks, optimizer, loss):
    torch.set_num_threads(1)
    make, clip = OPTIMIZERS[optimizer]
    steps, calibration = Steps(), PostHocCalibration()
    module, trainer = fitted(
        path, folder, loss=LOSSES[loss], optimizer=make, clip=clip, ranks=ranks, callbacks=[steps, calibration]
    )
    with quiet():
        (scores,) = trainer.test(module, trainer.datamodule, verbose=False)
    return steps.rows, scores


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_two_ranks_train_and_test_as_one(optimizer, loss, pool, pairs_file, tmp_path):
    whole, scores = losses_and_scores(pairs_file, tmp_path / "one", 1, optimizer, loss)
    assert len(whole) == 20
    for rows, found in pool.run(losses_and_scores, [(pairs_file, tmp_path / "two", 2, optimizer, loss)] * 2):
        torch.testing.assert_close(torch.tensor(rows), torch.tensor(whole), rtol=1e-5, atol=1e-6)
        assert found.keys() == scores.keys()
        for name, value in scores.items():
            assert found[name] == pytest.approx(value, abs=1e-4), name


def test_every_checkpoint_holds_the_calibrator_of_its_own_weights(pairs_file, tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="val/R@10", mode="max", save_top_k=2)
    module, trainer = fitted(
        pairs_file,
        tmp_path,
        loss=LOSSES["info_nce"],
        optimizer=OPTIMIZERS["adamw"][0],
        callbacks=[best, PostHocCalibration()],
        steps=-1,
        epochs=3,
    )
    data = trainer.datamodule
    temperatures = []
    for path in {*best.best_k_models} - {best.best_model_path}, {best.best_model_path}:
        (path,) = path
        module.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
        # Without a fit of its own, a validation of these weights fits one, on the same half of the rows.
        again, fresh = PostHocCalibration(), PostHocCalibration()
        with quiet():
            trainer_of(tmp_path, [again]).validate(module, data, verbose=False)
        assert isinstance(fresh.load(path), TemperatureScaling)
        torch.testing.assert_close(fresh.fitted.temperature, again.fitted.temperature, rtol=1e-6, atol=0)
        temperatures.append(float(fresh.fitted.temperature))
    assert abs(temperatures[0] - temperatures[1]) > 1e-3

    with quiet():
        answers = trainer_of(tmp_path, [PostHocCalibration()]).predict(module, data, ckpt_path=best.best_model_path)
    expected = fresh.fitted(answers[0]["logits"]).softmax(1)
    torch.testing.assert_close(answers[0]["calibrated_probs"], expected)
    assert not torch.allclose(expected, answers[0]["logits"].softmax(1))


def test_a_run_that_stops_in_mid_epoch_ends_with_the_same_weights(pairs_file, tmp_path):
    make = partial(
        fitted, pairs_file, loss=LOSSES["info_nce"], optimizer=OPTIMIZERS["adamw"][0], dropout=0.2, steps=-1, epochs=3
    )
    whole, _ = make(tmp_path / "whole", callbacks=[StepSeed()])
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    make(tmp_path / "kept", callbacks=[StepSeed(), keep])
    for step in (3, 11):
        resumed, _ = make(tmp_path / "resumed", callbacks=[StepSeed()], ckpt=tmp_path / f"step={step}.ckpt")
        for name, value in whole.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_run_resumes_from_its_last_checkpoint(pairs_file, tmp_path):
    """SIGKILL at random times, twenty of them, from the command line and with dropout on."""
    command = [
        sys.executable,
        "-m",
        "trainkit",
        "fit",
        "--config",
        "retrieval/info_nce",
        "--data.path",
        pairs_file,
        *FAST,
    ]
    command += ["--trainer.max_epochs=6", "--model.encoder.dropout=0.2", "--seed_everything=1"]
    command += ["--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"]
    command += ["--trainer.callbacks.every_n_train_steps=1"]
    command += ["--trainer.callbacks.filename=now", "--trainer.callbacks.enable_version_counter=false"]

    def weights(folder):
        (last,) = (folder / "runs" / "retrieval").glob("version_*/checkpoints/last.ckpt")
        return torch.load(last, weights_only=True)["state_dict"]

    def start(folder, *more):
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [*map(str, command), *more], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    assert start(tmp_path / "whole").wait() == 0
    whole = weights(tmp_path / "whole")
    generator = torch.Generator().manual_seed(0)
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        process = start(folder)
        checkpoints = folder / "runs" / "retrieval" / "version_0" / "checkpoints"
        until = int(torch.randint(1, 40, (1,), generator=generator))
        while process.poll() is None and not list(checkpoints.glob("now*")):
            time.sleep(0.01)
        time.sleep(until * 0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        config = folder / "runs" / "retrieval" / "version_0" / "config.yaml"
        assert start(folder, "--config", str(config), "--ckpt_path", str(checkpoints / "now.ckpt")).wait() == 0
        found = torch.load(
            folder / "runs" / "retrieval" / "version_1" / "checkpoints" / "last.ckpt", weights_only=True
        )["state_dict"]
        for name, value in whole.items():
            assert torch.equal(found[name], value), (attempt, name)


def test_temperature_is_that_of_the_loss():
    encoder = DualEncoder(**SMALL)
    assert RetrievalModule(encoder, InfoNCELoss(temperature=0.2)).temperature == 0.2
    learned = RetrievalModule(encoder, InfoNCELoss(temperature=0.2, learnable=True))
    assert learned.temperature == pytest.approx(0.2)
    learned.loss.log_scale.data.fill_(math.log(50))
    assert learned.temperature == pytest.approx(0.02)
    assert RetrievalModule(encoder, torch.nn.Identity()).temperature == 1
