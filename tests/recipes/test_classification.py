"""The classification recipe."""

import json

import numpy as np
import pytest
import torch
import torchmetrics.classification
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from trainkit.recipes import MLP, ClassificationData, ClassificationModule, ConvNet
from trainkit.recipes._confusion import BalancedAccuracy
from trainkit.recipes.data.augment import flip_and_shift
from trainkit.recipes.data.errors import DataError
from trainkit.recipes.data.stratified import stratified

from tests.recipes.runs import command, logged, trainer_in, two_ranks
from tests.unit.lightning_fits import quiet
from trainkit.callbacks import StepSeed
from trainkit.losses import CombinedLoss, FocalLoss, InfoNCELoss, SmoothedCrossEntropyLoss

SIDE = 6


def sgd(params):
    return torch.optim.SGD(params, lr=0.05)


def arrays(rows=90, classes=3, seed=0):
    """Images in which a class is a bright row, and labels."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    x = rng.integers(0, 160, (rows, SIDE, SIDE))
    x[np.arange(rows), y] += 60
    return x.astype(np.uint8), y


@pytest.fixture
def npz(tmp_path):
    """Writes arrays, by default good ones, and gives the file."""

    def write(**changed):
        x, y = arrays()
        kept = {name: value for name, value in {"X": x, "y": y, **changed}.items() if value is not None}
        np.savez(tmp_path / "rows.npz", **kept)
        return tmp_path / "rows.npz"

    return write


def module(data, network=None, loss=None, optimizer=sgd, **options):
    torch.manual_seed(0)
    network = MLP(hidden=16, depth=1) if network is None else network
    loss = SmoothedCrossEntropyLoss() if loss is None else loss
    return ClassificationModule(network, loss, data.num_classes, data.in_shape, optimizer, **options)


def fit(folder, data, model, ckpt_path=None, **options):
    with quiet():
        trainer = trainer_in(folder, **{"max_epochs": 2, **options})
        trainer.fit(model, datamodule=data, ckpt_path=ckpt_path)
    return trainer


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The folder of a run of the config for digits."""
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = ["--trainer.max_epochs=8", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
        assert command("fit", "--config", "classification/digits", *options) == 0
    return folder / "runs" / "classification" / "version_0"


def predicted(folder, *options):
    options = ["--config", folder / "config.yaml", "--ckpt_path", "best", *options]
    assert command("predict", *options, "--trainer.enable_progress_bar=false") == 0
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def test_learns_digits(digits):
    values = logged(digits)
    assert values["test/accuracy"][-1] >= 0.95
    assert values["test/balanced_accuracy"][-1] >= 0.95
    assert values["posthoc/test_ece_after"][-1] < values["calibration/test_ece"][-1]
    assert {"val/loss", "val/accuracy", "calibration/val_ece", "calibration/test_nll"} <= set(values)
    figure = json.loads((digits / "figures" / "test-balanced_accuracy.json").read_text())
    assert figure["axes"][0]["marks"][0]["rows"] == [str(i) for i in range(10)]


def test_predictions_are_calibrated_and_alike_on_two_ranks(digits):
    rows = predicted(digits)
    data = ClassificationData()
    test = data.ready.splits["test"]
    assert [row["index"] for row in rows] == test
    assert rows[0]["name"] == f"digits[{test[0]}]"
    probs = torch.tensor([list(row["probabilities"].values()) for row in rows])
    torch.testing.assert_close(probs.sum(1), torch.ones(len(test)))
    assert [row["predicted"] for row in rows] == [str(i) for i in probs.argmax(1).tolist()]
    model = module(data, ConvNet())
    best = next(path for path in (digits / "checkpoints").glob("epoch*.ckpt"))
    model.load_state_dict(torch.load(best, weights_only=True)["state_dict"])
    with torch.no_grad():
        plain = model.eval().network(data.ready.batch(test)["x"]).softmax(1)
    assert (plain.argmax(1) == probs.argmax(1)).all()
    assert (plain - probs).abs().mean() > 0.01
    # 359 rows, which two ranks can't share evenly.
    again = predicted(digits, "--trainer.strategy=ddp_fork", "--trainer.devices=2")
    assert [(row["index"], row["predicted"]) for row in again] == [(row["index"], row["predicted"]) for row in rows]


# Of 49 rows one rank takes four batches and the other three.
@pytest.mark.parametrize("rows", [60, 49])
def test_two_ranks_train_and_evaluate_as_one_process(npz, tmp_path, rows):
    x, y = arrays(150)
    path = npz(X=x, y=y)
    found = []
    for name, options in (("one", {}), ("two", two_ranks())):
        data = ClassificationData(path=path, batch_size=16, val_size=rows, test_size=rows // 2)
        fit(tmp_path / name, data, module(data), **options)
        found.append(logged(tmp_path / name))
    one, two = found
    assert len(one["train/loss"]) == 2 * ((150 - rows - rows // 2) // 16)
    assert list(one) == list(two)
    for name, values in one.items():
        assert two[name] == pytest.approx(values, abs=1e-5), name


def test_fewer_rows_than_ranks_are_refused(npz, tmp_path):
    data = ClassificationData(path=npz(), batch_size=2, val_size=1, test_size=5)
    with pytest.raises(Exception, match="1 rows to evaluate can't be shared by 2 ranks"):
        fit(tmp_path, data, module(data), max_epochs=1, **two_ranks())


class Kill(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 6:
            raise RuntimeError("killed")


def test_a_killed_run_goes_on_bitwise(npz, tmp_path):
    def start(folder, *callbacks, ckpt_path=None):
        data = ClassificationData(path=npz(), batch_size=12, augment=True)
        model = module(data, ConvNet(width=4, dropout=0.3), optimizer=torch.optim.AdamW)
        saved = ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1)
        chosen = [StepSeed(), saved, *callbacks]
        fit(folder, data, model, ckpt_path, max_epochs=3, callbacks=chosen, enable_checkpointing=True)
        return model.state_dict(), logged(folder)["val/loss"][-1]

    weights, loss = start(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="killed"):
        start(tmp_path / "killed", Kill())
    (checkpoint,) = (tmp_path / "killed").glob("*step=5.ckpt")
    again, loss_again = start(tmp_path / "resumed", ckpt_path=checkpoint)
    assert [name for name in weights if not torch.equal(weights[name], again[name])] == []
    assert loss == loss_again


@pytest.mark.parametrize(
    "loss",
    [
        FocalLoss(),
        SmoothedCrossEntropyLoss(class_weight=[1.0, 2.0, 3.0]),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        CombinedLoss([(1.0, FocalLoss()), (0.5, SmoothedCrossEntropyLoss())]),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_come_by_name_and_are_averaged_over_rows(npz, tmp_path, loss):
    data = ClassificationData(path=npz(), batch_size=8)
    model = module(data, loss=loss, metrics={"auroc": torchmetrics.classification.MulticlassAUROC(3)})
    fit(tmp_path, data, model, max_epochs=1)
    batch = data.ready.batch(data.ready.splits["val"])
    with torch.no_grad():
        logits = model.eval().network(batch["x"])
        alone = [loss(row[None], target[None]) for row, target in zip(logits, batch["target"], strict=True)]
    values = logged(tmp_path)
    if getattr(loss, "class_weight", None) is None:
        assert values["val/loss"][-1] == pytest.approx(float(torch.stack(alone).mean()), rel=1e-5)
    assert 0 <= values["val/auroc"][-1] <= 1
    assert getattr(loss, "reduction", "mean") == "mean"


def test_a_loss_on_other_tensors_says_what_it_misses(npz, tmp_path):
    data = ClassificationData(path=npz(), batch_size=18)
    with pytest.raises(
        ValueError, match="InfoNCELoss: needs the tensor 'query', but only these were given: logits, tar"
    ):
        fit(tmp_path, data, module(data, loss=InfoNCELoss()))


def test_a_network_with_another_head_is_refused(npz, tmp_path):
    data = ClassificationData(path=npz(), batch_size=18)
    network = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 5))
    with pytest.raises(
        ValueError, match=r"Sequential: must give a logit for each class, shape \(18, 3\), got \(18, 5\)"
    ):
        fit(tmp_path, data, module(data, network))


def test_plain_loaders_and_a_network_of_ones_own(tmp_path):
    x, y = arrays()
    rows = [{"x": torch.tensor(x[i] / 255).float(), "target": int(y[i]), "index": i} for i in range(len(y))]
    network = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 3))
    model = ClassificationModule(network, FocalLoss(), num_classes=3, warmup=None)
    with quiet():
        trainer = trainer_in(tmp_path, max_epochs=1)
        trainer.fit(model, torch.utils.data.DataLoader(rows, 9), torch.utils.data.DataLoader(rows, 9))
    figure = json.loads((tmp_path / "figures" / "val-balanced_accuracy.json").read_text())
    assert figure["axes"][0]["marks"][0]["rows"] == ["0", "1", "2"]


def test_many_classes_have_recalls_and_no_table():
    metric = BalancedAccuracy(30)
    logits, target = torch.eye(30)[torch.arange(40) % 20], torch.arange(40) % 25
    metric.update(logits, target)
    counts = torch.tensor([float((target[logits.argmax(1) == k] == k).sum()) for k in range(25)])
    torch.testing.assert_close(metric.compute(), (counts / target.bincount()).double().mean())
    (recalls,) = metric.figure().axes
    assert recalls.title == "Recall by class"


def test_networks_need_to_be_built():
    with pytest.raises(RuntimeError, match="MLP: call build"):
        MLP()(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="ConvNet: in_shape must be"):
        ConvNet().build((4,), 3)
    tiny = ConvNet()
    tiny.build((1, 1, 3), 2)
    assert tiny(torch.zeros(2, 1, 1, 3)).shape == (2, 2)
    usual = ConvNet()
    usual.build((1, 28, 28), 10)
    assert 23_000 < sum(p.numel() for p in usual.parameters()) < 25_000


def test_splits_share_no_row_and_keep_the_shares_of_classes():
    y = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    parts = stratified(y, range(100), [20, 10], seed=3)
    assert sorted(row for part in parts for row in part) == list(range(100))
    assert [y[part].bincount().tolist() for part in parts] == [[10, 6, 4], [5, 3, 2], [35, 21, 14]]
    assert parts != stratified(y, range(100), [20, 10], seed=4)


def test_digits_are_split_sixty_twenty_twenty():
    splits = ClassificationData().ready.splits
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 1079, "val": 359, "test": 359}


def test_rows_are_normalised_by_those_to_train_on(npz, caplog):
    caplog.set_level("INFO", "lightning.pytorch.utilities.rank_zero")
    ready = ClassificationData(path=npz(), limit_train=40, batch_size=8).ready
    assert "90 rows in 3 classes; 40 train, 18 val, 18 test (limit_train=40)" in caplog.text
    x = ready.batch(ready.splits["train"])["x"]
    assert x.shape == (40, 1, SIDE, SIDE)
    assert abs(float(x.mean())) < 1e-5
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_vectors_and_strings_and_a_test_of_its_own(npz):
    x, y = arrays()
    names = np.array(["pear", "apple", "fig"])
    path = npz(X=x.reshape(90, -1) / 255, y=names[y], Xt=x[:9].reshape(9, -1) / 255, yt=names[y[:9]])
    data = ClassificationData(path=path)
    assert (data.classes, data.in_shape) == (["apple", "fig", "pear"], (SIDE * SIDE,))
    assert data.ready.splits["test"] == list(range(90, 99))
    assert data.ready.rows.y[:3].tolist() == [2, 0, 1]
    assert data.ready.rows.names[90] == "Xt[0]"


def test_channels_may_come_last(npz):
    x, _ = arrays()
    last, first = (
        ClassificationData(path=npz(X=np.stack([x, x + 1, x + 2], axis)), batch_size=8).ready.rows.x for axis in (3, 1)
    )
    assert torch.equal(last, first)


X, Y = arrays()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"y": None}, "has no array 'y'; its arrays: X"),
        ({"Xt": X}, "has no array 'yt'; its arrays: X, y, Xt"),
        ({"X": X[:, 0, 0]}, "array 'X' must have shape (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W) with C of"),
        ({"X": X.astype(object)}, "array 'X' holds Python objects, which are not read: save numbers, or strings as"),
        ({"X": np.where(X[7, 0, 0] == X, np.nan, X)}, "array 'X' must hold finite numbers, got others in row"),
        ({"X": X.astype(str)}, "array 'X' must hold real numbers, got dtype <U3"),
        ({"X": X[:0], "y": Y[:0]}, "array 'X' must not be empty, got (0, 1, 6, 6)"),
        ({"y": Y[:-1]}, "array 'y' must hold a label for each of the 90 rows of 'X', shape (90,), got (89,)"),
        ({"y": Y / 2}, "array 'y' must hold integers from 0, or strings, got dtype float64"),
        ({"y": Y - 1}, "array 'y' must hold integers from 0, got -1 in row 0"),
        ({"y": 2 * Y}, "no row to train on is of class '1', '3': 90 rows, test_size=18, val_size=18"),
        ({"y": 0 * Y}, "has one class, '0', where at least two are needed"),
        ({"Xt": X[:, 1:], "yt": Y}, "array 'Xt' must have rows of shape (1, 6, 6), as 'X', got (1, 5, 6)"),
        ({"Xt": X, "yt": Y + 1}, "array 'yt' holds 3, which 'y' does not"),
        ({"Xt": X, "yt": Y.astype(str)}, "array 'yt' must hold labels as 'y', of dtype int64, got <U21"),
    ],
)
def test_wrong_arrays_are_named(npz, changed, text):
    path = npz(**changed)
    with pytest.raises(DataError) as error:
        ClassificationData(path=path).setup("fit")
    assert str(error.value).startswith(f"{path}: {text}")


