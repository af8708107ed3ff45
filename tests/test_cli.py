"""The commands ``list`` and ``show``, in process; three smokes of the installed program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import trainkit
from trainkit import catalogue
from trainkit.catalogue import Parameter
from trainkit.cli import show
from trainkit.cli.main import main


def run(capsys, *args):
    """Status, output and errors of a call in this process."""
    status = 0
    try:
        result = main(list(args))
        assert result is None
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_no_arguments_print_the_help(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    assert "list" in out
    assert "show" in out


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"trainkit {trainkit.__version__}\n", "")


def test_unknown_command_is_an_error(capsys):
    status, _, err = run(capsys, "lst")
    assert status == 2
    assert "lst" in err


def test_list_holds_every_part_and_no_escape_codes(capsys):
    status, out, _ = run(capsys, "list")
    parts = catalogue.entries()
    assert status == 0
    assert "\033" not in out
    assert all(f"  {part.name}" in out for part in parts)
    assert out.splitlines()[-1] == f"{len(parts)} parts"


def test_list_of_a_terminal_is_bold_and_fits_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = run(capsys, "list")
    assert "\033[1mlosses" in out
    assert max(len(line.replace("\033[1m", "").replace("\033[0m", "")) for line in out.splitlines()) <= 70


def test_list_of_a_family_takes_in_what_lies_below_it(capsys):
    names = {part["name"] for part in json.loads(run(capsys, "list", "losses", "--json")[1])}
    assert {"FocalLoss", "CombinedLoss"} <= names
    assert "BrierScore" not in names
    assert run(capsys, "list", "trainkit.losses.classification")[0] == 0


def test_unknown_family_names_those_that_exist(capsys):
    status, out, err = run(capsys, "list", "loses")
    assert (status, out) == (2, "")
    assert "'loses'" in err
    assert "losses, losses.classification" in err


def test_search_is_blind_to_case_and_reads_parameters_and_docstrings(capsys):
    assert "FocalLoss" in run(capsys, "list", "--search", "focal")[1]
    assert "FocalLoss" in run(capsys, "list", "--search", "GAMMA")[1]
    assert run(capsys, "list", "--search", "no such words")[1] == "0 parts\n"


def test_json_and_markdown_exclude_each_other(capsys):
    assert run(capsys, "list", "--json", "--markdown")[0] == 2


def test_write_replaces_the_table_and_nothing_else(capsys, tmp_path):
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- catalogue:start -->\nold\n<!-- catalogue:end -->\nafter\n")
    assert run(capsys, "list", "--markdown", "--write", str(file))[0] == 0
    table = run(capsys, "list", "--markdown")[1]
    assert file.read_text() == f"before\n<!-- catalogue:start -->\n{table}<!-- catalogue:end -->\nafter\n"


def test_write_without_markers_changes_nothing(capsys, tmp_path):
    file = tmp_path / "page.md"
    file.write_text("text\n")
    status, _, err = run(capsys, "list", "--markdown", "--write", str(file))
    assert status == 2
    assert "<!-- catalogue:start -->" in err
    assert file.read_text() == "text\n"


@pytest.mark.parametrize("name", ["FocalLoss", "focalloss", "trainkit.losses.FocalLoss"])
def test_show_finds_a_class(capsys, name):
    status, out, _ = run(capsys, "show", name)
    assert status == 0
    assert out.startswith("FocalLoss(")
    assert "from trainkit.losses import FocalLoss, focal_loss" in out
    assert "arXiv:1708.02002" in out


@pytest.mark.parametrize("part", catalogue.entries(), ids=lambda part: part.name)
def test_shown_yaml_holds_class_path_and_defaults(part):
    snippet = yaml.safe_load(show.yaml_snippet(part))
    assert snippet["class_path"] == part.path
    arguments = snippet.get("init_args") or {}
    required = {p.name for p in part.parameters if p.default is None}
    assert required <= set(arguments)
    assert set(arguments) <= {p.name for p in part.parameters}


@pytest.mark.parametrize(
    ("default", "value"),
    [
        ("1e-07", 1e-07),
        ("1.5e-10", 1.5e-10),
        ("-100", -100),
        ("None", None),
        ("True", True),
        ("'mean'", "mean"),
        ("'no'", "no"),
        ("'a: b'", "a: b"),
        ("''", ""),
        ("(0.9, 0.999)", [0.9, 0.999]),
        ("{'a': 1}", {"a": 1}),
    ],
)
def test_yaml_reads_back_as_the_default(default, value):
    line = show.argument(Parameter("x", "object", default))
    read = yaml.safe_load(line)["x"]
    assert read == value
    assert type(read) is type(value)


def test_yaml_of_what_is_no_literal_is_a_comment():
    assert show.argument(Parameter("dtype", None, "torch.float32")) == "# dtype: torch.float32 by default"
    assert yaml.safe_load(show.argument(Parameter("size", "int"))) == {"size": None}


def test_show_unknown_name_proposes_close_ones(capsys):
    status, out, err = run(capsys, "show", "FocalLos")
    assert (status, out) == (2, "")
    assert "did you mean FocalLoss" in err
    assert "trainkit list" in run(capsys, "show", "zzzz")[2]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ([str(Path(sys.executable).with_name("trainkit")), "list"], 0),
        ([sys.executable, "-m", "trainkit", "show", "FocalLoss"], 0),
        ([sys.executable, "-m", "trainkit", "show", "NoSuchLoss"], 2),
    ],
    ids=["script", "module", "failure"],
)
def test_smoke(command, status, tmp_path):
    # From another folder, as a user runs it.
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stderr
    assert bool(result.stdout) == (status == 0)
    assert "Traceback" not in result.stderr
