"""``trainkit claim``: run what the README claims, and say what came of it."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from trainkit.cli import claim_file, claim_result, claim_runs, listing
from trainkit.cli.claim_file import Claim, ClaimError, Tune

__all__ = ["add_parser", "run"]

START = "<!-- claims:start -->"
END = "<!-- claims:end -->"
Runs: TypeAlias = dict[str, list[dict[str, Any]]]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``claim``."""
    parser = subparsers.add_parser(
        "claim",
        help="run the experiments behind the claims of the README",
        description="Run the arms of a claim, compare them over seeds, and say whether it held. Runs that have "
        "finished are kept in $TRAINKIT_CACHE and not made again unless code, config or options change.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="shipped claims, or .yaml files of your own")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="run every shipped claim")
    what.add_argument("--list", action="store_true", help="list the shipped claims with their verdicts")
    what.add_argument("--table", action="store_true", help="print the verdicts as a Markdown table")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help=f"with --table: put it into FILE, between {START} and {END}"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results lie; by default beside the claims")
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    """List, tabulate or run; 1 if a run failed, 2 for a claim that does not exist or can't be read."""
    everything = namespace.all or namespace.list or namespace.table
    try:
        if bool(namespace.names) == bool(everything):
            raise ClaimError("give names, or one of --all, --list, --table")
        if namespace.write and not namespace.table:
            raise ClaimError("--write goes with --table")
        known = claim_file.shipped()
        paths = [*known.values()] if everything else [claim_file.find(name) for name in namespace.names]
        claims = [claim_file.read(path) for path in paths]
        if not everything or namespace.all:
            _require_writable({_folder(path, namespace.out) for path in paths})
    except ClaimError as error:
        print(f"trainkit claim: {error}", file=sys.stderr)
        return 2
    if namespace.table:
        text = claim_result.markdown(paths, lambda path: _folder(path, namespace.out))
        if namespace.write:
            return listing.write_table(namespace.write, text, START, END)
        print(text)
        return 0
    if namespace.list:
        _list(claims, namespace.out)
        return 0
    return max([_carry_out(claim, _folder(claim.path, namespace.out)) for claim in claims])


def _folder(path: Path, out: Path | None) -> Path:
    return path.parent / "results" if out is None else out


def _require_writable(folders: set[Path]) -> None:
    for folder in folders:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not os.access(there, os.W_OK):
            raise ClaimError(f"results can't be written to {folder}; say where with --out FOLDER")


def _list(claims: list[Claim], out: Path | None) -> None:
    width = max(len(claim.name) for claim in claims)
    for claim in claims:
        result = claim_result.named_result(claim.path, _folder(claim.path, out))
        verdict = f"{result['verdict']}, {result['date']}" if result else "not run yet"
        print(f"{claim.name:<{width}}  {claim.sentence} ({verdict})")


def _carry_out(claim: Claim, folder: Path) -> int:
    """Make the runs that are missing, and write and print the result; 1 if one failed."""
    try:
        result = _result(claim)
    except ClaimError as error:
        print(f"trainkit claim: {claim.name}: {error}", file=sys.stderr)
        return 1
    from trainkit._core.files import write_whole
    from trainkit._core.svg import to_svg

    for suffix, text in ((".json", json.dumps(result, indent=1) + "\n"), (".svg", to_svg(claim_result.draw(result)))):
        file = folder / f"{claim.name}{suffix}"
        # A file that says so already keeps its time of change too.
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            write_whole(file, text)
    print(claim_result.table(result))
    print(f"  {folder / claim.name}.json and .svg")
    return 0


def _result(claim: Claim) -> dict[str, Any]:
    """Everything that is written of a claim: all of it comes from its runs, none from when it is asked."""
    tried = {} if claim.tune is None else _tried(claim, claim.tune)
    chosen = {} if claim.tune is None else _chosen(claim, claim.tune, tried)
    arms = {
        name: arm if claim.tune is None else arm.with_value(claim.tune.parameter, chosen[name])
        for name, arm in claim.arms.items()
    }
    runs: Runs = {name: [] for name in arms}
    jobs = [(name, arm, seed) for name, arm in arms.items() for seed in claim.seeds]
    for name, told in _made(claim.name, jobs):
        runs[name].append(told)
    said = claim_result.conclude(claim, {name: [one["values"] for one in told] for name, told in runs.items()})
    tuning = {} if claim.tune is None else {"tune": _tuning(claim.tune, tried, chosen)}
    tolerance = {} if claim.tolerance is None else {"tolerance": claim.tolerance}
    made = [one for told in (*runs.values(), *tried.values()) for one in told]
    last = max(made, key=lambda one: str(one["time"]))
    return {
        "name": claim.name,
        "claim": claim.sentence,
        **said,
        **tolerance,
        **tuning,
        "cpu_seconds": round(sum(one["cpu_seconds"] for one in made), 1),
        "versions": last["versions"],
        "commit": last["commit"],
        "date": last["time"][:10],
    }


def _tried(claim: Claim, tune: Tune) -> Runs:
    """Runs of every arm with every value, on the seed that is for choosing."""
    tried: Runs = {name: [] for name in claim.arms}
    jobs = [
        (name, arm.with_value(tune.parameter, v), tune.seed) for name, arm in claim.arms.items() for v in tune.values
    ]
    for name, told in _made(f"{claim.name}, tuning", jobs):
        tried[name].append(told)
    return tried


def _chosen(claim: Claim, tune: Tune, tried: Runs) -> dict[str, Any]:
    """The best value of every arm; the first of equals. A run without a finite number is never the best."""
    chosen = {}
    for name, told in tried.items():
        missing = next((one["values"] for one in told if tune.metric not in one["values"]), None)
        if missing is not None:
            raise ClaimError(f"{claim.path}: tune.metric {tune.metric!r} is none of {', '.join(sorted(missing))}")
        scored = [(one["values"][tune.metric], v) for one, v in zip(told, tune.values, strict=True)]
        finite = [(score if tune.direction == "up" else -score, v) for score, v in scored if score is not None]
        if not finite:
            raise ClaimError(f"{claim.name}: no value of {tune.parameter} gives {name} a finite {tune.metric}")
        chosen[name] = max(finite, key=lambda pair: pair[0])[1]
    return chosen


def _tuning(tune: Tune, tried: Runs, chosen: dict[str, Any]) -> dict[str, Any]:
    scores = {name: [one["values"][tune.metric] for one in told] for name, told in tried.items()}
    told = {"parameter": tune.parameter, "metric": tune.metric, "seed": tune.seed, "values": list(tune.values)}
    return {**told, "scores": scores, "chosen": chosen}


def _made(title: str, jobs: list[tuple[str, claim_file.Arm, int]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs in turn, those that are missing under a bar."""
    from tqdm import tqdm

    there = [claim_runs.finished(arm, seed) for _, arm, seed in jobs]
    with tqdm(total=len(jobs), initial=sum(map(bool, there)), desc=title, unit="run", disable=all(there)) as bar:
        for (name, arm, seed), told in zip(jobs, there, strict=True):
            if told is None:
                bar.set_postfix_str(f"{name}, seed {seed}")
                # Another job of this list may have been the same run.
                told = claim_runs.finished(arm, seed) or claim_runs.perform(arm, seed)
                bar.update()
            yield name, told
