"""``trainkit fit|validate|test|predict``: run a config through Lightning's command line."""

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from trainkit.cli import configs

__all__ = ["STAGES", "add_parsers", "run"]

STAGES: Mapping[str, str] = {
    "fit": "train, then test the best weights",
    "validate": "evaluate on the validation split",
    "test": "evaluate on the test split",
    "predict": "answer queries, or write predictions.jsonl",
}
CONFIG_OPTIONS = ("--config", "-c")
CHECKPOINTS = "checkpoints"
LOAD_FAULT = "Error(s) in loading state_dict"
NOISE = ("Does not validate", "Subtypes:", "Errors:", "Expected a <class 'NoneType'>", "Given value")
"""Starts of lines of jsonargparse's errors on optional arguments."""
OTHERS_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"By default only one JsonargparseDeprecationWarning",
    r"(.|\n)*was deprecated in v4\.\d+\.\d+ and will be removed in v5",
)
"""What Lightning's own use of torch and jsonargparse makes these say; nothing that a caller could change."""
NOT_TRAINING = (r"The dirpath has changed",)
"""What ModelCheckpoint says of a run that was moved, where it writes nothing."""
SHOWN = 3
"""Keys of a foreign checkpoint that are named at most."""


class UsageError(Exception):
    """A call that can't be carried out; the text says why."""


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the four commands to the help text; their arguments are Lightning's to parse."""
    for stage, text in STAGES.items():
        subparsers.add_parser(stage, help=text, add_help=False)


def run(args: list[str]) -> int:
    """Run one of the stages; 1 for data or a checkpoint that can't be used, 2 for a wrong call."""
    try:
        command = _with_run(_with_configs(args))
    except UsageError as error:
        print(f"trainkit {args[0]}: {error}", file=sys.stderr)
        return 2
    given = sys.argv
    # Lightning starts the processes of other ranks with the arguments of this one.
    sys.argv = [given[0], *command]
    try:
        with _short_faults(args[0]) as faults, warnings.catch_warnings():
            for text in (*OTHERS_WARNINGS, *(() if args[0] == "fit" else NOT_TRAINING)):
                warnings.filterwarnings("ignore", message=rf"\s*{text}")
            _lightning()
    finally:
        sys.argv = given
    return int(bool(faults))


def _split(args: list[str], *options: str) -> Iterator[tuple[list[str], str | None]]:
    """The arguments, each with its value where it is one of ``options``."""
    rest = iter(args)
    for arg in rest:
        name, equals, value = arg.partition("=")
        if name not in options:
            yield [arg], None
        elif equals:
            yield [name], value
        else:
            yield [name], next(rest, None)


def _with_configs(args: list[str]) -> list[str]:
    """Names of shipped configs as their paths."""
    found: list[str] = []
    for words, value in _split(args, *CONFIG_OPTIONS):
        found += words
        if value is None:
            continue
        try:
            found.append(str(configs.find(value)))
        except FileNotFoundError as error:
            raise UsageError(str(error)) from error
    return found


def _with_run(args: list[str]) -> list[str]:
    """Put the results of a stage that reads the config of a run into its folder, and find its checkpoints."""
    given = [Path(value) for words, value in _split(args, *CONFIG_OPTIONS) if value is not None and words]
    folders = [path.parent for path in given if path.name == "config.yaml" and (path.parent / CHECKPOINTS).is_dir()]
    found: list[str] = []
    for words, value in _split(args, "--ckpt_path"):
        found += words
        if value is None:
            continue
        if value in ("best", "last"):
            value = str(_checkpoint(folders, value))
        elif value not in ("null", "hpc", "registry") and "://" not in value and not Path(value).is_file():
            raise UsageError(f"--ckpt_path: there is no file {value}")
        found.append(value)
    if folders and args[0] != "fit":
        found += ["--trainer.logger=false", f"--trainer.default_root_dir={folders[-1]}"]
    return found


