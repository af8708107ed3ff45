"""The catalogue agrees with the package at run time, with the README, and costs next to nothing."""

import importlib
import inspect
import json
import pkgutil
import resource
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import trainkit
from trainkit import catalogue
from trainkit.cli.listing import END, START

ROOT = Path(__file__).resolve().parents[1]

TREE = {
    "__init__.py": "",
    "_core/__init__.py": "",
    "_core/base.py": """
        class Base:
            def __init__(self, size: int, *, scale: float = 1.0) -> None: ...
        """,
    "calibration/__init__.py": '"""Calibration."""',
    "calibration/metrics/__init__.py": "from pkg.calibration.metrics.score import *",
    "calibration/metrics/score.py": '''
        """A metric."""
        from pkg._core.base import Base
        __all__ = ["Bare", "Thin", "score"]
        class Thin(Base):
            """Thin.

            Args:
                size: How large,
                    in rows.
                scale: Factor.
            """
        class Bare(Metric): ...
        def score(): ...
        def _helper(): ...
        ''',
    "cli/__init__.py": "from pkg.cli.main import *",
    "cli/main.py": "__all__ = ['Hidden']\nclass Hidden: ...",
    "losses/__init__.py": (
        "from pkg.losses._base import *\nfrom pkg.losses.pairs.margin import *\nfrom pkg.losses.combined import *"
    ),
    "losses/_base.py": "__all__ = ['Loss']\nclass Loss(Module): ...",
    "losses/combined.py": '''
        from dataclasses import dataclass
        from typing import ClassVar
        __all__ = ["Helper", "Ramp"]
        class Helper: ...
        @dataclass(frozen=True)
        class Ramp(Schedule):
            """From one value to another."""
            start: float
            end: float = 1.0
            kind: ClassVar[str] = "linear"
        ''',
    "losses/pairs/__init__.py": "from pkg.losses.pairs.margin import *",
    "losses/pairs/margin.py": r'''
        __all__ = ["MarginLoss", "margin_loss"]
        def margin_loss(query, key): ...
        class MarginLoss(Module):
            r"""Hinge | on ``pairs``, see :class:`Thin`.

            When pairs
            are ranked.

            .. math:: \max(0, m - s)

            Args:
                margin: Width.

            Shape:
                - query: (N, D)

            Example:
                >>> MarginLoss()
                MarginLoss()

            Note:
                Something:

                indented.

            References:
                A. van den Oord, Yazhe Li and Oriol Vinyals, "Representation Learning
                with Contrast", NeurIPS 2018.
                arXiv:1807.03748
                Nils Reimers and Iryna Gurevych, "Sentence", EMNLP 2019. doi:10.18653/v1/D19-1410.
            """
            def __init__(self, margin: float = 0.5, names: tuple[str, ...] = ("a", "b")): ...
        ''',
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("catalogue") / "pkg"
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text))
    return {part.name: part for part in catalogue.entries(root)}


def test_only_parts_that_public_families_export_are_listed(parts):
    assert list(parts) == ["Bare", "Thin", "Ramp", "MarginLoss"]


def test_names_paths_families_and_kinds(parts):
    margin, thin = parts["MarginLoss"], parts["Thin"]
    assert (margin.path, margin.family, margin.kind) == ("pkg.losses.MarginLoss", "losses.pairs", "loss")
    assert (thin.path, thin.family, thin.kind) == ("pkg.calibration.metrics.Thin", "calibration.metrics", "metric")
    assert (margin.file, margin.line) == ("pkg/losses/pairs/margin.py", 4)
    assert margin.functions == ("margin_loss",)


def test_parameters_come_from_the_constructor_the_base_or_the_fields(parts):
    shown = {
        name: [(p.name, p.annotation, p.default, p.keyword_only) for p in part.parameters]
        for name, part in parts.items()
    }
    assert shown == {
        "Bare": [],
        "Thin": [("size", "int", None, False), ("scale", "float", "1.0", True)],
        "Ramp": [("start", "float", None, False), ("end", "float", "1.0", False)],
        "MarginLoss": [
            ("margin", "float", "0.5", False),
            ("names", "tuple[str, ...]", "('a', 'b')", False),
        ],
    }
    assert [p.description for p in parts["Thin"].parameters] == ["How large, in rows.", "Factor."]


def test_sections_end_where_the_next_one_begins(parts):
    assert list(parts["MarginLoss"].sections) == ["Args", "Shape", "Example", "Note", "References"]
    assert parts["MarginLoss"].sections["Note"] == "Something:\n\nindented."
    assert parts["Bare"].summary == ""


def test_references_are_split_joined_and_shortened(parts):
    first, second = parts["MarginLoss"].references
    assert first.endswith('Learning with Contrast", NeurIPS 2018. arXiv:1807.03748')
    assert second.startswith("Nils Reimers")
    assert parts["MarginLoss"].paper == "van den Oord et al. 2018"
    assert parts["MarginLoss"].link == "https://arxiv.org/abs/1807.03748"


