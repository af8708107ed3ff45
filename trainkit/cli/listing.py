"""``trainkit list``: the parts, by family."""

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit import catalogue

if TYPE_CHECKING:
    from trainkit.catalogue import Entry

__all__ = ["add_parser", "run"]

START = "<!-- catalogue:start -->"
END = "<!-- catalogue:end -->"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``list``."""
    parser = subparsers.add_parser("list", help="list the parts", description="List the parts, by family.")
    parser.add_argument("family", nargs="?", metavar="FAMILY", help="only this family, such as losses.classification")
    parser.add_argument("--search", metavar="TEXT", help="only parts whose name, parameters or docstring hold TEXT")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON with everything that is known of each part")
    form.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=f"with --markdown: put the table into FILE, between {START} and {END}",
    )
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    """Print what was asked for; 2 for a family that does not exist."""
    parts = catalogue.entries()
    if namespace.family:
        chosen = namespace.family.removeprefix("trainkit.")
        families = family_names(parts)
        if chosen not in families:
            print(
                f"trainkit list: there is no family {chosen!r}; the families are {', '.join(families)}", file=sys.stderr
            )
            return 2
        parts = [part for part in parts if f"{part.family}.".startswith(f"{chosen}.")]
    if namespace.search:
        parts = [part for part in parts if holds(part, namespace.search)]
    if namespace.write:
        return write_table(namespace.write, catalogue.render_markdown(parts), START, END)
    if namespace.json:
        print(catalogue.to_json(parts))
    elif namespace.markdown:
        print(catalogue.render_markdown(parts))
    else:
        width = shutil.get_terminal_size(fallback=(120, 24)).columns
        print(catalogue.render_text(parts, width=width, bold=sys.stdout.isatty()))
    return 0


def family_names(parts: Iterable["Entry"]) -> list[str]:
    """Every family that holds a part, and the families above it."""
    names: set[str] = set()
    for part in parts:
        folders = part.family.split(".")
        names.update(".".join(folders[:length]) for length in range(1, len(folders) + 1))
    return sorted(names)


def holds(part: "Entry", text: str) -> bool:
    """Whether a part's names or docstring hold ``text``, in any case."""
    words = (part.path, *part.functions, *(p.name for p in part.parameters), part.docstring)
    return text.casefold() in "\n".join(words).casefold()


def write_table(file: Path, table: str, first: str, last: str) -> int:
    """Put ``table`` between the lines ``first`` and ``last`` of ``file``; 2 where they are missing."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, start, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not (start and end):
        print(f"trainkit: {file} does not hold the lines {first} and {last}", file=sys.stderr)
        return 2
    file.write_text(f"{before}{start}\n{table}\n{end}{after}", encoding="utf-8")
    return 0
