"""``trainkit check``: hold a class to the conformance properties."""

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainkit.testing import Outcome

__all__ = ["add_parser", "load", "run"]

SIGNS = {"holds": "holds", "fault": "FAULT", "exempt": "exempt", "does not apply": "-"}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``check``."""
    parser = subparsers.add_parser(
        "check",
        help="hold your own loss, metric, optimizer, calibrator or other part to the conformance properties",
        description="Hold a class to the properties that every part of trainkit has: exact gradients, precision under "
        "autocast, degenerate batches, two ranks and more. Exits with 1 if one does not hold.",
    )
    parser.add_argument("cls", metavar="CLASS", help="mypkg.MyLoss, path/to/file.py:MyLoss, or a part of trainkit")
    parser.add_argument("--kind", help="inputs to draw, such as classification; by default read from the signature")
    parser.add_argument(
        "--family",
        help="losses, metrics, modules, optimizers, samplers, loaders, callbacks or calibrators; by default read from "
        "the class",
    )
    parser.add_argument(
        "--init",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a constructor argument, its value as JSON or a word; or one JSON object with all of them",
    )
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this property, such as L16")
    parser.add_argument("--quick", action="store_true", help="leave out the dear properties of later configurations")
    parser.set_defaults(run=run)


def load(path: str) -> Any:
    """Import a class from its dotted path, ``file.py:Name``, or by its name if it is a part of trainkit.

    Raises:
        ValueError: If there is no such class; says everything that was tried.
    """
    tried: list[str] = []
    for module, name in _places(path):
        try:
            found: Any = importlib.import_module(module)
        except Exception as error:
            tried.append(f"import {module}: {type(error).__name__}: {error}")
            continue
        for part in name.split("."):
            if not hasattr(found, part):
                tried.append(f"{name} in {module}: no such name")
                found = None
                break
            found = getattr(found, part)
        if isinstance(found, type):
            return found
        if found is not None:
            tried.append(f"{name} in {module}: a {type(found).__name__}, not a class")
    raise ValueError(f"{path}: no class found; tried " + "; ".join(tried or ["nothing: the path has no module"]))


def _places(path: str) -> list[tuple[str, str]]:
    """Modules and names in them that ``path`` may mean, likeliest first."""
    left, colon, right = path.rpartition(":")
    if colon and left.endswith(".py"):
        # The folder joins the search path, so that processes of other ranks find the module too.
        sys.path.insert(0, str(Path(left).resolve().parent))
        return [(Path(left).stem, right)]
    if colon:
        return [(left, right)]
    parts = path.split(".")
    places = [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    if len(parts) == 1:
        from trainkit import catalogue

        places = [(e.path.rpartition(".")[0], e.name) for e in catalogue.entries() if e.name.lower() == path.lower()]
    return places


def _init(given: list[str]) -> dict[str, Any]:
    """Constructor arguments from the command line."""
    init: dict[str, Any] = {}
    for text in given:
        if text.lstrip().startswith("{"):
            init.update(json.loads(text))
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--init must be NAME=VALUE or a JSON object, got {text!r}")
        try:
            init[name] = json.loads(value)
        except json.JSONDecodeError:
            init[name] = value
    return init


def run(namespace: argparse.Namespace) -> int:
    """Check the class and print what came of it; 1 for a fault, 2 if it can't be checked."""
    from trainkit.testing import FAMILIES, Pool, cases_of, conform, properties_for, spec_for

    try:
        if namespace.family is not None and namespace.family not in FAMILIES:
            raise ValueError(f"--family must be one of {', '.join(FAMILIES)}, got {namespace.family!r}")
        cls = load(namespace.cls)
        spec = spec_for(cls, namespace.kind, _init(namespace.init), namespace.family)
    except ValueError as error:
        print(f"trainkit check: {error}", file=sys.stderr)
        return 2
    properties = [p for p in properties_for(spec) if not namespace.only or p.id in namespace.only]
    if not properties:
        known = ", ".join(p.id for p in properties_for(spec))
        print(f"trainkit check: --only must name some of {known}, got {', '.join(namespace.only)}", file=sys.stderr)
        return 2
    _quiet()
    started = time.monotonic()
    outcomes: list[Outcome] = []
    with Pool(2) as pool:
        for case in cases_of(spec):
            print(f"{case.label}, inputs of kind {spec.kind}" if spec.kind else case.label)
            for outcome in conform(properties, [case], pool, full=not namespace.quick):
                outcomes.append(outcome)
                print(f"  {outcome.property.id:<4}{outcome.property.title:<38}{_word(outcome)}", flush=True)
    _report(outcomes, time.monotonic() - started)
    return int(any(o.status == "fault" for o in outcomes))


def _quiet() -> None:
    """One thread: many tiny calls are slower on several, and reductions come out the same on every machine."""
    import torch

    torch.set_num_threads(1)


def _word(outcome: "Outcome") -> str:
    word = SIGNS[outcome.status]
    return f"{word} {outcome.reason}" if outcome.reason else word


def _report(outcomes: list["Outcome"], seconds: float) -> None:
    """Each fault once, with the other configurations that show it, and the sum."""
    shown: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.fault is not None and outcome.status == "fault":
            shown.setdefault((outcome.property.id, outcome.fault.what), []).append(outcome)
    for same in shown.values():
        first = same[0]
        print(f"\n{first.property.id} {first.property.title}: {first.case}")
        print(f"  {first.property.statement}")
        print("  " + str(first.fault).replace("\n", "\n  "))
        if len(same) > 1:
            print("    also: " + ", ".join(o.case for o in same[1:]))
    count = Counter(o.status for o in outcomes)
    faults = f"{count['fault']} {'fault' if count['fault'] == 1 else 'faults'}"
    print(f"\n{count['holds']} hold, {faults}, {count['does not apply']} do not apply ({seconds:.1f} s)")
