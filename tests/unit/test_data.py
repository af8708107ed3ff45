"""Resume is exact wherever a run stops, and the rows are the same on any number of ranks and workers."""

import copy
import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import ChainDataset, DataLoader, Dataset

from trainkit._core.seeds import derive_seed, seed_everywhere, seeded
from trainkit.callbacks import StepSeed
from trainkit.data import IndexSampler, ResumableLoader

ROWS, BATCH = 44, 8
"""Six batches an epoch, the last one half full."""
EPOCHS = 3
BATCHES = 6 * EPOCHS
SEEDS = (StepSeed(seed=5),)


def global_numpy():
    return np.random.get_state()[1].tolist()  # noqa: NPY002


def draw():
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


class Augmented(Dataset):
    """Rows with noise from all three global generators."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return x + 0.1 * torch.randn(4) + 0.1 * sum(draw()), x.sum()


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.mse_loss(self.net(x).squeeze(-1), y)

    def validation_step(self, batch, index):
        self.log("val", torch.rand(()) + self.net(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Data(LightningDataModule):
    def __init__(self, workers=0, validate=False, seed=3):
        super().__init__()
        self.workers, self.validate, self.seed = workers, validate, seed

    def train_dataloader(self):
        return ResumableLoader(Augmented(), BATCH, shuffle=True, seed=self.seed, num_workers=self.workers)

    def val_dataloader(self):
        return DataLoader(Augmented(), BATCH) if self.validate else []


class SavesAt(Callback):
    """Writes a checkpoint after a number of batches, then stops the run as if it were killed."""

    def __init__(self, batches, path):
        self.batches, self.path = batches, path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx + 1 == self.batches:
            trainer.save_checkpoint(self.path)
            raise KilledError


class KilledError(Exception):
    pass


class Scheduled(Net):
    """Asks for the number of steps, for which Lightning sets up the loaders before it reads the checkpoint."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def fit(data, folder, callbacks=(), ckpt_path=None, seeds=SEEDS, net=Net, **options):
    net = net()
    usual = {"max_epochs": EPOCHS, "accumulate_grad_batches": 2, "accelerator": "cpu", "devices": 1}
    logger = logging.getLogger("lightning.pytorch")
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[*seeds, *callbacks],
            **{"enable_checkpointing": False, **usual, **options},
        )
        trainer.fit(net, datamodule=data, ckpt_path=ckpt_path)
    return [p.detach().clone() for p in net.parameters()]


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Weights of the run that nothing interrupts."""
    return fit(Data(), tmp_path_factory.mktemp("straight"))


def test_an_uninterrupted_run_does_not_depend_on_what_ran_before(straight, tmp_path):
    torch.manual_seed(99)
    random.seed(99)
    assert same(fit(Data(), tmp_path), straight)
    assert not same(fit(Data(seed=4), tmp_path), straight)


def resumed(batches, folder, data, **options):
    path = folder / "stopped.ckpt"
    with pytest.raises(KilledError):
        fit(data, folder, [SavesAt(batches, path)], **options)
    torch.manual_seed(1234)
    return fit(data, folder, ckpt_path=path, **options)


# Steps end at even batches: between two batches of one step a checkpoint lacks the gradient of the first.
@pytest.mark.parametrize("batches", range(2, BATCHES, 2))
def test_resume_in_mid_epoch_and_at_its_end_is_bitwise(batches, straight, tmp_path):
    assert same(resumed(batches, tmp_path, Data()), straight)


@pytest.mark.parametrize("batches", [2, 8])
@pytest.mark.parametrize("workers", [0, 2])
def test_resume_where_the_schedule_asks_for_the_number_of_steps(batches, workers, tmp_path):
    whole = fit(Data(), tmp_path, net=Scheduled)
    assert same(resumed(batches, tmp_path, Data(workers=workers), net=Scheduled), whole)


class Plain(Data):
    def train_dataloader(self):
        return DataLoader(Augmented(), BATCH, shuffle=True)


@pytest.mark.parametrize(("data", "seeds"), [(Data(), ()), (Plain(), SEEDS)], ids=["dropout", "order"])
def test_one_of_the_two_alone_is_not_enough(data, seeds, tmp_path):
    torch.manual_seed(0)
    expected = fit(data, tmp_path, seeds=seeds)
    torch.manual_seed(0)
    found = resumed(8, tmp_path, data, seeds=seeds)
    assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) > 1e-3


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (Data(workers=2), {}),
        (Data(), {"max_epochs": -1, "max_steps": 3 * EPOCHS}),
        (Data(workers=2), {"max_epochs": -1, "max_steps": 3 * EPOCHS}),
        (Data(validate=True), {}),
        (Data(validate=True), {"val_check_interval": 2}),
        (Data(validate=True), {"val_check_interval": 3}),
        (Data(validate=True, workers=2), {"val_check_interval": 2, "max_epochs": -1, "max_steps": 3 * EPOCHS}),
        (Data(), {"reload_dataloaders_every_n_epochs": 1}),
    ],
    ids=["workers", "steps", "steps and workers", "validation", "val 2", "val 3", "val, steps and workers", "reload"],
)
@pytest.mark.parametrize("batches", [6, 10])
def test_resume_with_workers_validation_and_limits(batches, data, options, straight, tmp_path):
    assert same(fit(data, tmp_path, **options), straight)
    assert same(resumed(batches, tmp_path, data, **options), straight)


class Kept(Callback):
    """Copies every checkpoint that is written."""

    def __init__(self, folder):
        self.folder, self.paths = folder, []

    def save(self, trainer):
        path = self.folder / f"{len(self.paths)}.ckpt"
        trainer.save_checkpoint(path)
        self.paths.append((trainer.fit_loop.total_batch_idx + 1, path))


class KeptAtValidationEnd(Kept):
    def on_validation_end(self, trainer, pl_module):
        self.save(trainer)


class KeptAtEpochEnd(Kept):
    def on_train_epoch_end(self, trainer, pl_module):
        self.save(trainer)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("limits", [{}, {"max_epochs": -1, "max_steps": 3 * EPOCHS}], ids=["epochs", "steps"])
@pytest.mark.parametrize("kind", [KeptAtValidationEnd, KeptAtEpochEnd], ids=lambda k: k.__name__)
def test_resume_from_checkpoints_of_every_hook(kind, limits, workers, straight, tmp_path):
    options = {"val_check_interval": 2, **limits}
    kept = kind(tmp_path)
    assert same(fit(Data(workers, validate=True), tmp_path, [kept], **options), straight)
    found = [
        (batches, same(fit(Data(workers, validate=True), tmp_path, ckpt_path=path, **options), straight))
        for batches, path in kept.paths
    ]
    assert len(found) >= EPOCHS
    assert all(fine for _, fine in found), found


@pytest.mark.parametrize(("limit", "stops"), [(1.0, (8, 12, 14, 16)), (4, (6, 10, 14))])
def test_a_run_that_is_stopped_again_and_again(limit, stops, tmp_path):
    """With a limit of steps, Lightning miscounts the epochs after a resume at the end of one."""
    options = {"max_epochs": -1, "max_steps": 12, "limit_train_batches": limit}
    straight = fit(Data(), tmp_path, **options)
    kept = KeptAtEpochEnd(tmp_path)
    fit(Data(), tmp_path, [kept], **options)
    path = kept.paths[0][1]
    for batches in stops:
        with pytest.raises(KilledError):
            fit(Data(), tmp_path, [SavesAt(batches, tmp_path / "next.ckpt")], ckpt_path=path, **options)
        path = tmp_path / "next.ckpt"
        assert same(fit(Data(), tmp_path, ckpt_path=path, **options), straight), batches


class Dies(Callback):
    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx == self.batches:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_run(folder, batches, workers):
    """Entry point of a process that dies in a training step, between two checkpoints."""
    torch.set_num_threads(1)
    keeps = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=1)
    fit(Data(int(workers)), folder, [keeps, Dies(int(batches))], enable_checkpointing=True)


@pytest.mark.parametrize(("batches", "workers"), [(7, 0), (16, 2)])
def test_a_process_that_dies_by_sigkill_resumes_bitwise(batches, workers, straight, tmp_path):
    code = "import sys; from tests.unit.test_data import killed_run; killed_run(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(tmp_path), str(batches), str(workers)]
    # Not into a pipe: its workers hold it open for the seconds that they take to see that their parent is gone.
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        done = subprocess.run(command, cwd=Path(__file__).parents[2], stdout=file, stderr=file, timeout=100)
    assert done.returncode == -signal.SIGKILL, log.read_text()
    (path,) = tmp_path.glob("*.ckpt")
    assert same(fit(Data(workers), tmp_path, ckpt_path=path), straight)


@pytest.mark.slow
def test_resume_at_20_random_steps_is_bitwise(straight, tmp_path):
    draw = random.Random(0)
    long = {"max_epochs": 10}
    expected = fit(Data(), tmp_path, **long)
    for batches in draw.sample(range(2, 60, 2), 20):
        assert same(resumed(batches, tmp_path, Data(), **long), expected), batches


def batches_of(loader):
    return [batch.tolist() for batch in loader]


def test_position_is_what_the_loop_was_given_not_what_workers_fetched():
    loader = ResumableLoader(range(40), 4, shuffle=True, num_workers=2, prefetch_factor=4)
    whole = batches_of(loader)
    for taken in (1, 3, 10):
        iterator = iter(loader)
        seen = [next(iterator).tolist() for _ in range(taken)]
        state = loader.state_dict()
        assert state == {"epoch": 0, "position": taken, "ahead": 0, "batch_size": 4, "rows": 40}
        again = ResumableLoader(range(40), 4, shuffle=True)
        again.load_state_dict(state)
        assert len(again) == 10
        assert seen + batches_of(again) == whole
        again.set_epoch(1)
        loader.set_epoch(1)
        assert batches_of(again) == batches_of(loader) != whole
        loader.set_epoch(0)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_rows_and_their_random_numbers_do_not_depend_on_workers_or_on_what_ran_before(workers):
    plain = ResumableLoader(Augmented(), BATCH, shuffle=True, seed=1)
    expected = []
    for epoch in range(2):
        plain.set_epoch(epoch)
        expected += [x for x, _ in plain]
    torch.manual_seed(7)
    loader = ResumableLoader(Augmented(), BATCH, shuffle=True, seed=1, **workers)
    before = torch.get_rng_state(), random.getstate(), global_numpy()
    found = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        found += [x for x, _ in loader]
    assert len(found) == 12
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == global_numpy()


def test_a_collate_function_that_draws_and_rows_taken_together():
    class Together(Dataset):
        def __len__(self):
            return 6

        def __getitems__(self, indices):
            return [10 * i for i in indices]

    def noisy(rows):
        return [r + torch.rand(()).item() for r in rows]

    first, second = (list(ResumableLoader(Together(), 2, collate_fn=noisy)) for _ in range(2))
    assert first == second
    assert [[int(x) for x in batch] for batch in first] == [[0, 10], [20, 30], [40, 50]]
    assert len({x % 1 for batch in first for x in batch}) == 6


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_go_on_where_the_loader_is(copied):
    loader = ResumableLoader(range(12), 3, shuffle=True)
    loader.load_state_dict({"epoch": 2, "position": 1, "ahead": 0, "batch_size": 3, "rows": 12})
    assert batches_of(copied(loader)) == batches_of(loader)
    assert loader.dataset == range(12)
    assert isinstance(loader.sampler, IndexSampler)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "ResumableLoader: batch_size must be >= 1, got 0"),
        ({"seed": -1}, ValueError, "ResumableLoader: seed must be >= 0, got -1"),
        ({"shuffle": 1}, TypeError, "ResumableLoader: shuffle must be True or False, got 1"),
        ({"sampler": range(3)}, TypeError, "sampler must be a DistributedSampler with a batch_size, got range(0, 3)"),
        ({"sampler": IndexSampler(range(8), 2)}, ValueError, "batch_size must be that of the sampler, 2, got 4"),
        ({"dataset": ChainDataset([])}, TypeError, "ResumableLoader: dataset must give its rows by index, got <"),
    ],
)
def test_bad_arguments_are_named(change, error, words):
    with pytest.raises(error) as caught:
        ResumableLoader(**{"dataset": range(8), "batch_size": 4, **change})
    assert words in str(caught.value)


def test_a_state_of_other_batches_is_refused_in_mid_epoch_only():
    loader = ResumableLoader(range(8), 4)
    state = {**loader.state_dict(), "batch_size": 2}
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="batch_size must be 2 as in the checkpoint, taken in mid-epoch, got 4"):
        loader.load_state_dict({**state, "position": 1})
    with pytest.raises(ValueError, match="number of rows must be 9 as in the checkpoint, taken in mid-epoch, got 8"):
        loader.load_state_dict({**loader.state_dict(), "rows": 9, "position": 1})


def test_seeds_of_places_that_add_up_alike_differ():
    seeds = {derive_seed("order", a, b) for a in range(20) for b in range(20)}
    assert len(seeds) == 400
    assert derive_seed("order", 1, 2) != derive_seed("rows", 1, 2)
    assert derive_seed("order", 2**32, 0) != derive_seed("order", 0, 1)


def test_a_seeded_scope_puts_every_generator_back():
    seed_everywhere(3)
    expected = draw()
    seed_everywhere(3)
    with seeded(4):
        inside = draw()
    assert draw() == expected
    assert not set(inside) & set(expected)


def forked(workers):
    """Options of a loader with workers; the pool's processes are daemons, which may have none, and would spawn them."""
    multiprocessing.current_process()._config["daemon"] = False
    return {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}


