"""Pairs of docstring and source from Python's own standard library."""

import ast
import json
import os
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from .cache import cache_folder
from .pairs import Pair

__all__ = ["read_stdlib"]

TESTS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
LEAST_WORDS = 4
FORMAT = 1
"""Changes when the pairs do, so that an older cache is not read."""


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _functions(child, name)
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _functions(child, prefix)


def pairs_of(text: str, module: str) -> Iterator[Pair]:
    """First paragraph of the docstring and source without docstring of each function that has both."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in somebody else's strings
        tree = ast.parse(text)
    lines = text.splitlines()
    for name, node in _functions(tree, module):
        docstring = (ast.get_docstring(node) or "").strip().partition("\n\n")[0]
        first = node.body[0]
        # A docstring on the line of the def, or with a statement behind it, can't be cut out by lines.
        alone = len(node.body) > 1 and first.lineno > node.lineno and node.body[1].lineno > (first.end_lineno or 0)
        if alone and len(docstring.split()) >= LEAST_WORDS:
            source = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
            yield Pair(docstring, "\n".join(source), name, module.partition(".")[0])


def _parse(root: Path) -> list[Pair]:
    files = [f for f in sorted(root.rglob("*.py")) if not TESTS.intersection(f.relative_to(root).parts)]
    pairs: list[Pair] = []
    for file in tqdm(files, desc="reading the standard library", unit="file", leave=False):
        parts = file.relative_to(root).with_suffix("").parts
        try:
            pairs += pairs_of(file.read_text(encoding="utf-8"), ".".join(p for p in parts if p != "__init__"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates and files for other versions of Python
    return pairs


def read_stdlib() -> list[Pair]:
    """The pairs, from the cache or, the first time, from the source; grouped by top-level module or package."""
    root = Path(sysconfig.get_paths()["stdlib"])
    cache = cache_folder() / f"stdlib-{platform.python_version()}-{FORMAT}.jsonl"
    if cache.is_file():
        return [Pair(*json.loads(line)) for line in cache.read_text(encoding="utf-8").splitlines()]
    pairs = _parse(root)
    cache.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may get here at once; each writes a whole file, and the last one stays.
    part = cache.with_name(f"{cache.name}.{os.getpid()}")
    part.write_text("".join(json.dumps(list(pair)) + "\n" for pair in pairs), encoding="utf-8")
    part.replace(cache)
    return pairs
