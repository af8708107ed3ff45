"""Runs of the command line in this process."""

import csv

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger

from tests.unit.lightning_fits import quiet
from trainkit.cli.main import main


def command(*args):
    """Run the command line; its status."""
    with quiet():
        try:
            main([str(arg) for arg in args])
        except SystemExit as stop:
            return stop.code
    return 0


def logged(folder):
    """Values of metrics.csv by name, those of all steps in order."""
    with (folder / "metrics.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def trainer_in(folder, **options):
    """A trainer on the CPU that logs every step."""
    usual = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": CSVLogger(folder, name="", version=""),
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
    }
    return Trainer(default_root_dir=folder, **{**usual, **options})


def two_ranks():
    """Options of a trainer with two processes."""
    if not torch.distributed.is_available():
        pytest.skip("torch has no distributed package here")
    return {"strategy": "ddp_fork", "devices": 2}
