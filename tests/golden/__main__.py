"""Run files of golden records: ``python -m tests.golden FILE.json [FILE.json ...]``."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.golden.bind import bound, read
from trainkit.testing import Fault, as_tensor
from trainkit.testing.common import check_golden


def error(got: Any, expected: Any) -> float:
    """Largest difference, relative to the largest expected number."""
    if isinstance(expected, Mapping):
        return max((error(got[k], v) for k, v in expected.items()), default=0.0)
    a, b = as_tensor(got).double(), as_tensor(expected).double()
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))


def run(record: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a record is met, and the errors of its values."""
    try:
        golden = bound(record)
    except KeyError:
        return False, "no binding for this name"
    try:
        check_golden(golden)
        faults = ""
    except Fault as fault:
        faults = fault.what
    except Exception as problem:
        return False, f"{type(problem).__name__}: {problem}"
    got = golden.run()
    errors = [f"{k} {error(got[k], v):.1e}" for k, v in golden.expected.items() if k in got]
    return not faults, ", ".join(errors) + (f"  differs: {faults}" if faults else "")


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    failed = total = 0
    for path in parser.parse_args(args).files:
        for record in read(path):
            fine, text = run(record)
            total += 1
            failed += not fine
            print(f"{'ok  ' if fine else 'FAIL'}  {record.get('id', ''):<10} {record['name'][:70]:<70}  {text}")
    print(f"{total - failed} of {total} records met")
    return int(failed > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
