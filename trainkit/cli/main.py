"""Entry point of the ``trainkit`` command."""

import argparse
import os
import sys

from trainkit import __version__
from trainkit.cli import check, claim, configs, data, listing, show, training

__all__ = ["main"]

COMMANDS = (configs, data, listing, show, check, claim)


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = argparse.ArgumentParser(
        prog="trainkit",
        description="Losses, metrics and training parts for PyTorch and Lightning.",
    )
    parser.add_argument("--version", action="version", version=f"trainkit {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    training.add_parsers(subparsers)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(args: list[str] | None = None) -> None:
    """Run a command.

    Args:
        args: Arguments after the program's name; by default those of the process.

    Raises:
        SystemExit: With 1 where a check found a fault or a run can't use its data, 2 where the call itself was wrong.
    """
    # A console script lacks the working directory, where a user's own parts lie.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    words = sys.argv[1:] if args is None else args
    parser = build_parser()
    # Lightning parses the options of its stages, and argparse would take them for its own.
    staged = words[:1] and words[0] in training.STAGES
    namespace = parser.parse_args(words[:1] if staged else words)
    if not staged and not hasattr(namespace, "run"):
        parser.print_help()
        return
    try:
        status: int = training.run(words) if staged else namespace.run(namespace)
    except BrokenPipeError:
        # The reader, such as head, has seen enough; nothing may be flushed to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    if status:
        raise SystemExit(status)
