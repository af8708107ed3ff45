"""``trainkit data``: the data sets that recipes know by name."""

import argparse
import importlib

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``data``."""
    parser = subparsers.add_parser(
        "data",
        help="list the data sets that recipes know by name",
        description="List the data sets that recipes know by name: what they hold, where they come from, whether they "
        "are there. Files are looked for in $TRAINKIT_DATA and ../shared/data.",
    )
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    """Print every set."""
    sets = importlib.import_module("trainkit.recipes.data.sets")
    for name, one in sets.SETS.items():
        print(f"{name} ({one.recipe}): {one.rows}")
        print(f"  from {one.source}; licence: {one.licence}")
        if not one.file:
            print("  needs no file")
            continue
        try:
            print(f"  file {sets.locate(name)}")
        except sets.DataError:
            print(f"  file {one.file} not found: {one.size:,} bytes, sha256 {one.sha256}")
            print(f"  made by: {one.convert}")
    return 0
