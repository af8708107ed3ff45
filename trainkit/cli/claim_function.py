"""The process in which a claim calls a function: ``python -m trainkit.cli.claim_function FUNCTION ARGUMENTS FILE``."""

import importlib
import json
import sys
from pathlib import Path

__all__ = ["main"]


def main(function: str, arguments: str, file: str) -> None:
    """Call ``package.module:function`` with arguments from JSON, and write the numbers that it gives to a file."""
    module, _, name = function.partition(":")
    values = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    Path(file).write_text(json.dumps({key: float(value) for key, value in values.items()}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
