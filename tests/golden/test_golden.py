"""The golden records hold, and a wrong or unknown one is seen."""

import json

import pytest

from tests.golden.__main__ import main
from tests.golden.bind import FOLDER, bound, read
from trainkit.testing.common import check_golden

FILES = sorted(FOLDER.glob("*.json"))
RECORDS = [record for path in FILES for record in read(path)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: f"{r['name'][:40]}-{r['n']}")
def test_record_is_met(record):
    check_golden(bound(record))


def altered(path, tmp_path, change):
    records = json.loads(path.read_text())
    change(records[0])
    file = tmp_path / path.name
    file.write_text(json.dumps(records))
    return str(file)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_passes_on_the_command_line(path, capsys):
    assert main([str(path)]) == 0
    assert f"{len(read(path))} of {len(read(path))} records met" in capsys.readouterr().out


def scaled(value, factor):
    return [scaled(item, factor) for item in value] if isinstance(value, list) else value * factor


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_one_altered_value_fails(path, tmp_path, capsys):
    file = altered(path, tmp_path, lambda r: r["expected"].update(value=scaled(r["expected"]["value"], 1 + 1e-7)))
    assert main([file]) == 1
    out = capsys.readouterr().out
    assert out.count("FAIL") == 1
    assert "value 1.0e-07" in out


def test_one_altered_gradient_fails(tmp_path, capsys):
    def change(record):
        record["expected"]["grad"]["logits"][0][0] += 1e-5

    assert main([altered(FOLDER / "losses.json", tmp_path, change)]) == 1
    assert "grad" in capsys.readouterr().out


def test_a_value_that_the_call_does_not_give_fails(tmp_path, capsys):
    assert main([altered(FOLDER / "losses.json", tmp_path, lambda r: r["expected"].update(entropy=1.0))]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_an_unbound_name_fails(tmp_path, capsys):
    assert main([altered(FOLDER / "losses.json", tmp_path, lambda r: r.update(name="UnheardOfLoss"))]) == 1
    out = capsys.readouterr().out
    assert "UnheardOfLoss" in out
    assert "no binding for this name" in out
