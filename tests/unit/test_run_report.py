"""The report of a run: one page without references to anything outside, that holds what was logged."""

import csv
import math
import os
import re
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.utils.data import DataLoader

from trainkit._core.figures import Axes, Figure, Line
from trainkit.callbacks import RunReport, publish_figure
from trainkit.callbacks._history import CAPACITY, DRAWN, History, Series, curves, quantity
from trainkit.callbacks._report_page import Report, page
from trainkit.callbacks._run_facts import impersonal
from trainkit.callbacks._run_folder import once
from trainkit.callbacks._warning_log import WarningLog

VOID = {"meta"}
FIGURE = Figure((Axes((Line((0, 1), (0, 1)),)),), title="a figure")


class Page(HTMLParser):
    """A page that was parsed: its text, its attributes, and whether its tags are balanced."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.faults, self.words = [], [], [], []
        self.rows = {}
        self.feed(text)
        self.close()
        self.faults += self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.row = []

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)
        if tag == "tr" and self.row:
            self.rows.setdefault(self.row[0], self.row[1:])

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if {"th", "td"} & set(self.open):
            self.row.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def read(folder, name="report.html"):
    text = (Path(folder) / name).read_text(encoding="utf-8")
    found = Page(text)
    assert found.faults == []
    return found


class Net(LightningModule):
    """Logs values that are known: in step s the loss s / 8, at each validation 1 / (1 + epoch)."""

    def __init__(self, stop_at=None, error=None, folder_of=None):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.stop_at, self.error = stop_at, error

    def training_step(self, batch, index):
        if self.global_step == self.stop_at:
            raise self.error
        self.log("train_loss", (self.global_step + 1) / 8, on_step=True, on_epoch=True)
        self.log("rows", float(len(batch)), on_step=True, on_epoch=False)
        return self.head(self.encoder(batch).relu()).square().mean()

    def validation_step(self, batch, index):
        self.log("val_loss", 1 / (1 + self.current_epoch))

    def on_train_epoch_end(self):
        self.log("late", float(self.current_epoch))

    def test_step(self, batch, index):
        self.log("test_loss", 0.125)

    def predict_step(self, batch, index):
        return batch

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.randn(3, generator=torch.Generator().manual_seed(i))


@pytest.fixture(autouse=True)
def quiet():
    once.clear()
    with warnings.catch_warnings():
        for words in (
            ".*does not have many workers",
            ".*LeafSpec",
            "Checkpoint directory",
            ".*val_dataloader",
            "Be aware",
        ):
            warnings.filterwarnings("ignore", words)
        yield


def trainer(folder, *callbacks, **options):
    plain = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "log_every_n_steps": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    return Trainer(callbacks=[*callbacks], **{**plain, **options})


def loader(batch_size=4):
    return DataLoader(Rows(), batch_size)


def series(report, stage, name):
    one = report._history.series[stage, name]
    return dict(zip(one.steps, one.values, strict=True))


def test_the_page_holds_what_was_logged_without_a_logger(tmp_path):
    report = RunReport()
    trainer(tmp_path, report).fit(Net(), loader(), loader())
    found = read(tmp_path)
    assert found.rows["train_loss_step"] == [
        "train",
        "1",
        "step 8, epoch 1",
        "0.25",
        "step 2, epoch 0",
        "1",
        "step 8, epoch 1",
    ]
    assert found.rows["train_loss_epoch"][1] == f"{(5 + 6 + 7 + 8) / 4 / 8:.4g}"
    assert found.rows["val_loss"] == [
        "validate",
        "0.5",
        "step 8, epoch 1",
        "0.5",
        "step 8, epoch 1",
        "1",
        "step 4, epoch 0",
    ]
    assert found.rows["late"][:3] == ["train", "1", "step 8, epoch 1"]
    assert found.rows["rows"][1] == "4"
    assert found.rows["encoder"] == ["Linear", "16", "16"]
    assert found.rows["all"] == ["21", "21"]
    assert found.rows["train"] == ["Rows", "16", "4"]
    assert found.rows["World size"] == ["1"]
    assert {"Net on Rows", "Finished", "loss", "learning rate", "step"} <= set(found.words)
    assert series(report, "train", "train_loss_step") == {2: 0.25, 4: 0.5, 6: 0.75, 8: 1.0}
    assert series(report, "train", "late") == {4: 0.0, 8: 1.0}
    assert series(report, "learning rate", "lr") == pytest.approx({0: 0.1, 2: 0.1, 4: 0.05, 6: 0.05, 8: 0.025})


def test_values_are_those_that_a_logger_gets(tmp_path):
    report = RunReport()
    logger = CSVLogger(tmp_path)
    trainer(tmp_path, report, logger=logger, log_every_n_steps=1).fit(Net(), loader(), loader())
    with open(Path(logger.log_dir) / "metrics.csv", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    for stage, name in (
        ("train", "train_loss_step"),
        ("train", "train_loss_epoch"),
        ("validate", "val_loss"),
        ("train", "late"),
    ):
        # Loggers count from the step before.
        logged = {int(row["step"]) + 1: float(row[name]) for row in rows if row[name]}
        assert series(report, stage, name) == pytest.approx(logged)
    assert read(logger.log_dir).rows["val_loss"]
    assert not (tmp_path / "report.html").exists()


def test_curves_draw_the_values(tmp_path):
    report = RunReport()
    trainer(tmp_path, report).fit(Net(), loader(), loader())
    (loss, shown), *_, (rate, _) = curves(report._history)
    assert [one.name for one in shown] == ["train_loss_step", "train_loss_epoch", "val_loss"]
    assert loss.axes[0].marks[0] == Line((2, 4, 6, 8), (0.25, 0.5, 0.75, 1.0), label="train_loss_step")
    assert loss.axes[0].marks[2] == Line((4, 8), (1.0, 0.5), label="val_loss")
    assert rate.title == "learning rate"


def test_the_page_needs_nothing_from_outside(tmp_path):
    trainer(tmp_path, RunReport()).fit(Net(), loader(), loader())
    found = read(tmp_path)
    names = {name for _, name, _ in found.attributes}
    assert not names & {"src", "href", "srcset", "action", "data", "onload", "onclick"}
    assert not {tag for tag, *_ in found.attributes} & {"script", "link", "iframe", "object", "base", "form"}
    text = (tmp_path / "report.html").read_text()
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert ("html", "lang", "en") in found.attributes
    headings = [value for tag, name, value in found.attributes if tag == "h2" and name == "id"]
    assert headings == [v for tag, name, v in found.attributes if tag == "section" and name == "aria-labelledby"]
    assert len([a for a in found.attributes if a[:2] == ("svg", "aria-label")]) == 4


def test_an_error_is_on_the_page_with_what_came_before(tmp_path):
    net = Net(stop_at=6, error=ValueError(f"no <b>way</b> in {tmp_path}/x"))
    with pytest.raises(ValueError, match="no <b>way</b>"):
        trainer(tmp_path, RunReport()).fit(net, loader(), loader())
    found = read(tmp_path)
    assert {"Stopped", "ValueError: no <b>way</b> in x"} <= set(found.words)
    assert found.rows["train_loss_step"][1] == "0.75"
    assert found.rows["val_loss"][1] == "1"


def test_a_keyboard_interrupt_is_on_the_page(tmp_path):
    with pytest.raises(SystemExit):
        trainer(tmp_path, RunReport()).fit(Net(stop_at=3, error=KeyboardInterrupt()), loader(), loader())
    assert {"Stopped", "KeyboardInterrupt"} <= set(read(tmp_path).words)


def test_an_error_in_the_sanity_check_is_on_the_page_and_its_values_are_not(tmp_path):
    class Bad(Net):
        def validation_step(self, batch, index):
            super().validation_step(batch, index)
            if index == 1:
                raise RuntimeError("here")

    with pytest.raises(RuntimeError, match="here"):
        trainer(tmp_path, RunReport()).fit(Bad(), loader(), loader())
    found = read(tmp_path)
    assert "RuntimeError: here" in found.words
    assert "val_loss" not in found.rows


class Snapshot(Callback):
    """What the page says while the training runs."""

    def __init__(self):
        self.pages = []

    def on_train_epoch_start(self, trainer, pl_module):
        path = Path(trainer.default_root_dir) / "report.html"
        self.pages.append(path.exists() and "Running" in Page(path.read_text()).words)


@pytest.mark.parametrize(("every", "expected"), [(1, [False, True, True]), (2, [False, False, True])])
def test_the_page_is_written_while_the_training_runs(tmp_path, every, expected):
    snapshot = Snapshot()
    trainer(tmp_path, RunReport(every_n_epochs=every), snapshot, max_epochs=3).fit(Net(), loader(), loader())
    assert snapshot.pages == expected
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("validates", [True, False])
def test_a_resumed_run_shows_its_curves_from_the_beginning(tmp_path, validates):
    val = loader() if validates else None
    whole, first, second = RunReport(), RunReport(), RunReport()
    trainer(tmp_path, whole, max_epochs=3).fit(Net(), loader(), val)
    saved = ModelCheckpoint(tmp_path, filename="one", every_n_epochs=1)
    trainer(tmp_path, first, saved, max_epochs=1, enable_checkpointing=True).fit(Net(), loader(), val)
    trainer(tmp_path, second, max_epochs=3).fit(Net(), loader(), val, ckpt_path=tmp_path / "one.ckpt")
    for stage, name in whole._history.series:
        assert series(second, stage, name) == series(whole, stage, name), name
    assert second._started == first._started
    assert second._elapsed() > first._elapsed()


def test_a_resume_from_earlier_forgets_what_came_after(tmp_path):
    report = RunReport()
    saved = ModelCheckpoint(tmp_path, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
    net = Net()
    one = trainer(tmp_path, report, saved, max_epochs=3, enable_checkpointing=True)
    one.fit(net, loader(), loader())
    one.fit_loop.max_epochs = 2
    one.fit(net, loader(), loader(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert series(report, "validate", "val_loss") == {4: 1.0, 8: 0.5}


def test_a_test_after_the_training_goes_onto_the_same_page(tmp_path):
    saved = ModelCheckpoint(tmp_path / "kept", monitor="val_loss", filename="{epoch}", save_top_k=1, save_last=True)
    report = RunReport()
    one = trainer(tmp_path, report, saved, enable_checkpointing=True, max_epochs=3)
    net = Net()
    one.fit(net, loader(), loader())
    before = series(report, "train", "train_loss_step")
    one.test(net, loader(), ckpt_path=tmp_path / "kept" / "epoch=2.ckpt", verbose=False)
    found = read(tmp_path)
    assert found.rows["test_loss"] == ["test", "0.125", "step 12, epoch 2"]
    assert found.rows["kept/epoch=2.ckpt"] == ["best", "val_loss", "0.3333"]
    assert found.rows["kept/last.ckpt"] == ["last", "val_loss"]
    assert series(report, "train", "train_loss_step") == before
    assert found.rows["train"] == ["Rows", "16", "4"]
    assert not [*tmp_path.glob("report_*")]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_stages_alone_have_pages_of_their_own(tmp_path, stage):
    one = trainer(tmp_path, RunReport())
    options = {} if stage == "predict" else {"verbose": False}
    getattr(one, stage)(Net(), loader(), **options)
    found = read(tmp_path, f"report_{stage}.html")
    assert "Finished" in found.words
    assert [*tmp_path.iterdir()] == [tmp_path / f"report_{stage}.html"]
    assert found.rows[stage] == ["Rows", "16", "4"]


def test_nothing_is_written_by_a_trial_run(tmp_path):
    class Publishes(Net):
        def on_validation_end(self):
            publish_figure(self.trainer, "x", FIGURE)

    trainer(tmp_path, RunReport(), fast_dev_run=2).fit(Publishes(), loader(), loader())
    assert [*tmp_path.iterdir()] == []


def test_figures_are_on_the_page_and_the_last_of_a_name_stays(tmp_path):
    class Publishes(Net):
        def on_validation_end(self):
            title = f"epoch {self.current_epoch}"
            publish_figure(self.trainer, "a<b>", Figure((Axes(()),), title=title))

    trainer(tmp_path, RunReport()).fit(Publishes(), loader(), loader())
    found = read(tmp_path)
    assert "a<b>: step 8, epoch 1" in found.words
    assert "epoch 1" in found.words
    assert "epoch 0" not in found.words
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"a-b.svg", "a-b.json"}


def test_everything_is_escaped():
    words = "<script>alert('&\")</script>\x00"
    one = Series("train", words, [1, 2], [0, 0], [1.0, 2.0])
    tables = ((words, (words, words), ((words, words),)), (words, (), ((words, words),)))
    text = page(
        Report(
            words, "stopped", words, (words,), [one], tables=tables, config_name=words, config=words, warnings=[words]
        )
    )
    found = Page(text)
    assert found.faults == []
    assert "<script" not in text
    assert "\x00" not in text
    assert found.text.count("<script>alert('&\")</script>") == 18


def test_the_configuration_of_the_run_is_on_the_page(tmp_path):
    class Saves(Callback):
        config_filename = "config.yaml"

    (tmp_path / "config.yaml").write_text("model:\n  name: <i>x</i>\n")
    trainer(tmp_path, RunReport(), Saves()).fit(Net(), loader())
    assert "model:\n  name: <i>x</i>\n" in read(tmp_path).words
    # Without whoever saves it the file may belong to something else.
    trainer(tmp_path, RunReport()).fit(Net(), loader())
    assert repr(Net()) in read(tmp_path).words


def test_values_that_are_no_numbers_are_shown_and_warned_of(tmp_path):
    class Bad(Net):
        def training_step(self, batch, index):
            self.log("grad", math.nan if self.global_step >= 3 else 1.0)
            return super().training_step(batch, index)

    trainer(tmp_path, RunReport(), log_every_n_steps=1).fit(Bad(), loader(), loader())
    found = read(tmp_path)
    assert found.rows["grad"][1:4] == ["nan", "step 8, epoch 1", "1"]
    assert "grad was no finite number 5 times, first at step 4" in found.words


def test_warnings_are_noted_and_shown_all_the_same(tmp_path):
    class Warns(Net):
        def on_train_start(self):
            warnings.warn(f"look into {tmp_path}/here <now>", UserWarning, stacklevel=1)

    shown = warnings.showwarning
    with pytest.warns(UserWarning, match="look into"):
        trainer(tmp_path, RunReport()).fit(Warns(), loader())
    assert "UserWarning: look into here <now>" in read(tmp_path).words
    assert warnings.showwarning is shown


def test_a_warning_log_leaves_what_others_put_there():
    log, other = WarningLog(), lambda *_: None
    with warnings.catch_warnings():
        log.start()
        warnings.showwarning = other
        log.stop()
        assert warnings.showwarning is other


class Losses(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(outputs["loss"].item())


@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 2}, {"val_check_interval": 3}, {"precision": "bf16-mixed"}]
)
def test_the_training_is_bitwise_the_same(tmp_path, options):
    results = []
    for callbacks in ([], [RunReport()]):
        net, losses = Net(), Losses()
        torch.manual_seed(0)
        trainer(tmp_path, *callbacks, losses, **options).fit(net, DataLoader(Rows(), 4, shuffle=True), loader())
        results.append((losses.seen, [p.detach().clone() for p in net.parameters()], torch.random.get_rng_state()))
    (seen, weights, rng), (own, others, after) = results
    assert own == seen
    assert torch.equal(rng, after)
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def test_accumulated_batches_count_as_one_step(tmp_path):
    report = RunReport()
    trainer(tmp_path, report, accumulate_grad_batches=2, log_every_n_steps=1).fit(Net(), loader(2))
    assert [*series(report, "train", "rows")] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_no_page_is_made_of_what_fails_and_the_training_goes_on(tmp_path):
    class Odd(Net):
        def __repr__(self):
            raise RuntimeError("no words")

    one = trainer(tmp_path, RunReport())
    with pytest.warns(UserWarning, match="RunReport: the page could not be made: RuntimeError: no words"):
        one.fit(Odd(), loader())
    assert one.global_step == 8


def test_a_folder_that_takes_no_files_warns_once_and_the_training_goes_on(tmp_path):
    (tmp_path / "file").touch()
    one = trainer(tmp_path / "file" / "run", RunReport())
    with pytest.warns(UserWarning, match=r"report\.html could not be written: Not a directory") as heard:
        one.fit(Net(), loader())
    assert len([w for w in heard if "could not be written" in str(w.message)]) == 1
    assert one.global_step == 8


class DDPNet(Net):
    def training_step(self, batch, index):
        self.log("mean_row", batch.mean(), on_step=False, on_epoch=True, sync_dist=True)
        return super().training_step(batch, index)

    def on_validation_end(self):
        publish_figure(self.trainer, "ranks", FIGURE)


def test_two_ranks_write_one_page(tmp_path):
    one = trainer(tmp_path, RunReport(), devices=2, strategy="ddp_fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one.fit(DDPNet(), loader(), loader())
    found = read(tmp_path)
    assert found.rows["World size"] == ["2"]
    assert found.rows["train_loss_step"][1] == "0.5"
    mean = torch.stack([Rows()[i] for i in range(16)]).mean()
    assert float(found.rows["mean_row"][1]) == pytest.approx(float(mean), rel=1e-3)
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "figures"}


def test_names_of_people_and_their_folders_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir(tmp_path)
    text = f"{tmp_path}/a {tmp_path}/runs/1/b {tmp_path} {tmp_path}x /home/someone/c /home/someone-else"
    assert impersonal(text, tmp_path / "runs" / "1") == f"a b ./ {tmp_path}x ~/c /home/someone-else"
    assert impersonal("/root/x /a", Path("/")) == "/root/x /a"


# History


def test_a_long_series_keeps_its_extremes_ends_and_order():
    history = History()
    values = [math.sin(i / 50) + (i == 777) * 5 - (i == 12_345) * 5 for i in range(50_000)]
    for step, value in enumerate(values):
        history.add("train", "x", step, step // 1000, value)
    (one,) = history.metrics()
    assert len(one.steps) <= CAPACITY
    assert one.steps == sorted(set(one.steps))
    assert [one.values[i] for i in range(len(one.steps))] == [values[step] for step in one.steps]
    low, high = one.extremes()
    assert (one.steps[low], one.epochs[low], one.steps[high]) == (12_345, 12, 777)
    assert (one.steps[0], one.steps[-1]) == (0, 49_999)
    # No part of the run is much thinner than another.
    steps, drawn = one.drawn()
    for counted, parts in ((steps, 5), (one.steps, 4)):
        counts = [sum(start <= step < start + 10_000 for step in counted) for start in range(0, parts * 10_000, 10_000)]
        assert max(counts) <= 2 * min(counts)
    assert len(steps) <= DRAWN
    assert {max(values), min(values)} <= set(drawn)


def test_the_state_gives_the_history_back_and_shares_nothing():
    history, other = History(), History()
    for step in range(5):
        history.add("validate", "x", step, 0, step if step != 3 else math.nan)
    other.load(history.state())
    assert repr(other.state()) == repr(history.state())
    other.add("validate", "x", 9, 1, 1.0)
    assert len(history.series["validate", "x"].steps) == 5
    assert (other.series["validate", "x"].bad, other.series["validate", "x"].first_bad) == (1, 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train_loss_step", "loss"),
        ("val/loss", "loss"),
        ("loss/val", "loss"),
        ("val_loss/dataloader_idx_1", "loss"),
        ("validation_acc_epoch", "acc"),
        ("value", "value"),
        ("train", "train"),
        ("footstep", "footstep"),
    ],
)
def test_metrics_of_one_quantity_share_a_figure(name, expected):
    assert quantity(name) == expected


# Figures


class Taker:
    """An experiment of a logger; keeps what it is called with."""

    def __init__(self, way):
        self.calls = []
        setattr(self, way, lambda *args, **named: self.calls.append((args, named)))


class FakeLogger(Logger):
    name, version = "fake", 0

    def __init__(self, folder, experiment, **more):
        super().__init__()
        self.folder, self.taker = folder, experiment
        vars(self).update(more)

    @property
    def save_dir(self):
        return self.folder

    def log_metrics(self, metrics, step=None): ...

    def log_hyperparams(self, params): ...

    @property
    def experiment(self):
        if isinstance(self.taker, Exception):
            raise self.taker
        return self.taker


def published(tmp_path, logger, name="curve/a"):
    publish_figure(trainer(tmp_path, logger=logger), name, FIGURE)


@pytest.fixture
def drawn(monkeypatch):
    """As if matplotlib were there."""
    module = "trainkit.callbacks.publish_figure"
    monkeypatch.setattr(sys.modules[module], "find_spec", lambda name: True)
    monkeypatch.setattr(sys.modules[module], "to_matplotlib", lambda owner, figure: (figure.title, None))


def test_loggers_get_the_picture_in_their_own_way(tmp_path, drawn):
    board, run, comet = Taker("add_figure"), Taker("log_figure"), Taker("log_figure")
    pictures = Taker("log_image")
    published(tmp_path, FakeLogger(tmp_path, board))
    published(tmp_path, FakeLogger(tmp_path, run, run_id="7"))
    published(tmp_path, FakeLogger(tmp_path, comet))
    published(tmp_path, FakeLogger(tmp_path, object(), log_image=pictures.log_image))
    assert board.calls == [(("curve/a", "a figure", 0), {})]
    assert run.calls == [(("7", "a figure", "figures/curve-a-0.png"), {})]
    assert comet.calls == [((), {"figure_name": "curve/a", "figure": "a figure", "step": 0})]
    assert pictures.calls == [(("curve/a", ["a figure"]), {"step": 0})]


def test_a_logger_that_fails_warns_once(tmp_path, drawn):
    logger = FakeLogger(tmp_path, ConnectionError("out of reach"))
    with pytest.warns(UserWarning, match="FakeLogger took no picture: ConnectionError: out of reach") as heard:
        [published(tmp_path, logger) for _ in range(2)]
    assert len(heard) == 1


def test_missing_matplotlib_is_told_once_and_only_where_somebody_takes_pictures(tmp_path, monkeypatch):

    monkeypatch.setattr(sys.modules["trainkit.callbacks.publish_figure"], "find_spec", lambda name: None)
    told = []
    monkeypatch.setattr(once, "info", told.append)
    published(tmp_path, CSVLogger(tmp_path))
    published(tmp_path, False)
    assert told == []
    published(tmp_path, FakeLogger(tmp_path, Taker("add_figure")))
    assert "FakeLogger gets no pictures, since matplotlib is missing (pip install 'trainkit[plots]')" in told[0]


def test_tensorboard_gets_the_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures for loggers need the extra plots")
    pytest.importorskip("tensorboard", reason="the logger is tensorboard's")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    published(tmp_path, logger)
    logger.experiment.flush()
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert events.Tags()["images"] == ["curve/a"]


def test_files_of_a_figure_lie_in_the_run_folder_and_stay_within(tmp_path):
    one = trainer(tmp_path)
    publish_figure(one, "../up\\and:away", FIGURE)
    publish_figure(one, "größe 1.5", FIGURE)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {f"figures/{stem}.{kind}" for stem in ("up-and-away", "größe-1.5") for kind in ("svg", "json")}
    text = (tmp_path / "figures" / "up-and-away.json").read_text()
    assert Figure.from_json(text) == FIGURE


@pytest.mark.parametrize("name", ["", "..", "/", " - "])
def test_a_name_without_letters_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="publish_figure: name must hold a letter or a digit, got"):
        publish_figure(trainer(tmp_path), name, FIGURE)


def test_folders_of_other_machines_are_left_alone(tmp_path):
    one = trainer(tmp_path)
    one._default_root_dir = "s3://bucket/run"
    with pytest.warns(UserWarning, match="folders of this machine only, not to s3://bucket/run"):
        publish_figure(one, "x", FIGURE)
    assert not os.path.exists("s3:")
