"""Every config that ships parses and runs."""

import pytest

from tests.recipes.runs import command
from trainkit.cli import configs
from trainkit.cli.configs import header

FILES = {"mnist": "mnist.npz", "cifar10": "cifar10_10k2k.npz"}
"""Files of the data sets that a config names."""
WHOLE = [name for name in configs.shipped() if not name.startswith("trainer/")]


def needs(name):
    """Parameters of a test with the config: marked where it needs a real data set."""
    text = configs.find(name).read_text()
    file = next((file for word, file in FILES.items() if f"name: {word}\n" in text), None)
    return pytest.param(name, file, marks=[pytest.mark.data] if file else [], id=name)


@pytest.mark.parametrize(("name", "file"), [needs(name) for name in WHOLE])
def test_two_steps_of_a_config(name, file, data_file, tmp_path, monkeypatch):
    if file is not None:
        monkeypatch.setenv("TRAINKIT_DATA", str(data_file(file).parent))
    monkeypatch.chdir(tmp_path)
    options = ["--trainer.fast_dev_run=2", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    assert command("fit", "--config", name, *options) == 0


@pytest.mark.parametrize("name", configs.shipped())
def test_a_config_says_what_it_does_and_how_it_is_run(name):
    first, second, *lines = header(configs.find(name))
    assert first.endswith(".")
    assert second == ""
    assert any(f"--config {name}" in line for line in lines)
