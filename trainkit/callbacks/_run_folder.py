"""Where files of a run go, and how they get there."""

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning_utilities.core.rank_zero import WarningCache

from trainkit._core.files import write_whole

__all__ = ["once", "run_folder", "write_text", "writes"]

once = WarningCache()
"""Says each sentence once, on rank zero."""


def writes(trainer: Trainer) -> bool:
    """Whether this process writes files: rank zero, unless the run is a trial."""
    return trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]


def run_folder(trainer: Trainer) -> Path | None:
    """The folder of the run as rank zero sees it; None where it is no folder of this machine.

    It is ``trainer.log_dir`` without the broadcast that this takes, on which rank zero would wait for the others.
    """
    logger = trainer.logger
    folder = logger.log_dir if isinstance(logger, (CSVLogger, TensorBoardLogger)) else getattr(logger, "save_dir", None)
    folder = str(folder or trainer.default_root_dir)
    if "://" in folder:
        once.warn(f"figures and reports are written to folders of this machine only, not to {folder}")
        return None
    return Path(folder)


def write_text(path: Path, text: str) -> None:
    """Write a file in one go, so that nobody reads half of it; a failure warns and ends no training."""
    try:
        write_whole(path, text)
    except OSError as error:
        once.warn(f"{path.name} could not be written: {error.strerror or error}")
