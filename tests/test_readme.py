"""What the README says is what happens: its snippets run, its numbers come out, its commands are those of CI."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.pictures import FOLDER, PICTURES, picture
from trainkit.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
PRINTED = re.compile(r"^\s*print\(.*\)  # (.+)$", re.MULTILINE)


def test_there_are_snippets():
    assert len(SNIPPETS) >= 2
    assert all(PRINTED.search(snippet) for snippet in SNIPPETS)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
@pytest.mark.filterwarnings(
    # Lightning: a hint to start worker processes, and a deprecated call of torch.
    r"ignore:The '\w+_dataloader' does not have many workers:UserWarning",
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
)
def test_snippet_prints_the_numbers_beside_it(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet, "snippet of README.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().splitlines() == PRINTED.findall(snippet)


def commands(text):
    """Lines of the shell blocks."""
    blocks = re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


def develop_commands():
    block = re.search(r"<!-- test-command -->\s*```bash\n(.*?)```", README, re.DOTALL)
    assert block, "the README has no block under <!-- test-command -->"
    return block[1].splitlines()


def test_ci_runs_the_commands_of_the_readme():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    install, test = develop_commands()
    assert install == 'pip install -e ".[dev]"'
    assert test == "python -m pytest"
    assert lines.index(install) < lines.index(test)


def test_ci_script_can_be_executed():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert ".ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [c for c in commands(README) if re.match(r"trainkit (list|show) ", c)])
def test_listing_commands_work(command, capsys, tmp_path, monkeypatch):
    words = command.partition("  #")[0].split()[1:]
    if "--write" in words:
        (tmp_path / "README.md").write_text(README, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
    main(words)
    assert "--write" in words or capsys.readouterr().out


NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_what_the_code_draws(name):
    """``python -m tests.pictures`` draws them again; another processor may round otherwise."""
    assert f"](tests/pictures/{name}.svg)" in README
    kept, drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8"), picture(name)
    assert NUMBER.sub("", kept) == NUMBER.sub("", drawn)
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (kept, drawn)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.02)