@pytest.mark.parametrize(
    ("reference", "paper", "link"),
    [
        (
            'Lin et al., "Focal Loss", ICCV 2017. arXiv:1708.02002',
            "Lin et al. 2017",
            "https://arxiv.org/abs/1708.02002",
        ),
        ('G. W. Brier, "Verification", Review 1950. doi:10.1175/1520.', "Brier 1950", "https://doi.org/10.1175/1520"),
        (
            'A. Bee and C. Dee, "On 1999", 2008. arXiv:2012.01234',
            "Bee and Dee 2008",
            "https://arxiv.org/abs/2012.01234",
        ),
        ('A. Bee, C. Dee and E. Eff, "T", V 2020. https://a.b/c.', "Bee et al. 2020", "https://a.b/c"),
        ("A page without a title", "", ""),
    ],
)
def test_short_forms(tmp_path, reference, paper, link):
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / "__init__.py").write_text(f"from {tmp_path.name}.losses.a import *")
    text = f'__all__ = ["A"]\nclass A(B):\n    """A.\n\n    References:\n        {reference}\n    """'
    (tmp_path / "losses" / "a.py").write_text(text)
    (part,) = catalogue.entries(tmp_path)
    assert (part.paper, part.link) == (paper, link)


def test_text_fits_the_width_and_ends_with_the_count(parts):
    lines = catalogue.render_text(list(parts.values()), width=62).splitlines()
    assert max(map(len, lines)) <= 62
    assert lines[0] == "calibration.metrics"
    assert lines[-1] == "4 parts"
    assert lines[-3] == "  MarginLoss  Hinge | on pairs, see…  van den Oord et al. 2018"
    narrow = catalogue.render_text(list(parts.values()), width=50)
    assert max(map(len, narrow.splitlines())) <= 50
    assert "2018" not in narrow
    assert "Hinge | on pairs, see Thin." in catalogue.render_text(list(parts.values()), width=200)
    assert catalogue.render_text([]) == "0 parts"


def test_markdown_links_papers_and_escapes_cells(parts):
    assert catalogue.render_markdown([parts["MarginLoss"]]).splitlines()[2:] == [
        r"| `MarginLoss` | `pkg.losses` | Hinge \| on `pairs`, see `Thin`. "
        "| [van den Oord et al. 2018](https://arxiv.org/abs/1807.03748) |"
    ]


def test_json_holds_everything(parts):
    (part,) = json.loads(catalogue.to_json([parts["MarginLoss"]]))
    assert part["paper"] == "van den Oord et al. 2018"
    assert part["parameters"][0] == {
        "name": "margin",
        "annotation": "float",
        "default": "0.5",
        "keyword_only": False,
        "description": "Width.",
    }


def families_at_run_time():
    """Packages of trainkit whose ``__init__`` has export lines."""
    for info in pkgutil.walk_packages(trainkit.__path__, "trainkit."):
        top = info.name.split(".")[1]
        if info.ispkg and not top.startswith("_") and top not in {"cli", "testing", "recipes", "configs"}:
            module = importlib.import_module(info.name)
            if "import *" in Path(module.__file__).read_text():
                yield module


def test_entries_are_the_parts_that_the_families_export():
    exported = {}
    for family in families_at_run_time():
        for source in sys.modules.copy().values():
            path = getattr(source, "__name__", "")
            if path.startswith(family.__name__ + ".") and not path.rpartition(".")[2].startswith("_"):
                for name in getattr(source, "__all__", ()):
                    value = getattr(family, name, None)
                    if isinstance(value, type) and value is getattr(source, name) and value.__bases__ != (object,):
                        exported.setdefault(value, []).append(f"{family.__name__}.{name}")
    listed = {part.path for part in catalogue.entries()}
    assert listed == {min(paths, key=lambda path: path.count(".")) for paths in exported.values()}
    assert listed


def test_parameters_are_those_of_the_signature():

    for part in catalogue.entries():
        family, _, name = part.path.rpartition(".")
        signature = inspect.signature(getattr(importlib.import_module(family), name))
        assert [p.name for p in part.parameters] == list(signature.parameters), part.path


def test_readme_table_is_current():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition(START)[2].partition(END)[0].strip()
    assert table == catalogue.render_markdown(catalogue.entries()), (
        "python -m trainkit list --markdown --write README.md brings the table up to date"
    )


def test_list_imports_nothing_heavy_and_is_quick():
    code = (
        "import sys; from trainkit.cli.main import main; main(['list']); "
        "heavy = {'torch', 'numpy', 'lightning', 'torchmetrics', 'jsonargparse'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, which a busy machine does not stretch.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
