"""The import rules and the other rules of the house, by an ``ast`` walk over the source."""

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[1]

SPECIAL = {"_core", "distributed", "callbacks", "testing", "cli"}
LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
METRIC_BASE = "trainkit._core.metric"
METRIC_FAMILIES = ("trainkit.metrics", "trainkit.calibration.metrics")


class Source:
    """One Python file of a checkout, with its dotted name (``recipes.x`` for recipes) and its imports."""

    def __init__(self, root: Path, file: Path) -> None:
        self.path = file.relative_to(root)
        self.is_package = file.name == "__init__.py"
        parts = self.path.with_suffix("").parts
        self.module = ".".join(parts[:-1] if self.is_package else parts)
        self.text = file.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.imports = list(self._imports(self.tree, True))

    def _imports(self, node: ast.AST, top: bool) -> Iterator[tuple[str, bool, int]]:
        """Name, whether it runs when the module is imported, and line; ``from a import b`` counts as a and a.b."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, top, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                yield base, top, child.lineno
                yield from ((f"{base}.{alias.name}", top, child.lineno) for alias in child.names if alias.name != "*")
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                unread = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                yield from self._imports(child, top and not inside and not unread)

    @property
    def layer(self) -> str:
        """Folder of the module below trainkit; the module's own name for one directly in it; empty for trainkit."""
        return self.module.partition(".")[2].partition(".")[0]

    def exports(self) -> list[str] | None:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return list(ast.literal_eval(node.value))
        return None

    def stars(self) -> list[str]:
        nodes = (node for node in self.tree.body if isinstance(node, ast.ImportFrom))
        return [node.module or "" for node in nodes if node.names[0].name == "*"]


@cache
def sources(root: Path, *folders: str) -> list[Source]:
    return [Source(root, file) for folder in folders for file in sorted((root / folder).rglob("*.py"))]


