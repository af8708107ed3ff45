import json
import random
import sys

import pytest

from trainkit.cli.main import main

WORDS = [f"{left}{right}" for left in ("am", "bi", "ce", "del", "em", "fjo") for right in ("ber", "rch", "dar")]


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory):
    """Pairs whose key spells the words of the query backwards, among others; groups of three."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    with path.open("w") as file:
        for row in range(330):
            words = draw.sample(WORDS, 4)
            key = [word[::-1] for word in [*words, draw.choice(WORDS)]]
            draw.shuffle(key)
            line = {"query": f"{' '.join(words)} of {row}", "key": "_".join(key), "group": f"g{row // 3}"}
            file.write(json.dumps(line) + "\n")
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command line in an empty folder: exit status, what it printed, what it said of errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def call(*args):
        try:
            main([str(arg) for arg in args])
            status = 0
        except SystemExit as stop:
            status = stop.code
        said = capsys.readouterr()
        return status, said.out, said.err

    return call
