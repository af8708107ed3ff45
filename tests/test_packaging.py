"""What is installed: the package list, the wheel, public names, and that no extra replaces torch."""

import importlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import lightning.pytorch.callbacks
import pytest
import torch
import torchmetrics

import trainkit
from trainkit import catalogue

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings tomli
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages_on_disk():
    for folder, prefix in (("trainkit", "trainkit"), ("recipes", "trainkit.recipes")):
        for file in (ROOT / folder).rglob("*.py"):
            yield ".".join((prefix, *file.parent.relative_to(ROOT / folder).parts))
    # Only the top of configs is a package: YAML files below it ship as its data.
    yield "trainkit.configs"


def test_package_list_equals_the_folders():
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert listed == sorted(set(packages_on_disk()))


def test_every_folder_with_code_is_a_package():
    folders = {file.parent for name in ("trainkit", "recipes", "configs") for file in (ROOT / name).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_wheel_holds_the_package_and_nothing_beside_it(tmp_path):
    # A copy: building leaves folders behind, and a stale one would get into the wheel.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("trainkit", "recipes", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        (licence,) = (name for name in files if name.endswith("LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    version = trainkit.__version__
    assert {name.partition("/")[0] for name in files} == {"trainkit", f"trainkit-{version}.dist-info"}
    shipped = {
        (Path(prefix) / file.relative_to(ROOT / folder)).as_posix()
        for folder, prefix in (
            ("trainkit", "trainkit"),
            ("recipes", "trainkit/recipes"),
            ("configs", "trainkit/configs"),
        )
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".yaml", ".typed", ".json"}
    }
    assert {name for name in files if name.startswith("trainkit/")} == shipped
    assert {"trainkit/py.typed", "trainkit/recipes/__init__.py", "trainkit/configs/__init__.py"} <= shipped


def test_package_and_recipes_come_from_one_checkout():
    recipes = importlib.import_module("trainkit.recipes")
    configs = importlib.import_module("trainkit.configs")
    assert Path(trainkit.__file__).parents[1] == ROOT
    assert Path(recipes.__file__).parents[1] == ROOT
    assert Path(configs.__file__).parents[1] == ROOT


def test_version_is_written_once():
    assert importlib.metadata.version("trainkit") == trainkit.__version__


@pytest.mark.parametrize(
    "module",
    [torch.nn, torch.optim, lightning.pytorch.callbacks, torchmetrics],
    ids=lambda module: module.__name__,
)
def test_class_names_are_not_taken(module):
    taken = {name for name in dir(module) if isinstance(getattr(module, name), type)}
    assert taken
    assert {part.name for part in catalogue.entries()} & taken == set()


def test_no_two_classes_share_a_name():
    counts = Counter(part.name for part in catalogue.entries())
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.network
@pytest.mark.timeout(900)
def test_extras_leave_torch_as_it_is(tmp_path):
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(requirement for names in extras.values() for requirement in names)]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report), *wanted]
    subprocess.run(command, check=True, capture_output=True)
    planned = {
        item["metadata"]["name"].lower(): item["metadata"]["version"]
        for item in json.loads(report.read_text())["install"]
    }
    assert planned.get("torch", torch.__version__).partition("+")[0] == "2.13.0"
    assert "torchvision" not in planned
