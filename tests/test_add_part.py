"""A new part takes three places; list, README, command line and suite follow. Tried in a copy of the tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# One worker: the tests share a copy of the tree and change it in turn.
pytestmark = pytest.mark.xdist_group("tree")

ROOT = Path(__file__).resolve().parents[1]

LOSS = '''"""Squared hinge on the margin to the best other class."""

import torch
from torch import Tensor

from trainkit._core.checks import check_number
from trainkit._core.loss import Loss
from trainkit._core.numerics import fp32_region
from trainkit._core.reduction import check_reduction, reduce
from trainkit._core.typing import Reduction
from trainkit.distributed import reduce_over_ranks
from trainkit.losses.classification._common import check_class_inputs, class_targets

__all__ = ["ToyMarginLoss", "toy_margin_loss"]


@fp32_region
def _rows(logits: Tensor, target: Tensor, margin: float, ignore_index: int) -> tuple[Tensor, Tensor]:
    t = class_targets(logits, target, None, None, ignore_index)
    gaps = (margin + t.logits - t.logits.gather(1, t.target[:, None])).clamp_min(0).square()
    return t.weights * (gaps.sum(1) - margin**2), t.weights


def toy_margin_loss(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 1.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`ToyMarginLoss`."""
    check_number("toy_margin_loss", "margin", margin, minimum=0)
    check_reduction("toy_margin_loss", reduction)
    check_class_inputs("toy_margin_loss", logits, target, None, None, ignore_index, validate_args)
    return reduce(*_rows(logits, target, margin, ignore_index), reduction)


class ToyMarginLoss(Loss):
    r"""Squared hinge on the margins to the other classes.

    .. math:: \\ell_i = \\sum_{k \\ne y_i} \\max(0, m + z_{ik} - z_{i y_i})^2

    Args:
        margin: Margin m, >= 0.
        ignore_index: Class index that is left out.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        sync: On several ranks, give the loss of one process on the whole batch.
        validate_args: Check the values of the target.

    Shape:
        - logits: (N, C)
        - target: (N,)
        - output: () or (N,)

    Example:
        >>> import torch
        >>> ToyMarginLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor(1.)

    Note:
        There is no paper.
    """

    def __init__(
        self,
        margin: float = 1.0,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__(reduction, sync, validate_args)
        check_number("ToyMarginLoss", "margin", margin, minimum=0)
        self.margin = margin
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        check_class_inputs("ToyMarginLoss", logits, target, None, None, self.ignore_index, self.validate_args)
        rows, weights = _rows(logits, target, self.margin, self.ignore_index)
        return reduce_over_ranks(rows, weights, self.reduction, call="ToyMarginLoss", sync=self.sync)
'''

EXPORT = "from trainkit.losses.classification.toy_margin import *\n"

RECORD = '''"""Record of the toy loss."""

from trainkit.losses import ToyMarginLoss, toy_margin_loss
from trainkit.testing import BadCall, LossSpec


def reference(logits, target, margin=1.0):
    total = 0.0
    for row, y in zip(logits, target, strict=True):
        total += sum(max(0.0, margin + z - row[y]) ** 2 for k, z in enumerate(row) if k != y)
    return total / len(logits)


SPECS = (
    LossSpec(
        cls=ToyMarginLoss,
        function=toy_margin_loss,
        configs=({}, {"margin": 0.5}),
        reference=reference,
        errors=(
            BadCall(ValueError, "margin must be >= 0, got -1", {"margin": -1}),
            BadCall(ValueError, "reduction must be one of", {"reduction": "average"}),
        ),
    ),
)
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the checkout with the loss in its three places."""
    copy = tmp_path_factory.mktemp("tree") / "checkout"
    skipped = shutil.ignore_patterns(".git", ".*_cache", "__pycache__", "*.egg-info", ".venv", "build", "dist")
    shutil.copytree(ROOT, copy, ignore=skipped)
    (copy / "trainkit/losses/classification/toy_margin.py").write_text(LOSS)
    family = copy / "trainkit/losses/__init__.py"
    family.write_text(family.read_text() + EXPORT)
    (copy / "tests/specs/losses_toy.py").write_text(RECORD)
    return copy


def run(tree, *command, code=0):
    outer = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment = {**outer, "PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def suite(tree, *args, code=0):
    """The suite of the copy, on this process."""
    return run(tree, "-m", "pytest", "-o", "addopts=", "-n", "0", "-p", "no:cacheprovider", "-q", *args, code=code)


def test_it_is_listed_and_shown(tree):
    assert "ToyMarginLoss" in run(tree, "-m", "trainkit", "list", "losses.classification")
    shown = run(tree, "-m", "trainkit", "show", "toymarginloss")
    assert "from trainkit.losses import ToyMarginLoss" in shown
    assert "margin: 1.0" in shown


def test_the_readme_table_asks_for_it_and_one_command_adds_it(tree):
    stale = "tests/test_catalogue.py::test_readme_table_is_current"
    suite(tree, stale, code=1)
    run(tree, "-m", "trainkit", "list", "--markdown", "--write", "README.md")
    suite(tree, stale)
    assert "| `ToyMarginLoss` | `trainkit.losses` | Squared hinge on the margins" in (tree / "README.md").read_text()


def test_the_suite_holds_it_to_the_properties(tree):
    out = suite(
        tree,
        "tests/conformance/test_parts.py",
        "tests/conformance/test_completeness.py",
        "tests/test_docstrings.py",
        "tests/test_architecture.py",
        "trainkit/losses/classification/toy_margin.py",
        "--doctest-modules",
        "-k",
        "Toy or toy or every_part or rule_holds",
    )
    assert "properties: 4 does not apply, 38 holds" in out
    assert "ToyMarginLoss(margin=0.5)" in out


def test_the_suite_misses_its_record(tree):
    record = tree / "tests/specs/losses_toy.py"
    text = record.read_text()
    record.unlink()
    out = suite(tree, "tests/conformance/test_completeness.py", code=1)
    record.write_text(text)
    assert "trainkit.losses.ToyMarginLoss needs one spec record" in out


def test_the_command_line_checks_it(tree):
    out = run(tree, "-m", "trainkit", "check", "ToyMarginLoss", "--only", "L7", "--only", "L16")
    assert "0 faults" in out
