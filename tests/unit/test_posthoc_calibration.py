"""Each checkpoint holds the calibrator of its own weights, and brings it along wherever the weights are used."""

import copy

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from torch.utils.data import DataLoader

from tests.unit import lightning_fits as fits
from tests.unit.lightning_fits import Net, OtherNames, Rows, Tensors, Tuples, fit, loader, quiet, trainer_of
from trainkit.calibration.calibrators import TemperatureScaling
from trainkit.calibration.metrics import BrierScore, NegativeLogLikelihood
from trainkit.callbacks import PostHocCalibration
from trainkit.callbacks._held_out import HeldOutRows
from trainkit.testing.callbacks.runs import group_options

NAMES = {"logits": "y_hat", "target": "labels"}


def logged(trainer, start="posthoc/"):
    return {k.removeprefix(start): float(v) for k, v in trainer.callback_metrics.items() if k.startswith(start)}


def split(logits, target, holdout=0.5, index=None, max_rows=10**6):
    """Fit part and score part of rows, by the class that is tested below."""
    rows = HeldOutRows("Test", holdout, max_rows)
    rows.add({"logits": logits, "target": target} | ({} if index is None else {"index": index}))
    return rows.finish(torch.device("cpu"))


def nll(logits, target):
    metric = NegativeLogLikelihood()
    metric.update(logits, target)
    return float(metric.compute())


def logits_of(net, data):
    net.eval()
    with torch.no_grad():
        return torch.cat([net.net(batch["x"]) for batch in data]), torch.cat([batch["labels"] for batch in data])


