"""The configs that ship with trainkit, and ``trainkit recipes`` to list, show and copy them."""

import argparse
import difflib
import importlib.util
import sys
from pathlib import Path

__all__ = ["add_parser", "find", "run", "shipped"]


def folder() -> Path:
    """Where the configs lie."""
    spec = importlib.util.find_spec("trainkit.configs")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("trainkit.configs is not installed; install trainkit with pip")
    return Path(spec.origin).parent


def shipped() -> dict[str, Path]:
    """The configs by name, such as ``retrieval/info_nce``; claims are none."""
    root = folder()
    paths = [path for path in sorted(root.rglob("*.yaml")) if path.parent != root / "claims"]
    return {str(path.relative_to(root).with_suffix("").as_posix()): path for path in paths}


def find(name: str) -> Path:
    """The file of that path, or else the shipped config of that name.

    Raises:
        FileNotFoundError: If there is neither; names what is close.
    """
    if Path(name).is_file():
        return Path(name)
    known = shipped()
    wanted = name.removesuffix(".yaml")
    if wanted in known:
        return known[wanted]
    # A part of a name is nearer to what was meant than letters in common.
    close = [n for n in known if wanted in n] or difflib.get_close_matches(wanted, known, n=4, cutoff=0.4)
    hint = f"did you mean {', '.join(close)}?" if close else f"the shipped ones are {', '.join(known)}"
    raise FileNotFoundError(f"there is no config {name!r}, neither a file nor a shipped one; {hint}")


def header(path: Path) -> list[str]:
    """The comment at the top of a config."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return lines


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``recipes``."""
    parser = subparsers.add_parser(
        "recipes",
        help="list, show and copy the configs that ship with trainkit",
        description="List, show and copy the configs that ship with trainkit.",
    )
    commands = parser.add_subparsers(metavar="list|show|copy", required=True)
    commands.add_parser("list", help="every config with its first line").set_defaults(run=run, action="list")
    show = commands.add_parser("show", help="print a config")
    copy = commands.add_parser("copy", help="copy a config, to change it")
    for command, action in ((show, "show"), (copy, "copy")):
        command.add_argument("name", metavar="NAME")
        command.set_defaults(run=run, action=action)
    copy.add_argument("dest", metavar="DEST", type=Path, help="a file, or a folder that exists")


def run(namespace: argparse.Namespace) -> int:
    """List, show or copy; 2 for a name that does not exist or a file that does."""
    if namespace.action == "list":
        known = shipped()
        width = max(map(len, known))
        for name, path in known.items():
            print(f"{name:<{width}}  {(header(path) or [''])[0]}")
        return 0
    try:
        source = find(namespace.name)
    except FileNotFoundError as error:
        print(f"trainkit recipes: {error}", file=sys.stderr)
        return 2
    text = source.read_text(encoding="utf-8")
    if namespace.action == "show":
        print(text, end="")
        return 0
    target = namespace.dest / source.name if namespace.dest.is_dir() else namespace.dest
    if target.exists():
        print(f"trainkit recipes: {target} exists already", file=sys.stderr)
        return 2
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}; run it with: trainkit fit --config {target}")
    return 0