def test_a_damaged_file_is_named(npz):
    path = npz()
    whole = path.read_bytes()
    for place in range(40, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            ClassificationData(path=path, batch_size=8).setup("fit")
        except DataError as error:
            assert str(error).startswith(f"{path}: ")  # noqa: PT017


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"val_size": 0}, "the val split is empty: 90 rows, test_size=18, val_size=0"),
        ({"val_size": -3}, "the val split is empty: 90 rows, test_size=18, val_size=-3"),
        ({"test_size": 90}, "the train split is empty: 90 rows, test_size=90, val_size=18"),
        ({"limit_train": 2}, "no row to train on is of class '1': 90 rows, test_size=18, val_size=18, limit_train=2"),
        ({"batch_size": 55}, "batch_size=55 is more than the 54 rows to train on"),
    ],
)
def test_splits_that_can_not_be_are_named(npz, options, text):
    path = npz()
    with pytest.raises(DataError) as error:
        ClassificationData(path=path, **options).setup("fit")
    assert str(error.value) == f"{path}: {text}"


def test_other_wrong_paths_are_named(npz, tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "rows.csv").write_text("a,b")
    told = {
        "none.npz": "there is no such file or folder",
        "text.npz": "is no .npz file that can be read: save arrays with numpy.savez",
        "rows.csv": "must be a folder with one sub-folder a class, or an .npz file",
    }
    for name, text in told.items():
        with pytest.raises(DataError) as error:
            ClassificationData(path=tmp_path / name).setup("fit")
        assert str(error.value).startswith(f"{tmp_path / name}: {text}")
    with pytest.raises(DataError, match="image_size=8 is for folders of images, got digits"):
        ClassificationData(image_size=8).setup("fit")
    vectors = npz(X=X.reshape(90, -1))
    with pytest.raises(DataError, match=r"rows.npz: augment is for images, but a row has the shape \(36,\)"):
        ClassificationData(path=vectors, augment=True).setup("fit")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"data set 'digits' needs scikit-learn: pip install 'trainkit\[data\]'"):
        ClassificationData().setup("fit")


