"""Runs of claims: each in a process of its own with one thread, kept once it has finished."""

import datetime
import hashlib
import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import trainkit
from trainkit.cli import configs
from trainkit.cli.claim_file import Arm, ClaimError

__all__ = ["finished", "perform"]

UNREAD = ("cli", "testing")
"""Folders of the library that decide no number."""
LAST_LINES = 15
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@cache
def _source() -> str:
    """Hash of the code that numbers can depend on."""
    library = Path(trainkit.__file__).parent
    spec = importlib.util.find_spec("trainkit.recipes")
    folders = [library, *(Path(place) for place in (spec.submodule_search_locations or [] if spec else []))]
    files = [
        (file.relative_to(folder), file)
        for folder in folders
        for file in sorted(folder.rglob("*.py"))
        if not (folder == library and file.relative_to(folder).parts[0] in UNREAD)
    ]
    return _digest(*(part for name, file in files for part in (str(name).encode(), file.read_bytes())))


@cache
def _versions() -> str:
    from importlib.metadata import version

    return " ".join(f"{name} {version(name)}" for name in ("torch", "lightning", "torchmetrics", "numpy"))


def _own_code(function: str) -> str:
    """Hash of the file of a function that is no part of trainkit."""
    module = function.partition(":")[0]
    if not function or module.partition(".")[0] == "trainkit":
        return ""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ClaimError(f"{function}: there is no module {module}")
    return _digest(Path(spec.origin).read_bytes())


def _key(arm: Arm, seed: int) -> str:
    """Hash of all that decides the numbers of a run: equal runs of two claims are one."""
    words = [word.rpartition("=")[2] for word in arm.options]
    told = {
        "configs": [_config(name).read_text(encoding="utf-8") for name in arm.configs],
        "options": arm.options,
        "files": [_digest(Path(word).read_bytes()) for word in words if Path(word).is_file()],
        "function": [arm.function, _own_code(arm.function)],
        "arguments": arm.arguments,
        "seed": seed,
        "code": [_source(), _versions(), ".".join(map(str, sys.version_info[:2]))],
    }
    return _digest(json.dumps(told, sort_keys=True).encode())[:24]


def _config(name: str) -> Path:
    try:
        return configs.find(name)
    except FileNotFoundError as error:
        raise ClaimError(str(error)) from error


def _file(arm: Arm, seed: int) -> Path:
    folder: Path = importlib.import_module("trainkit.recipes.data.cache").cache_folder()
    return folder / "claims" / f"{_key(arm, seed)}.json"


def finished(arm: Arm, seed: int) -> dict[str, Any] | None:
    """What is kept of a run: its values, CPU seconds, commit and time; None if it has not finished yet."""
    try:
        told: dict[str, Any] = json.loads(_file(arm, seed).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return told


def perform(arm: Arm, seed: int) -> dict[str, Any]:
    """Run an arm with one seed, and keep what came of it.

    Raises:
        ClaimError: If the run fails; with its last lines.
    """
    from trainkit._core.files import write_whole

    target = _file(arm, seed)
    # Before the run: files that change under it belong to the next.
    commit = _commit()
    with tempfile.TemporaryDirectory(prefix="trainkit-claim-") as name:
        work = Path(name)
        before = os.times()
        with (work / "log.txt").open("wb") as log:
            command = _command(arm, seed, work)
            done = subprocess.run(command, stdout=log, stderr=log, env=_environment(), check=False)  # noqa: S603
        after = os.times()
        if done.returncode:
            lines = (work / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            last = "\n  ".join(lines[-LAST_LINES:])
            raise ClaimError(f"a run failed with status {done.returncode}: {' '.join(done.args)}\n  {last}")
        values = _values(work)
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    run = {"values": values, "cpu_seconds": round(seconds, 2), "commit": commit, "time": now, "versions": _versions()}
    write_whole(target, json.dumps(run, indent=1) + "\n")
    return run


def _command(arm: Arm, seed: int, work: Path) -> list[str]:
    if arm.function:
        given = json.dumps({**arm.arguments, "seed": seed})
        return [sys.executable, "-m", "trainkit.cli.claim_function", arm.function, given, str(work / "values.json")]
    stacked = [word for name in arm.configs for word in ("--config", str(_config(name)))]
    own = [
        f"--seed_everything={seed}",
        f"--data.seed={seed}",
        "--trainer.accelerator=cpu",
        "--trainer.devices=1",
        "--trainer.enable_progress_bar=false",
        "--trainer.logger=lightning.pytorch.loggers.CSVLogger",
        f"--trainer.logger.save_dir={work}",
        "--trainer.logger.name=run",
    ]
    return [sys.executable, "-m", "trainkit", "fit", *stacked, *arm.options, *own]


def _environment() -> dict[str, str]:
    """One thread and no accelerator, so that a run that is made again gives the same numbers."""
    return {**os.environ, **dict.fromkeys(THREADS, "1"), "CUDA_VISIBLE_DEVICES": ""}


def _values(work: Path) -> dict[str, float | None]:
    """The numbers that a run has written: the last of each column; None for what is no finite number."""
    import csv

    if (work / "values.json").is_file():
        told = json.loads((work / "values.json").read_text(encoding="utf-8"))
    else:
        told = {}
        for path in work.rglob("metrics.csv"):
            with path.open(encoding="utf-8") as lines:
                for row in csv.DictReader(lines):
                    told.update({name: text for name, text in row.items() if text})
    return {name: float(value) if math.isfinite(float(value)) else None for name, value in told.items()}


def _commit() -> str:
    """Commit of the checkout, with a plus if its code differs; the version where there is no checkout."""
    root = Path(trainkit.__file__).parents[1]

    def git(*words: str) -> str | None:
        try:
            command = ["git", "-C", str(root), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        except OSError:
            return None
        return None if done.returncode else done.stdout.strip()

    if not (root / ".git").exists():
        return f"version {trainkit.__version__}"
    code = ("trainkit", "recipes", "configs", "pyproject.toml", ":!configs/claims/results")
    commit, changed = git("rev-parse", "--short=10", "HEAD"), git("status", "--porcelain", "--", *code)
    return f"version {trainkit.__version__}" if commit is None else commit + ("+" if changed else "")