def weights_in(path):
    net = Net()
    net.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    return net


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A fit of four epochs, of which every checkpoint was kept."""
    folder = tmp_path_factory.mktemp("trained")
    keeping = ModelCheckpoint(folder, monitor="posthoc/val_nll_after", save_top_k=-1, filename="{epoch}")
    callback = PostHocCalibration()
    validation = DataLoader(Rows(90), 16)
    trainer = fit(Net(), [callback, keeping], folder, validation, max_epochs=4, enable_checkpointing=True)
    return callback, keeping, trainer, validation


def test_each_checkpoint_holds_the_calibrator_of_its_own_weights(trained):
    _, keeping, _, validation = trained
    temperatures = set()
    for path, value in keeping.best_k_models.items():
        logits, target = logits_of(weights_in(path), validation)
        part = split(logits, target, index=torch.arange(90))
        by_hand = TemperatureScaling().fit(part.fit["logits"], part.fit["target"])
        loaded = PostHocCalibration().load(path)
        assert float(loaded.temperature) == pytest.approx(float(by_hand.temperature), rel=1e-6)
        assert float(value) == pytest.approx(nll(by_hand(part.score["logits"]), part.score["target"]), rel=1e-6)
        temperatures.add(round(float(loaded.temperature), 6))
    assert len(temperatures) == 4


def test_scores_before_and_after_are_of_the_rows_that_the_fit_did_not_see(trained):
    callback, _, trainer, validation = trained
    logits, target = logits_of(trainer.lightning_module, validation)
    part = split(logits, target)
    found = logged(trainer)
    brier = BrierScore()
    brier.update(callback.fitted(part.score["logits"]), part.score["target"])
    expected = {
        "val_nll_before": nll(part.score["logits"], part.score["target"]),
        "val_nll_after": nll(callback.fitted(part.score["logits"]), part.score["target"]),
        "val_brier_after": float(brier.compute()),
        "val_temperature": float(callback.fitted.temperature),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert set(found) == {*expected, "val_brier_before", "val_ece_before", "val_ece_after"}
    assert int(callback.fitted.n_fit) == len(part.fit["target"])
    assert len(part.fit["target"]) + len(part.score["target"]) == 90


def test_predict_in_a_new_trainer_applies_the_calibrator_of_the_checkpoint(trained, tmp_path):
    _, keeping, _, _ = trained

    class Writer(BasePredictionWriter):
        def write_on_batch_end(self, trainer, pl_module, prediction, *args):
            self.seen = sorted(prediction)

    first = min(keeping.best_k_models)
    # Writers come later than the calibration, wherever they stand.
    writer, callback = Writer(), PostHocCalibration()
    trainer = trainer_of(tmp_path, [writer, callback])
    with quiet():
        predictions = trainer.predict(Net(), loader(), ckpt_path=first)
    logits, _ = logits_of(weights_in(first), loader())
    calibrator = PostHocCalibration().load(first)
    got = torch.cat([p["calibrated_logits"] for p in predictions])
    torch.testing.assert_close(got, calibrator(logits))
    torch.testing.assert_close(torch.cat([p["calibrated_probs"] for p in predictions]), calibrator(logits).softmax(1))
    assert writer.seen == ["calibrated_logits", "calibrated_probs", "logits", "target"]
    # Another checkpoint in the same trainer brings another calibrator.
    last = max(keeping.best_k_models)
    with quiet():
        trainer.predict(Net(), loader(), ckpt_path=last)
    assert callback.fitted.temperature == PostHocCalibration().load(last).temperature != calibrator.temperature


def test_test_and_validate_score_the_calibrator_of_the_checkpoint(trained, tmp_path):
    _, keeping, _, validation = trained
    first = min(keeping.best_k_models)
    calibrator = PostHocCalibration().load(first)
    trainer = trainer_of(tmp_path, [PostHocCalibration()])
    with quiet():
        trainer.test(Net(), [loader(20, 500), loader(9, 700)], ckpt_path=first, verbose=False)
    found = logged(trainer)
    for i, data in enumerate((loader(20, 500), loader(9, 700))):
        logits, target = logits_of(weights_in(first), data)
        assert found[f"test_nll_before/dataloader_idx_{i}"] == pytest.approx(nll(logits, target), rel=1e-6)
        assert found[f"test_nll_after/dataloader_idx_{i}"] == pytest.approx(nll(calibrator(logits), target), rel=1e-6)
    with quiet():
        trainer.validate(Net(), validation, ckpt_path=first, verbose=False)
    assert logged(trainer)["val_nll_after"] == pytest.approx(float(keeping.best_k_models[first]), rel=1e-6)
    assert len([path for path in tmp_path.rglob("*.svg") if "test_reliability" in str(path)]) == 2


@pytest.mark.parametrize(
    ("net", "outputs"),
    [(OtherNames, NAMES), (Tuples, lambda out, batch: {"logits": out[0], "target": out[1]})],
    ids=["names", "function"],
)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_is_bitwise_the_same(net, outputs, precision, tmp_path):
    alone, watched = net(), net()
    validation = DataLoader(Rows(90), 16)
    fit(alone, [], tmp_path, validation, precision=precision)
    callback = PostHocCalibration(outputs=outputs)
    fit(watched, [callback], tmp_path, validation, precision=precision)
    assert fits.same_training(watched, alone)
    assert callback.fitted.converged


def test_a_resumed_run_ends_with_the_same_calibrator(tmp_path):
    class Plain(Net):
        def training_step(self, batch, index):
            self.net[2].p = 0.0
            return super().training_step(batch, index)

    validation = DataLoader(Rows(90), 16)
    whole = PostHocCalibration()
    keeping = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    fit(Plain(), [whole, keeping], tmp_path, validation, max_epochs=3, enable_checkpointing=True)
    resumed = PostHocCalibration()
    path = tmp_path / "epoch=1.ckpt"
    fit(Plain(), [resumed], tmp_path, validation, path, max_epochs=3)
    assert resumed.fitted.temperature == whole.fitted.temperature
    # With nothing left to train, the state is that of the file.
    again = PostHocCalibration()
    fit(Plain(), [again], tmp_path, validation, path, max_epochs=2)
    assert again.fitted.temperature == PostHocCalibration().load(path).temperature


def test_a_checkpoint_between_validations_is_told_apart(tmp_path):
    callback = PostHocCalibration()
    keeping = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    validation = DataLoader(Rows(90), 16)
    fit(Net(), [callback, keeping], tmp_path, validation, max_epochs=2, enable_checkpointing=True)
    with pytest.warns(UserWarning, match=r"has weights of step 9, but the calibrator was fitted at 8"):
        PostHocCalibration().load(tmp_path / "step=9.ckpt")
    with pytest.raises(ValueError, match=r"the checkpoint .*step=3\.ckpt must hold a calibrator under .*, got none"):
        PostHocCalibration().load(tmp_path / "step=3.ckpt")


def test_a_second_fit_does_not_save_the_calibrator_of_the_first(tmp_path):
    callback = PostHocCalibration()
    fit(Net(), [callback], tmp_path, DataLoader(Rows(90), 16), max_epochs=1)
    assert callback.state_dict()["step"] == 8
    fit(Net(), [callback], tmp_path, max_epochs=1, limit_val_batches=0)
    assert callback.state_dict() == {}


def ended(folder, sizes=None, indices=True, max_rows=10**6):
    """Fit and scores of a validation, on a rank of a group if one is up."""

    class Indexed(Net):
        def returned(self, logits, batch):
            return super().returned(logits, batch) | ({"index": batch["index"]} if indices else {})

        def validation_step(self, batch, index):
            return super().validation_step({k: batch[k] for k in batch if indices or k != "index"}, index)

    options, data = {}, loader()
    if dist.is_initialized():
        options, data = group_options(), fits.rank_loader(dist.get_rank(), sizes)
    callback = PostHocCalibration(max_rows=max_rows, outputs=None if indices else positions)
    trainer = trainer_of(folder, [callback], **options)
    net = Indexed()
    with quiet():
        trainer.validate(net, data, verbose=False)
    return logged(trainer), int(callback.fitted.n_fit)


def positions(returned, batch):
    return {"logits": returned["logits"], "target": returned["target"]}


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize(
    "arguments",
    [(None, False), (None, True), ((15, 7), True), ((22, 0), True), ((0, 22), True), ((7, 15), True, 18)],
    ids=str,
)
def test_two_ranks_have_the_fit_of_one_process(pool, arguments, tmp_path):
    expected, count = ended(tmp_path, *arguments)
    for found, n_fit in pool.run(ended, [(tmp_path, *arguments)] * 2):
        # Logits are fp32 and round otherwise in batches of another size.
        assert found == pytest.approx(expected, rel=1e-6)
        assert n_fit == count
    assert len(expected) == 7


def test_rows_are_split_by_their_index_alone():
    logits, target = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), torch.arange(1000) % 3
    index = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    first, again = split(logits, target, 0.3), split(logits[index], target[index], 0.3, index)
    assert sorted(first.fit["logits"].tolist()) == sorted(again.fit["logits"].tolist())
    assert (first.kept, first.seen, first.fit_rows) == (1000, 1000, len(first.fit["target"]))
    # Four standard deviations.
    assert abs(len(first.score["target"]) - 300) < 4 * (1000 * 0.3 * 0.7) ** 0.5
    assert len(split(logits, target, 0.0).score["target"]) == 0


def test_of_too_many_rows_those_of_the_smallest_hashes_are_kept_whatever_the_batches():
    logits, target = torch.randn(1000, 3), torch.arange(1000) % 3
    whole = split(logits, target, max_rows=200)
    in_batches = HeldOutRows("Test", 0.5, 200)
    for first in range(0, 1000, 37):
        in_batches.add({"logits": logits[first : first + 37], "target": target[first : first + 37]})
        assert sum(len(part["index"]) for part in in_batches.parts) <= 400
    found = in_batches.finish(torch.device("cpu"))
    assert (found.kept, found.seen) == (whole.kept, whole.seen) == (200, 1000)
    for ours, theirs in ((found.fit, whole.fit), (found.score, whole.score)):
        assert sorted(ours["logits"].tolist()) == sorted(theirs["logits"].tolist())
    # The split is not that of the hash by which rows are kept.
    assert 70 < len(whole.score["target"]) < 130


def test_a_row_that_comes_twice_counts_once():
    index = torch.arange(20).repeat(2)
    found = split(torch.randn(40, 3), index % 3, index=index)
    assert (found.kept, found.seen) == (20, 40)


@pytest.mark.filterwarnings("ignore")
def test_two_in_one_trainer_and_copies(tmp_path):
    first, second = (
        PostHocCalibration(),
        PostHocCalibration(TemperatureScaling(t_min=50.0, t_max=60.0), prefix="bounded"),
    )
    keeping = ModelCheckpoint(tmp_path, filename="both")
    validation = DataLoader(Rows(90), 16)
    trainer = trainer_of(tmp_path, [first, second, keeping], enable_checkpointing=True, max_epochs=1)
    with pytest.warns(UserWarning, match=r"t_min=50 was reached"):
        trainer.fit(Net(), loader(32, 100), validation)
    assert second.fitted.temperature == 50.0 != first.fitted.temperature
    assert PostHocCalibration(prefix="bounded").load(tmp_path / "both.ckpt").temperature == 50.0
    assert copy.deepcopy(first).fitted.temperature == first.fitted.temperature
    assert not second.calibrator.fitted


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_done_is_said(tmp_path, trained):
    _, keeping, _, _ = trained
    path = min(keeping.best_k_models)
    with pytest.raises(RuntimeError, match="PostHocCalibration: there is no fit yet; run trainer.fit"):
        _ = PostHocCalibration().fitted
    with quiet(), pytest.raises(RuntimeError, match="there is no fit yet; run trainer.fit or give a ckpt_path"):
        trainer_of(tmp_path, [PostHocCalibration()]).predict(Net(), loader())
    other = PostHocCalibration(prefix="other")
    with quiet(), pytest.raises(RuntimeError, match=rf"the checkpoint {path} must hold a calibrator under .*'other'"):
        trainer_of(tmp_path, [other]).predict(Net(), loader(), ckpt_path=path)
    words = "predict_step must return a mapping, which calibrated logits are added to, got a tensor of shape"
    with quiet(), pytest.raises(TypeError, match=words):
        trainer_of(tmp_path, [PostHocCalibration()]).predict(Tensors(), loader(), ckpt_path=path)
    with pytest.warns(UserWarning, match="there is no fit yet; .*; nothing is logged"):
        trainer_of(tmp_path, [PostHocCalibration()]).test(Net(), loader(), verbose=False)
    with pytest.warns(UserWarning, match="no fit, since holdout=0.99 leaves none of 4 rows for it"):
        trainer_of(tmp_path, [PostHocCalibration(holdout=0.99)]).validate(Net(), loader(4), verbose=False)