@pytest.fixture
def images(tmp_path):
    """A folder with 8 images of two classes, one of them in colours."""
    from PIL import Image

    x, _ = arrays(8)
    for i, pixels in enumerate(x):
        folder = tmp_path / "images" / ("cat" if i % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert("RGB" if i == 3 else "L").save(folder / f"{i}.png")
    return tmp_path / "images"


SMALL = {"batch_size": 2, "val_size": 2, "test_size": 2}


def test_a_folder_of_images(images):
    rows = ClassificationData(path=images, **SMALL).ready.rows
    assert rows.x.shape == (8, 3, SIDE, SIDE)
    assert rows.x.dtype == torch.uint8
    assert rows.classes == ["cat", "dog"]
    assert (rows.names[0], rows.y.tolist()) == ("cat/1.png", [0, 0, 0, 0, 1, 1, 1, 1])
    assert ClassificationData(path=images, image_size=3, **SMALL).in_shape == (3, 3, 3)


def test_a_folder_with_splits(images):
    for name in ("cat", "dog"):
        for split in ("train", "test"):
            (images.parent / "split" / split / name).mkdir(parents=True)
        for i, file in enumerate(sorted((images / name).iterdir())):
            file.rename(images.parent / "split" / ("test" if i == 0 else "train") / name / file.name)
    ready = ClassificationData(path=images.parent / "split", **SMALL).ready
    assert {name: len(rows) for name, rows in ready.splits.items()} == {"train": 4, "val": 2, "test": 2}
    assert [ready.rows.names[row] for row in ready.splits["test"]] == ["test/cat/1.png", "test/dog/0.png"]


def test_wrong_folders_are_named(images):
    from PIL import Image

    def fault(**options):
        with pytest.raises(DataError) as error:
            ClassificationData(path=images, **SMALL, **options).setup("fit")
        return str(error.value)

    Image.new("L", (4, 9)).save(images / "dog" / "7.png")
    assert fault() == (
        f"{images / 'dog' / '7.png'}: is 4 x 9 pixels, not 6 x 6 as 1.png; set image_size to scale all images"
    )
    (images / "dog" / "7.png").write_bytes(b"no image")
    assert fault().startswith(f"{images / 'dog' / '7.png'}: is no image that can be read: ")
    Image.fromarray(np.zeros((6, 6), np.uint16)).save(images / "dog" / "7.png")
    assert fault() == f"{images / 'dog' / '7.png'}: has pixels of mode 'I;16'; save it with 8 bits a channel"
    (images / "empty").mkdir()
    assert fault() == f"{images / 'empty'}: has no images (.png, .jpg, .jpeg, .bmp, .webp)"


# Two rows say little of a temperature.
@pytest.mark.filterwarnings("ignore:TemperatureScaling")
def test_images_without_labels_are_classified(images, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    sizes = [f"--data.{name}={value}" for name, value in SMALL.items()]
    fitted = ["fit", "--config", "classification/digits", f"--data.path={images}", *sizes, "--trainer.max_epochs=1"]
    assert command(*fitted, *shown) == 0
    run = tmp_path / "runs" / "classification" / "version_0"
    rows = predicted(run, f"--data.predict_path={images / 'dog'}")
    assert [row["name"] for row in rows] == ["0.png", "2.png", "4.png", "6.png"]
    assert set(rows[0]["probabilities"]) == {"cat", "dog"}
    (images / "dog" / "6.png").write_bytes(b"")
    capsys.readouterr()
    assert command(*fitted, *shown) == 1
    assert capsys.readouterr().err.startswith(f"trainkit fit: {images / 'dog' / '6.png'}: is no image that can be read")


def test_augmentation_moves_and_flips_and_draws_from_the_seed():
    x = torch.zeros(64, 1, 16, 16)
    x[:, :, 8, 8] = 1
    torch.manual_seed(0)
    moved = flip_and_shift(x)
    places = moved.flatten(1).nonzero()[:, 1]
    assert moved.shape == x.shape
    assert moved.sum() == 64
    assert places.unique().numel() > 10
    assert (places // 16 - 8).abs().max() == 2
    torch.manual_seed(0)
    assert torch.equal(flip_and_shift(x), moved)
