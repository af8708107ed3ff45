"""Measure time and memory beside the peers: ``python -m tests.benchmarks --suite contrastive,ddp --quick``.

Prints one line per case, progress on standard error, and exits with 1 if a case misses a target.
"""

import argparse
import json
import os
import pkgutil
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.measure import Case, Result, measure

ROUNDS, QUICK_ROUNDS = 9, 5
HERE = Path(__file__).parent


def suites(names: Sequence[str] = ()) -> dict[str, list[Case]]:
    """Cases of the named modules of this folder; of all that have ``cases()`` when none is named."""
    files = [m.name for m in pkgutil.iter_modules([str(HERE)]) if m.name != "__main__"]
    modules = {name: import_module(f"tests.benchmarks.{name}") for name in names or files if name in files}
    found = {name: module.cases() for name, module in modules.items() if hasattr(module, "cases")}
    if unknown := set(names) - set(found):
        raise SystemExit(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites())}")
    return found


def columns(result: Result) -> list[str]:
    """The texts of a line: case, peer, time, memory, state, share of the matrix products' limit, target, verdict."""
    case, ratio, missing = result.case, result.ratio, "-"
    time = f"{ratio.median:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]" if ratio else missing
    extra = f"{result.megabytes['ours']:.1f} MB" if "ours" in result.megabytes else ""
    memory = f"{result.memory:.3g} ({extra})" if result.memory is not None else extra or missing
    share = f"{result.share:.0%}" if result.share is not None else missing
    if result.error is not None:
        time = f"error {result.error:.1e}"
    state = f"{result.state['ours']} B" if "ours" in result.state else missing
    if "theirs" in result.state:
        state += f" (peer {result.state['theirs']} B)"
    target = " ".join(text for text, _ in result.verdicts()) or missing
    verdict = "PASS" if result.passed else "FAIL"
    missed = ", ".join(text for text, met in result.verdicts() if not met)
    why = result.problem or missed
    return [case.name, case.peer, time, memory, state, share, target, f"{verdict}: {why}" if why else verdict]


HEADER = ["case", "peer", "time ratio [95% CI]", "memory ratio", "state", "% of GEMM", "target", "PASS/FAIL"]


def widths(cases: Sequence[Case]) -> list[int]:
    """Of all columns but the last; the measured ones have to be guessed, as lines appear one by one."""
    empty = [columns(Result(case)) for case in cases]
    state = 22 if any(case.state is not None for case in cases) else 0
    least = [0, 0, 26, 19, state, 9, 0]
    return [max(low, *(len(row[i]) for row in [HEADER, *empty])) for i, low in enumerate(least)]


def line(texts: Sequence[str], wide: Sequence[int]) -> str:
    return "  ".join([*(text.ljust(w) for text, w in zip(texts, wide, strict=False)), texts[-1]])


def record(result: Result) -> dict[str, Any]:
    kept = asdict(result)
    kept["case"] = {k: v for k, v in kept["case"].items() if k not in ("ours", "theirs", "equal", "long")}
    kept["ratio"] = result.ratio._asdict() if result.ratio else None
    return kept | {"targets": dict(result.verdicts()), "passed": result.passed}


def write_json(file: Path, results: Sequence[Result], rounds: int) -> None:
    about = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    about |= {"cores": os.cpu_count(), "rounds": rounds}
    file.write_text(json.dumps(about | {"results": [record(r) for r in results]}, indent=1) + "\n", encoding="utf-8")


def run(cases: Sequence[Case], rounds: int) -> list[Result]:
    """Measure the cases and print their lines as they come."""
    wide = widths(cases)
    print(line(HEADER, wide), flush=True)
    results = []
    for number, case in enumerate(cases, 1):
        print(f"{number}/{len(cases)} {case.name}, {case.peer} ...", file=sys.stderr, flush=True)
        results.append(measure(case, rounds))
        print(line(columns(results[-1]), wide), flush=True)
    return results


def chosen(names: Sequence[str], only: str, quick: bool) -> list[Case]:
    cases = [case for cases in suites(names).values() for case in cases if not (quick and case.long)]
    wanted = [case for case in cases if only.lower() in f"{case.name} {case.peer}".lower()]
    if not wanted:
        raise SystemExit(f"no case is left of {len(cases)} by --only {only!r}")
    return wanted


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--suite", default="", help="comma-separated names; all when left out")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, without the long cases")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name or peer contains the text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and target to the file")
    parser.add_argument("--list", action="store_true", help="print suites and cases, and measure nothing")
    given = parser.parse_args(args)
    if given.list:
        for name, cases in suites().items():
            print("\n".join(f"{name}: {case.name}, {case.peer}" for case in cases))
        return 0
    rounds = QUICK_ROUNDS if given.quick else ROUNDS
    results = run(chosen([n for n in given.suite.split(",") if n], given.only, given.quick), rounds)
    if given.json:
        write_json(given.json, results, rounds)
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} of {len(results)} cases met their targets")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
