"""``trainkit show``: everything about one part, and the YAML to paste."""

import argparse
import ast
import difflib
import json
import sys

from trainkit import catalogue
from trainkit.catalogue import Entry, Parameter

__all__ = ["add_parser", "run"]

LINE = 100


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``show``."""
    parser = subparsers.add_parser(
        "show",
        help="show one part: signature, docstring, YAML",
        description="Show one part: signature, import line, docstring with references, YAML ready to paste.",
    )
    parser.add_argument("name", metavar="CLASS", help="name of the class, in any case, with or without its path")
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    """Print the part; 2 for a name that does not exist."""
    parts = catalogue.entries()
    wanted = namespace.name.rpartition(".")[2].lower()
    found = [part for part in parts if part.name.lower() == wanted]
    if not found:
        names = {part.name.lower(): part.name for part in parts}
        close = [names[match] for match in difflib.get_close_matches(wanted, names, cutoff=0.5)]
        hint = f"did you mean {', '.join(close)}?" if close else "trainkit list prints every part"
        print(f"trainkit show: there is no class {namespace.name!r}; {hint}", file=sys.stderr)
        return 2
    print("\n\n".join(describe(part) for part in found))
    return 0


def describe(part: Entry) -> str:
    """The whole text on one part."""
    package = part.path.rpartition(".")[0]
    blocks = (
        signature(part),
        f"{part.kind} of {part.family}, defined in {part.file}:{part.line}",
        f"from {package} import {', '.join((part.name, *part.functions))}",
        part.docstring or "(no docstring)",
        yaml_snippet(part),
    )
    return "\n\n".join(blocks)


def signature(part: Entry) -> str:
    """The constructor as source, on one line where it fits."""
    shown: list[str] = []
    for parameter in part.parameters:
        if parameter.keyword_only and "*" not in shown:
            shown.append("*")
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        equals = " = " if annotation else "="
        shown.append(
            parameter.name + annotation + (f"{equals}{parameter.default}" if parameter.default is not None else "")
        )
    line = f"{part.name}({', '.join(shown)})"
    return line if len(line) <= LINE else f"{part.name}(\n" + "".join(f"    {text},\n" for text in shown) + ")"


def yaml_snippet(part: Entry) -> str:
    """``class_path`` and ``init_args`` with the defaults, as a config takes them."""
    lines = [f"class_path: {part.path}"]
    if part.parameters:
        lines.append("init_args:")
        lines += [f"  {argument(parameter)}" for parameter in part.parameters]
    return "\n".join(lines)


def argument(parameter: Parameter) -> str:
    """One line of ``init_args``: a required one to fill in, a default that is no literal as a comment."""
    if parameter.default is None:
        return f"{parameter.name}:  # required" + (f", {parameter.annotation}" if parameter.annotation else "")
    try:
        value = ast.literal_eval(parameter.default)
    except ValueError:
        return f"# {parameter.name}: {parameter.default} by default"
    return f"{parameter.name}: {yaml_value(value)}"


def yaml_value(value: object) -> str:
    """A Python literal as YAML of one line."""
    if isinstance(value, float) and "e" in repr(value):
        mantissa, _, exponent = repr(value).partition("e")
        # YAML 1.1 reads 1e-07 as a string: a float needs its point.
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(yaml_value(item) for item in value)}]"
    if isinstance(value, str) and value.replace("_", "").isalpha() and value.lower() not in YAML_WORDS:
        return value
    return json.dumps(value)


YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"}
"""Words that stay strings only inside quotes."""