def below(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def families(root: Path) -> set[str]:
    folders = {file.parent.name for file in (root / "trainkit").glob("*/__init__.py")}
    return folders - SPECIAL


def allowed(source: Source, root: Path) -> tuple[str, ...] | None:
    """Packages of trainkit that a module may import; None where there is no limit."""
    own = f"trainkit.{source.layer}"
    shared = ("trainkit._core", "trainkit.distributed")
    if source.layer in families(root):
        return (*shared, own)
    everything = (*shared, *(f"trainkit.{family}" for family in families(root)))
    return {
        "_core": ("trainkit._core",),
        "distributed": shared,
        "callbacks": (*everything, own),
        "testing": (*everything, "trainkit.callbacks", own),
    }.get(source.layer)


def wrong_layers(root: Path) -> Iterator[str]:
    for source in sources(root, "trainkit"):
        may = allowed(source, root)
        for name, _, line in source.imports:
            if may is not None and below(name, "trainkit") and name != "trainkit" and not below(name, *may):
                yield f"{source.path}:{line} imports {name}"


def heavy_imports(root: Path) -> Iterator[str]:
    """Lightning, torchmetrics and the rest, where they don't belong."""
    for source in sources(root, "trainkit"):
        metric = source.module == METRIC_BASE or below(source.module, *METRIC_FAMILIES)
        for name, top, line in source.imports:
            wrong = (
                (below(name, *LIGHTNING) and not lightning_fits(source, top))
                or (below(name, "torchmetrics") and not metric and (top or source.layer != "testing"))
                or (below(name, METRIC_BASE) and not metric)
                or (below(name, *METRIC_FAMILIES) and below(source.module, "trainkit.calibration") and not metric)
                or (below(name, "pytest") and source.layer == "testing")
                or (source.layer in {"", "catalogue", "__main__"} and not light(name))
                or (source.layer == "cli" and top and not light(name))
            )
            if wrong:
                yield f"{source.path}:{line} imports {name}"


def lightning_fits(source: Source, top: bool) -> bool:
    return source.layer == "callbacks" or (source.layer in {"testing", "cli"} and not top)


def light(name: str) -> bool:
    parts = name.split(".")
    return parts[0] in {"", *sys.stdlib_module_names} or (
        parts[0] == "trainkit" and (parts[1:2] or [""])[0] in {"", "catalogue", "cli", "__version__"}
    )


def recipe_imports(root: Path) -> Iterator[str]:
    """Bare ``recipes`` is a second identity of trainkit.recipes; the library itself knows neither."""
    for source in sources(root, "trainkit", "recipes", "configs", "tests"):
        in_library = below(source.module, "trainkit")
        shipped = ("trainkit.recipes", "trainkit.configs", "configs", "tests") if in_library else ()
        for name, _, line in source.imports:
            if below(name, "recipes", *shipped):
                yield f"{source.path}:{line} imports {name}"


def relative_imports(root: Path) -> Iterator[str]:
    for source in sources(root, "trainkit", "configs", "tests"):
        yield from (f"{source.path}:{line} imports {name}" for name, _, line in source.imports if name[0] == ".")


def long_files(root: Path) -> Iterator[str]:
    for source in sources(root, "trainkit", "recipes"):
        limit = 400 if below(source.module, "trainkit") else 80 if source.path.name == "_module.py" else 120
        lines = len(source.text.splitlines())
        if lines > limit:
            yield f"{source.path} has {lines} lines, limit {limit}"


def asserts(root: Path) -> Iterator[str]:
    for source in sources(root, "trainkit"):
        found = (node for node in ast.walk(source.tree) if isinstance(node, ast.Assert))
        yield from (f"{source.path}:{node.lineno} has an assert" for node in found)


def exporting(root: Path) -> list[Source]:
    """Method modules of the families and of distributed: the files that a star import may name."""
    layers = families(root) | {"distributed", "callbacks"}
    return [
        s
        for s in sources(root, "trainkit")
        if s.layer in layers and not s.is_package and not any(part.startswith("_") for part in s.module.split("."))
    ]


def star_arguments(root: Path) -> Iterator[str]:
    for source in exporting(root):
        exported = source.exports() or []
        for node in source.tree.body:
            if getattr(node, "name", None) not in exported:
                continue
            body = node.body if isinstance(node, ast.ClassDef) else [node]
            for function in body:
                public = isinstance(function, ast.FunctionDef) and (
                    function.name == "__init__" or not function.name.startswith("_")
                )
                if public and function.args.kwarg:
                    yield f"{source.path}:{function.lineno} {node.name} takes **{function.args.kwarg.arg}"


def unexported(root: Path) -> Iterator[str]:
    """Modules without ``__all__``, public definitions outside it, modules that no family exports."""
    starred = {star for source in sources(root, "trainkit") if source.is_package for star in source.stars()}
    for source in exporting(root):
        exported = source.exports()
        if exported is None:
            yield f"{source.path} has no __all__"
            continue
        defined = {n.name: n.lineno for n in source.tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
        for name, line in defined.items():
            if name not in exported and not name.startswith("_"):
                yield f"{source.path}:{line} {name} is neither private nor in __all__"
        if exported and source.module not in starred:
            yield f"{source.path} is exported by no family"


def crowded_packages(root: Path) -> Iterator[str]:
    """An ``__init__`` of a family holds its docstring and the export lines, nothing else."""
    for source in sources(root, "trainkit"):
        if source.is_package and source.layer in families(root) | SPECIAL - {"testing"}:
            for node in source.tree.body:
                docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                if not docstring and not (isinstance(node, ast.ImportFrom) and node.names[0].name == "*"):
                    yield f"{source.path}:{node.lineno} is neither a docstring nor an export line"


RULES: list[Callable[[Path], Iterator[str]]] = [
    wrong_layers,
    heavy_imports,
    recipe_imports,
    relative_imports,
    long_files,
    asserts,
    star_arguments,
    unexported,
    crowded_packages,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule):
    assert list(rule(ROOT)) == []


BROKEN = [
    (wrong_layers, "trainkit/_core/pairs.py", "from trainkit.distributed import gather_rows"),
    (wrong_layers, "trainkit/_core/pairs.py", "from trainkit.losses import thing"),
    (wrong_layers, "trainkit/distributed/queue.py", "import trainkit.losses.thing\n__all__ = []"),
    (wrong_layers, "trainkit/losses/thing.py", "from trainkit.optim import chain\n__all__ = []"),
    (wrong_layers, "trainkit/losses/thing.py", "def f():\n    from trainkit import optim\n__all__ = ['f']"),
    (wrong_layers, "trainkit/callbacks/thing.py", "from trainkit.testing import check\n__all__ = []"),
    (heavy_imports, "trainkit/losses/thing.py", "import lightning.pytorch as pl\n__all__ = []"),
    (heavy_imports, "trainkit/losses/thing.py", "from torchmetrics import Metric\n__all__ = []"),
    (heavy_imports, "trainkit/losses/thing.py", "from trainkit._core.metric import Metric\n__all__ = []"),
    (
        heavy_imports,
        "trainkit/calibration/calibrators/thing.py",
        "from trainkit.calibration.metrics import scores\n__all__ = []",
    ),
    (heavy_imports, "trainkit/testing/thing.py", "from lightning.pytorch import Trainer"),
    (heavy_imports, "trainkit/testing/thing.py", "from torchmetrics import MetricCollection"),
    (heavy_imports, "trainkit/testing/thing.py", "def f():\n    import pytest"),
    (heavy_imports, "trainkit/cli/thing.py", "import torch"),
    (heavy_imports, "trainkit/cli/thing.py", "from trainkit.testing import check"),
    (heavy_imports, "trainkit/catalogue.py", "import numpy"),
    (heavy_imports, "trainkit/catalogue.py", "from trainkit._core import checks"),
    (recipe_imports, "tests/test_thing.py", "def f():\n    import recipes.classification"),
    (recipe_imports, "trainkit/cli/thing.py", "def f():\n    from trainkit import recipes"),
    (relative_imports, "trainkit/cli/thing.py", "from . import main"),
    (long_files, "recipes/thing.py", "\n" * 121),
    (long_files, "recipes/_module.py", "\n" * 81),
    (long_files, "trainkit/cli/thing.py", "\n" * 401),
    (asserts, "trainkit/cli/thing.py", "def f(x):\n    assert x"),
    (star_arguments, "trainkit/losses/thing.py", "def f(**options): ...\n__all__ = ['f']"),
    (
        star_arguments,
        "trainkit/losses/thing.py",
        """
        __all__ = ["A"]
        class A:
            def forward(self, **inputs): ...
        """,
    ),
    (unexported, "trainkit/losses/thing.py", "def _f(): ..."),
    (unexported, "trainkit/losses/thing.py", "__all__ = []\ndef f(): ..."),
    (unexported, "trainkit/losses/other.py", "__all__ = ['f']\ndef f(): ..."),
    (crowded_packages, "trainkit/optim/__init__.py", "from trainkit.optim.chain import Chain"),
]


@pytest.mark.parametrize(("rule", "file", "text"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_rule_finds_a_breach_and_no_other_does(tmp_path, rule, file, text):
    tree = {
        "trainkit/losses/__init__.py": "from trainkit.losses.thing import *",
        "trainkit/optim/__init__.py": "",
        "trainkit/calibration/__init__.py": "",
        "trainkit/calibration/metrics/scores.py": "from trainkit._core.metric import Metric",
        "trainkit/calibration/metrics/__init__.py": "",
        "trainkit/testing/__init__.py": "",
        "trainkit/testing/fits.py": "def f():\n    import lightning\n    import torchmetrics",
        "trainkit/cli/main.py": "from trainkit import __version__, catalogue\nif TYPE_CHECKING:\n    import torch",
        "trainkit/_core/metric.py": "import torchmetrics",
        "recipes/good.py": "from ._module import RecipeModule\nfrom trainkit.losses import thing",
    }
    tree["trainkit/calibration/metrics/scores.py"] += "\n__all__ = []"
    for path, content in (tree | {file: dedent(text)}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert {other.__name__ for other in RULES if list(other(tmp_path))} == {rule.__name__}
