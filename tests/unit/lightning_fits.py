"""Modules that know nothing of trainkit, and small fits of them."""

import logging
import warnings
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

ROWS, BATCH, CLASSES = 22, 4, 3


class Rows(Dataset):
    """Row i, by its number."""

    def __init__(self, rows=ROWS, start=0):
        self.rows, self.start = rows, start

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        i = self.start + index
        x, noise = torch.randn(2, 4, generator=torch.Generator().manual_seed(i))
        return {"x": x, "labels": (x + noise)[:CLASSES].argmax(), "index": i}


class Net(LightningModule):
    """Returns the tensors under their vocabulary names; ``seen`` keeps what the steps returned."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, CLASSES))
        self.losses = []
        self.seen = []

    def returned(self, logits, batch):
        return {"logits": logits, "target": batch["labels"]}

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"])
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch, index, dataloader_idx=0):
        logits = self.net(batch["x"])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch["labels"]))
        if not self.trainer.sanity_checking:
            self.seen.append((dataloader_idx, logits.detach().clone(), batch["labels"]))
        return self.returned(logits, batch)

    def test_step(self, batch, index, dataloader_idx=0):
        return self.validation_step(batch, index, dataloader_idx)

    def predict_step(self, batch, index, dataloader_idx=0):
        return self.returned(self.net(batch["x"]), batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)

    def rows_seen(self, dataloader=0):
        """Logits and targets of all that the steps of a dataloader returned."""
        parts = [(logits, target) for i, logits, target in self.seen if i == dataloader]
        return tuple(torch.cat(part).clone() for part in zip(*parts, strict=True))


class OtherNames(Net):
    def returned(self, logits, batch):
        return {"y_hat": logits}


class Tuples(Net):
    def returned(self, logits, batch):
        return logits, batch["labels"]


class OnlyTheLoss(Net):
    def returned(self, logits, batch):
        return {"loss": logits.mean()}


class Tensors(Net):
    def returned(self, logits, batch):
        return logits


def loader(rows=ROWS, start=0, batch=BATCH):
    return DataLoader(Rows(rows, start), batch)


def rank_loader(rank, sizes=None, ranks=2):
    """Batches of the rows of a rank: so many, after those of the ranks before, or every ``ranks``-th."""
    first = sum((sizes or ())[:rank])
    own = range(first, first + sizes[rank]) if sizes else range(rank, ROWS, ranks)
    return DataLoader(Stream(own), BATCH // ranks)


class Stream(IterableDataset):
    """Rows without a length: Lightning leaves out a rank whose loader has the length zero, with all its hooks."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        return (Rows()[i] for i in self.numbers)


@contextmanager
def quiet():
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(lightning|torch)\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def trainer_of(folder, callbacks, **options):
    usual = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(default_root_dir=folder, callbacks=callbacks, **{**usual, **options})


def fit(net, callbacks, folder, validation=None, ckpt_path=None, **options):
    """The trainer after a fit; training rows are others than those of the validation."""
    with quiet():
        torch.manual_seed(1)
        trainer = trainer_of(folder, callbacks, **options)
        validation = loader() if validation is None else validation
        trainer.fit(net, loader(32, 100), validation, ckpt_path=ckpt_path)
    return trainer


def same_training(ours, theirs):
    """Whether losses and everything in the state are the same to the last bit."""
    pairs = [*zip(ours.losses, theirs.losses, strict=True)]
    pairs += [*zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)]
    return list(ours.state_dict()) == list(theirs.state_dict()) and all(torch.equal(a, b) for a, b in pairs)
