"""Fixtures, options and the summary of the suite."""

import os
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from trainkit.testing import Pool

ROOT = Path(__file__).parent.parent
DEAREST = 10
LIMIT = 5.0
"""CPU seconds of a quiet core that a class in one configuration may take."""


def pytest_addoption(parser):
    parser.addoption(
        "--changed-since", metavar="REV", help="with -m full: only the families whose files changed since the commit"
    )


def pytest_configure(config):
    torch.set_num_threads(1)


def changed_files(revision):
    command = ["git", "diff", "--name-only", revision, "--"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def families_of(names):
    """Families that changed files belong to, and None (all of them) if one of the files is shared code."""
    families = set()
    for name in names:
        top, *rest = Path(name).parts
        if top == "trainkit" and rest[0] in ("_core", "distributed", "testing"):
            return None
        if top == "trainkit" and len(rest) > 1:
            families.add(rest[0])
        if name.startswith("tests/specs/"):
            families.add(Path(name).stem.split("_")[0])
    return families


def pytest_collection_modifyitems(config, items):
    revision = config.getoption("--changed-since")
    if not revision:
        return
    families = families_of(changed_files(revision))
    if families is None:
        return
    out = [i for i in items if getattr(i, "callspec", None) and i.callspec.params.get("family") not in families]
    config.hook.pytest_deselected(items=out)
    items[:] = [i for i in items if i not in out]


@pytest.fixture(scope="session")
def data_file():
    """Path of a file of real data by its name; the test is skipped, and counted, where it is missing."""
    folders = [Path(os.environ["TRAINKIT_DATA"])] if "TRAINKIT_DATA" in os.environ else []
    folders.append(ROOT.parent / "shared" / "data")

    def find(name):
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
        pytest.skip(f"{name} is not in {' or '.join(map(str, folders))}")

    return find


@pytest.fixture(scope="session")
def pool():
    with Pool(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def warm():
    """Load what takes seconds to load, so that no single part pays for it."""
    import jsonargparse  # noqa: F401
    import torchmetrics  # noqa: F401

    layer = torch.compile(torch.nn.Linear(2, 2), dynamic=True, backend="aot_eager")
    for n in (2, 3):
        layer(torch.ones(n, 2)).sum().backward()


class Summary:
    """What the tests say of the parts they tried, collected from the reports of all workers."""

    def __init__(self):
        self.seconds = defaultdict(float)
        self.statuses = Counter()
        self.exempt = {}
        self.ranks = set()

    def pytest_runtest_logreport(self, report):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "outcome":
                part, rule, status, reason, seconds = value
                self.seconds[part] += seconds
                self.statuses[status] += 1
                if status == "exempt":
                    self.exempt[f"{part} {rule}"] = reason
            elif name == "ranks":
                self.ranks.add(tuple(value))

    def too_dear(self):
        return {part: seconds for part, seconds in self.seconds.items() if seconds > LIMIT}

    def pytest_sessionfinish(self, session):
        alone = [ids for ids in self.ranks if len(set(ids)) != 2]
        if (self.too_dear() or alone) and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if not self.seconds:
            return
        write = terminalreporter.write_line
        terminalreporter.section("parts")
        write("properties: " + ", ".join(f"{n} {status}" for status, n in sorted(self.statuses.items())))
        pools = ", ".join(f"processes {' and '.join(map(str, ids))}" for ids in sorted(self.ranks)) or "none"
        write(f"ranks ran on: {pools}")
        for name, reason in sorted(self.exempt.items()):
            write(f"exempt: {name}: {reason}")
        write(f"CPU seconds of a quiet core a class and configuration, the {DEAREST} dearest of {len(self.seconds)}:")
        for part, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])[:DEAREST]:
            write(f"  {seconds:6.2f}  {part}" + ("  above the limit" if seconds > LIMIT else ""))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Summary(), "trainkit-summary")