def rows_of_rank(seed, drop_last, workers):
    """The batches of two epochs, on the rank that calls it; the loader finds the group by itself."""
    loader = ResumableLoader(range(30), 8, shuffle=True, seed=seed, drop_last=drop_last, **forked(workers))
    found = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        found.append(batches_of(loader))
    return found, len(loader)


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_see_the_rows_of_one_process(pool, drop_last, workers):
    whole, length = rows_of_rank(5, drop_last, 0)
    (first, n), (second, m) = pool.run(rows_of_rank, [(5, drop_last, workers)] * 2)
    assert n == m == length == (3 if drop_last else 4)
    assert [[b[0::2] for b in epoch] for epoch in whole] == first
    assert [[b[1::2] for b in epoch] for epoch in whole] == second


def refusal(batch_size):
    try:
        IndexSampler(range(8), batch_size)
    except ValueError as error:
        return str(error)


@pytest.mark.xdist_group("ranks")
def test_a_batch_that_the_ranks_do_not_divide_is_named_with_both_numbers(pool):
    words = "IndexSampler: batch_size must be divisible by 2 ranks, got 5"
    assert pool.run(refusal, [(5,), (5,)]) == [words, words]


class Seen(Net):
    """Notes rows and the kind of sampler; dropout off, so that ranks add up to one process."""

    def __init__(self):
        super().__init__()
        self.net[1] = nn.Identity()
        self.rows = []

    def training_step(self, batch, index):
        self.rows.append(batch.tolist())
        x = torch.stack([batch.float(), batch.float().cos(), batch.float().sin(), torch.ones(len(batch))], 1) / 10
        return self.net(x).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Group(LightningEnvironment):
    """The group that is already up."""

    creates_processes_externally = True

    def world_size(self):
        return dist.get_world_size()

    def global_rank(self):
        return dist.get_rank()

    def local_rank(self):
        return dist.get_rank()

    def set_world_size(self, size):
        pass

    def set_global_rank(self, rank):
        pass

    def teardown(self):
        pass


