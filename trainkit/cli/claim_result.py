"""What the runs of a claim say: means, paired intervals over seeds, verdict, table, figure."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from trainkit.cli.claim_file import Claim, ClaimError, read

if TYPE_CHECKING:
    from trainkit.figures import Figure

__all__ = ["conclude", "draw", "interval", "judge", "markdown", "named_result", "quantile", "table"]

LEVEL = 0.95
Values = Mapping[str, float | None]


def quantile(freedom: int) -> float:
    """Half-width, in standard errors, of the central 95 % of Student's t."""
    low, high = 0.0, 1e3
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < LEVEL else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """Probability that Student's t lies in [-t, t]: a finite sum for whole degrees of freedom (A&S 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(freedom // 2):
        total += term
        term *= cosine**2 * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and ends of its 95 % interval; they are the mean itself if there is one value, which has no interval."""
    mean = fmean(values)
    half = quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def judge(direction: str, differences: Sequence[float], tolerance: float | None) -> str:
    """Verdict on differences of the claimed arm from another, one a seed."""
    if direction == "equal":
        return "held" if max(map(abs, differences)) <= (tolerance or 0.0) else "contradicted"
    _, low, high = interval(differences)
    if direction == "down":
        low, high = -high, -low
    return "held" if low > 0 else "contradicted" if high < 0 else "not shown"


def conclude(claim: Claim, runs: Mapping[str, Sequence[Values]]) -> dict[str, Any]:
    """Means and comparisons of the values of every arm's runs, in the order of the seeds.

    Raises:
        ClaimError: If a run lacks a metric, or has no finite number for it.
    """
    columns = {
        arm: {metric: [_number(claim, arm, seed, metric, one) for seed, one in zip(claim.seeds, told, strict=True)]
              for metric in claim.metrics}
        for arm, told in runs.items()
    }  # fmt: skip
    arms = {arm: {name: _summary(values) for name, values in told.items()} for arm, told in columns.items()}
    comparisons = [
        _compare(claim, metric, rival, columns[claim.claimed][metric], columns[rival][metric])
        for metric in claim.metrics
        for rival in claim.rivals
    ]
    deciding = {one["verdict"] for one in comparisons if one["decides"]}
    verdict = next((word for word in ("contradicted", "not shown") if word in deciding), "held")
    return {"verdict": verdict, "seeds": list(claim.seeds), "arms": arms, "comparisons": comparisons}


def _number(claim: Claim, arm: str, seed: int, metric: str, values: Values) -> float:
    if metric not in values:
        raise ClaimError(f"{claim.path}: metrics.{metric} is none of {', '.join(sorted(values))}, which {arm} gives")
    value = values[metric]
    if value is None:
        raise ClaimError(f"{claim.name}: {metric} of {arm} with seed {seed} is no finite number")
    return value


def _summary(values: list[float]) -> dict[str, Any]:
    mean, low, high = interval(values)
    return {"values": values, "mean": mean, "low": low, "high": high}


def _compare(claim: Claim, metric: str, rival: str, own: list[float], others: list[float]) -> dict[str, Any]:
    differences = [a - b for a, b in zip(own, others, strict=True)]
    mean, low, high = interval(differences)
    base = fmean(others)
    return {
        "metric": metric,
        "direction": claim.metrics[metric],
        "claimed": claim.claimed,
        "against": rival,
        "differences": differences,
        "mean": mean,
        "low": low,
        "high": high,
        "largest": max(map(abs, differences)),
        "ratio": fmean(own) / base if base else None,
        "decides": metric in claim.decides,
        "verdict": judge(claim.metrics[metric], differences, claim.tolerance),
    }


def table(result: Mapping[str, Any]) -> str:
    """Means and differences as text."""
    lines = [f"{result['name']}: {result['claim']}"]
    metrics = list(next(iter(result["arms"].values())))
    width = max(map(len, result["arms"]))
    for metric in metrics:
        lines.append(f"  {metric}")
        for arm, told in result["arms"].items():
            one = told[metric]
            lines.append(f"    {arm:<{width}}  {one['mean']:.5g} [{one['low']:.5g}, {one['high']:.5g}]")
        for one in result["comparisons"]:
            if one["metric"] == metric:
                decides = ", decides" if one["decides"] else ""
                lines.append(f"    {one['claimed']} - {one['against']}: {_measured(one)}  ({one['verdict']}{decides})")
    for arm, value in result.get("tune", {}).get("chosen", {}).items():
        lines.append(f"  {result['tune']['parameter']} of {arm}, chosen on validation: {value}")
    spent = f"{len(result['seeds'])} seeds, {result['cpu_seconds'] / 60:.1f} CPU minutes"
    lines.append(f"  {result['verdict']}; {spent}, {result['commit']}, {result['date']}")
    return "\n".join(lines)


def _measured(one: Mapping[str, Any]) -> str:
    """A difference with its interval; for what is said to be equal, the largest."""
    if one["direction"] == "equal":
        return f"at most {one['largest']:.2g} apart"
    ratio = f", ratio {one['ratio']:.3g}" if one["ratio"] is not None else ""
    return f"{one['mean']:+.4g} [{one['low']:+.4g}, {one['high']:+.4g}]{ratio}"


def named_result(claim: Path, folder: Path) -> dict[str, Any] | None:
    """The result of a claim, if there is one."""
    try:
        told: dict[str, Any] = json.loads((folder / f"{claim.stem}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return told


def markdown(claims: Iterable[Path], folder_of: Callable[[Path], Path]) -> str:
    """A table of claims with their verdicts, for the README."""
    lines = ["| Claim | Measured | Verdict |", "|---|---|---|"]
    for path in claims:
        result = named_result(path, folder_of(path))
        if result is None:
            lines.append(f"| `{path.stem}`: {read(path).sentence} | | not run yet |")
            continue
        shown = [one for one in result["comparisons"] if one["decides"]]
        measured = "<br>".join(f"{one['metric']} against {one['against']}: {_measured(one)}" for one in shown)
        seeds = f"{len(result['seeds'])} seeds, {result['commit']}, {result['date']}"
        lines.append(f"| `{path.stem}`: {result['claim']} | {measured}; {seeds} | **{result['verdict']}** |")
    return "\n".join(lines)


def draw(result: Mapping[str, Any]) -> "Figure":
    """Arms with their intervals, and below them the differences, for every metric that decides."""
    from trainkit.figures import Axes, Figure, Line, Points

    axes = []
    for metric in dict.fromkeys(one["metric"] for one in result["comparisons"] if one["decides"]):
        arms = {arm: told[metric] for arm, told in result["arms"].items()}
        differences = {
            f"{one['claimed']} - {one['against']}": one for one in result["comparisons"] if one["metric"] == metric
        }
        shown_equal = next(iter(differences.values()))["direction"] == "equal"
        for label, shown in (("mean", arms), ("paired difference", differences)):
            # Of arms that are said to be equal, only their difference can be seen.
            if shown_equal and shown is arms:
                continue
            marks: list[Any] = [
                Points(x=(i,), y=(one["mean"],), low=(one["low"],), high=(one["high"],), label=name)
                for i, (name, one) in enumerate(shown.items(), 1)
            ]
            ends = (0.5, len(shown) + 0.5)
            if shown is differences:
                marks.insert(0, Line(x=ends, y=(0, 0), dashed=True))
            axes.append(Axes(tuple(marks), x_range=ends, title=metric, y_label=label))
    title = f"{result['name']}: {result['verdict']}"
    return Figure(tuple(axes), title=title, width=560, height=60 + 230 * len(axes))