def _checkpoint(folders: list[Path], which: str) -> Path:
    """The last checkpoint of a run, or the best, which the last one names."""
    if not folders:
        raise UsageError(f"--ckpt_path {which} needs --config RUN/config.yaml of a run that has written checkpoints")
    last = folders[-1] / CHECKPOINTS / "last.ckpt"
    if not last.is_file():
        raise UsageError(f"--ckpt_path {which}: there is no file {last}")
    if which == "last":
        return last
    import torch

    callbacks = torch.load(last, map_location="cpu", weights_only=True, mmap=True).get("callbacks", {})
    named = [state.get("best_model_path") for key, state in callbacks.items() if key.startswith("ModelCheckpoint")]
    # The run may have been moved since, but its files keep their names.
    paths = [last.with_name(Path(name).name) for name in named if name]
    if not paths or not paths[0].is_file():
        raise UsageError(f"--ckpt_path best: {last} names no best checkpoint that is there")
    return paths[0]


@contextmanager
def _short_faults(stage: str) -> Iterator[list[str]]:
    """Print faults of data and checkpoints as one message; others keep their traceback."""
    faults: list[str] = []
    try:
        yield faults
    except (ValueError, RuntimeError) as error:
        if type(error).__name__ == "DataError":
            faults.append(str(error))
        elif str(error).startswith(LOAD_FAULT):
            faults.append(_foreign(str(error)))
        else:
            raise
        print(f"trainkit {stage}: {faults[0]}", file=sys.stderr)


def _foreign(text: str) -> str:
    """A checkpoint of another model: the first keys that differ, not all."""
    lines = [line.strip() for line in text.splitlines()]
    shown = []
    for line in lines[1:]:
        names = line.split(", ")
        shown.append(", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""))
    return "the checkpoint is of another model\n  " + "\n  ".join(shown[:SHOWN])


def _lightning() -> None:
    """Parse and run; short names of parts resolve once their modules are imported."""
    import importlib

    from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

    from trainkit.callbacks import RunReport

    for family in ("calibration.calibrators", "calibration.metrics", "losses", "metrics", "optim", "recipes"):
        importlib.import_module(f"trainkit.{family}")

    class Parser(LightningArgumentParser):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, allow_abbrev=False, **kwargs)

        def print_usage(self, file: Any = None) -> None:
            """Nothing: the usage of all options would bury the one line that matters."""

        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            """The path to the option and what is wrong with it, without the types that were tried on the way."""
            lines = message.splitlines()
            super().error("\n".join(line for line in lines if not line.lstrip(" -").startswith(NOISE)), ex)

    class CommandLine(LightningCLI):
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            for told in ("num_classes", "in_shape"):
                parser.link_arguments(f"data.{told}", f"model.init_args.{told}", apply_on="instantiate")

        def after_fit(self) -> None:
            _after_fit(self)

    CommandLine(
        LightningModule,
        LightningDataModule,
        save_config_callback=SaveConfigCallback if sys.argv[1] == "fit" else None,
        save_config_kwargs={"overwrite": True},
        trainer_class=Trainer,
        trainer_defaults={"callbacks": [RunReport()]},
        seed_everything_default=0,
        parser_class=Parser,
        subclass_mode_model=True,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
    )


def _after_fit(cli: Any) -> None:
    """Test the best weights of a recipe, and say what the run has left where."""
    trainer = cli.trainer
    if trainer.fast_dev_run:
        return
    if getattr(cli.model, "test_after_fit", False):
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if trainer.is_global_zero:
            print(f"\nOn the test split, with the weights of {best or 'the last step'}:")
        trainer.test(cli.model, datamodule=cli.datamodule, ckpt_path="best" if best else None)
    folder = trainer.log_dir or trainer.default_root_dir
    if trainer.is_global_zero:
        print(f"report: {folder}/report.html")
        print(f"go on:  trainkit predict --config {folder}/config.yaml --ckpt_path best")