def fit_on_ranks(folder, ckpt_path=None, stop=None, workers=0):
    """A fit on the only rank or, in the pool, on one of two."""
    loader = ResumableLoader(range(32), 8, shuffle=True, seed=2, **forked(workers))
    net = Seen()
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    options = {}
    if ranks > 1:
        options = {"strategy": DDPStrategy(cluster_environment=Group(), process_group_backend="gloo"), "devices": 2}
    callbacks = [StepSeed()] + ([SavesAt(stop, Path(folder) / "ranks.ckpt")] if stop else [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            **{"accelerator": "cpu", "devices": 1, **options},
            max_epochs=2,
            callbacks=callbacks,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with suppress(KilledError):
            trainer.fit(net, loader, ckpt_path=ckpt_path)
    kept = trainer.train_dataloader.sampler is loader.sampler
    return net.rows, [p.detach().tolist() for p in net.parameters()], kept


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_fit_on_two_ranks_sees_the_rows_of_one_process_and_resumes(pool, tmp_path, workers):
    whole, weights, _ = fit_on_ranks(tmp_path)
    straight = pool.run(fit_on_ranks, [(tmp_path, None, None, workers)] * 2)
    for rank, (rows, found, kept) in enumerate(straight):
        assert kept
        assert rows == [batch[rank::2] for batch in whole]
        for a, b in zip(found, weights, strict=True):
            torch.testing.assert_close(torch.tensor(a), torch.tensor(b))
    pool.run(fit_on_ranks, [(tmp_path, None, 3, workers)] * 2)
    resumed = pool.run(fit_on_ranks, [(tmp_path, tmp_path / "ranks.ckpt", None, workers)] * 2)
    for (rows, found, _), (all_rows, all_found, _) in zip(resumed, straight, strict=True):
        assert rows == all_rows[3:]
        assert found == all_found
