"""Golden records: JSON files of reference values, and the calls that must give them."""

import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden import bindings
from trainkit.testing import Golden, as_tensor

Record = Mapping[str, Any]
FOLDER = Path(__file__).parent


@cache
def names() -> dict[str, Callable[[Record], Mapping[str, Any]]]:
    """The call for each record name, from the modules in ``bindings``."""
    found: dict[str, Callable[[Record], Mapping[str, Any]]] = {}
    for module in pkgutil.iter_modules(bindings.__path__):
        own = importlib.import_module(f"{bindings.__name__}.{module.name}").NAMES
        twice = found.keys() & own.keys()
        if twice:
            raise ValueError(f"golden names bound twice: {', '.join(sorted(twice))}")
        found.update(own)
    return found


def read(path: Path) -> list[Record]:
    records = json.loads(path.read_text())
    if not isinstance(records, list):
        raise ValueError(f"{path}: a golden file must hold a list of records, got {type(records).__name__}")
    return records


def flat(value: Any) -> list[float]:
    """The numbers in lists of any shape, in order."""
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def numbered(values: list[Any]) -> dict[str, float]:
    """The numbers of a list by their place, without those that are missing: None or nan."""
    return {str(place): value for place, value in enumerate(values) if value is not None and not math.isnan(value)}


def regular(value: Any) -> Any:
    """A value as it is, or its numbers: in order where lists of different lengths stand beside each other, by their
    place where some are missing."""
    if not isinstance(value, list):
        return value
    if None in value:
        return numbered(value)
    try:
        as_tensor(value)
    except (TypeError, ValueError):
        return flat(value)
    return value


def bound(record: Record) -> Golden:
    """A record with its call; KeyError if the name has none."""
    run = names()[record["name"]]
    expected = {k: v if k == "grad" else regular(v) for k, v in record["expected"].items() if not isinstance(v, str)}
    # Gradients from central differences are good to six digits.
    differences = "differences" in record.get("note", "")
    label = f"{record['name']} [{record.get('id')}, {record.get('n')}]"
    return Golden(label, expected, lambda: run(record), grad_rtol=1e-6 if differences else 1e-7)


def golden(*wanted: str) -> tuple[Golden, ...]:
    """All records of these names in the files of this folder."""
    found = [r for path in sorted(FOLDER.glob("*.json")) for r in read(path) if r["name"] in wanted]
    missing = set(wanted) - {r["name"] for r in found}
    if missing:
        raise ValueError(f"no golden record named {', '.join(sorted(missing))}")
    return tuple(bound(r) for r in found)
