"""Time and memory of a step beside a peer's, each measurement in fresh processes of its own.

Time is CPU time with one thread, which other programs on the machine disturb far less than they do wall time; ours and
the peer alternate in random order, and the figure is the median of the ratios of the rounds with a bootstrap interval.
Memory is the extra peak of one step over what the process held before. With several ranks, both are the largest of the
ranks. A suite is a module of this folder whose ``cases()`` returns a list of :class:`Case`.
"""

import gc
import importlib
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from trainkit.testing import Pool

ROOT = Path(__file__).resolve().parents[2]
LEAST_SECONDS = 0.05
"""A timing repeats its step until it has taken this long; the steps of several ranks meet, so they run once."""
LIMIT_BYTES = 15 << 30
RANK_SECONDS = 900.0
STRIP = 256
"""Rows of the score matrix that the measured matrix products take at a time."""
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
# Else the heap keeps buffers that were freed, and the step that takes them again seems to need no memory.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "131072"}


class MeasurementError(RuntimeError):
    """A measurement that came to no result."""


@dataclass(frozen=True)
class Step:
    """A step that another process can build.

    Attributes:
        path: ``module:function`` of a function that returns the step, a call without arguments.
        arguments: Keyword arguments of the function, as JSON holds them.
        tiny: Those that differ in the small step that loads libraries before memory is measured; where empty, the
            step itself does that.
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tiny: Mapping[str, Any] = field(default_factory=dict)

    def build(self, **changes: Any) -> Callable[[], Any]:
        module, _, function = self.path.partition(":")
        return getattr(importlib.import_module(module), function)(**{**self.arguments, **changes})


@dataclass(frozen=True)
class Products:
    """The matrix products that a step cannot do without, which bound its time from below.

    Attributes:
        rows: Rows of the score matrix.
        columns: Columns of the score matrix.
        features: Width of the embeddings.
        passes: Number of products, each of ``2 * rows * columns * features`` floating-point operations.
        share: The part of the step's time that these products must explain; None if it is only shown.
        dtype: Of the operands.
    """

    rows: int
    columns: int
    features: int
    passes: int
    share: float | None = None
    dtype: str = "float32"

    @property
    def strips(self) -> float:
        """Products of a strip of rows that all passes consist of."""
        return self.passes * self.rows / min(self.rows, STRIP)


@dataclass(frozen=True)
class Case:
    """A line of the table; a target that is None is not held.

    Attributes:
        name: What is measured.
        ours: Our step. Where ``error`` is given, it returns that error, and neither time nor memory is taken.
        peer: Label of the other side.
        theirs: The peer's step, where there is one that this machine can run.
        time: Largest ratio of our time to the peer's.
        memory: Largest ratio of our extra memory to the peer's.
        megabytes: Largest extra memory of our step.
        error: Largest error.
        products: What bounds the time from below.
        ranks: Processes that run the step together.
        long: Whether a quick run leaves the case out.
        equal: Whether both sides return the same value, so that a test may hold them to it.
        agree: Largest difference of the values of both sides; where they are further apart nothing is timed.
        state: Largest number of bytes that our metric keeps; the steps then have a method ``state_bytes``.
    """

    name: str
    ours: Step
    peer: str = "-"
    theirs: Step | None = None
    time: float | None = None
    memory: float | None = None
    megabytes: float | None = None
    error: float | None = None
    products: Products | None = None
    ranks: int = 1
    long: bool = False
    equal: bool = True
    agree: float | None = None
    state: int | None = None


class Estimate(NamedTuple):
    """A median and its bootstrap interval."""

    median: float
    low: float
    high: float


@dataclass
class Result:
    """What was measured of a case; ``problem`` says why something is missing."""

    case: Case
    ratio: Estimate | None = None
    memory: float | None = None
    share: float | None = None
    error: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    state: dict[str, int] = field(default_factory=dict)
    problem: str = ""

    def verdicts(self) -> list[tuple[str, bool]]:
        """Each target and whether it is met; what was not measured does not meet its target."""
        case, products = self.case, self.case.products
        high = self.ratio.high if self.ratio else None
        held = [
            ("time", case.time, high),
            ("memory", case.memory, self.memory),
            ("MB", case.megabytes, self.megabytes.get("ours")),
            ("error", case.error, self.error),
            ("state", case.state, self.state.get("ours")),
        ]
        out = [(f"{name}<={most:g}", got is not None and got <= most) for name, most, got in held if most is not None]
        if products is not None and products.share is not None:
            out.append((f"GEMM>={products.share:.0%}", self.share is not None and self.share >= products.share))
        return out

    @property
    def passed(self) -> bool:
        return not self.problem and all(met for _, met in self.verdicts())


def estimate(ratios: Sequence[float], seed: int = 0, resamples: int = 2000) -> Estimate:
    """Median of the ratios and the 95 % bootstrap interval of the median."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples))
    edge = round(0.025 * resamples)
    return Estimate(statistics.median(ratios), medians[edge], medians[-1 - edge])


def timed(step: Callable[[], Any], least: float, clock: Callable[[], float]) -> float:
    """Seconds of one call, from as many calls as last ``least`` seconds."""
    start, calls = clock(), 0
    while True:
        step()
        calls += 1
        spent = clock() - start
        if spent >= least:
            return spent / calls


def alternate(
    steps: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    seed: int = 0,
    least: float = LEAST_SECONDS,
    ready: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each step in each round, after one warm-up of each."""
    draw = random.Random(seed)
    for step in steps.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name in draw.sample(list(steps), len(steps)):
            ready()
            seconds[name].append(timed(steps[name], least, clock))
    return seconds


def gemm(rows: int, columns: int, features: int, dtype: str) -> dict[str, Callable[[], Any]]:
    """The three products of a contrastive step for 256 rows of scores, each alone, into buffers that exist."""
    made = {"dtype": getattr(torch, dtype)}
    query, key = torch.randn(min(rows, STRIP), features, **made), torch.randn(columns, features, **made)
    scores, of_query, of_key = query @ key.T, torch.empty_like(query), torch.empty_like(key)
    return {
        "gemm scores": lambda: torch.mm(query, key.T, out=scores),
        "gemm query": lambda: torch.mm(scores, key, out=of_query),
        "gemm key": lambda: torch.mm(scores.T, query, out=of_key),
    }


def peak_reset() -> bool:
    """Forget the peak of this process's memory, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def usage_bytes() -> int:
    """Peak of the process since its start, which may be the peak of a larger parent: a lower bound of what follows."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def extra_megabytes(call: Callable[[], Any]) -> float:
    """How far the memory of this process rises above what it holds now while ``call`` runs."""
    gc.collect()
    exact = peak_reset()
    before = status_bytes("VmRSS") if exact else usage_bytes()
    call()
    return ((status_bytes("VmHWM") if exact else usage_bytes()) - before) / 2**20


def prepare() -> None:
    """One thread, and an allocation error instead of a machine that swaps."""
    torch.set_num_threads(1)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def hold_to(agree: float, calls: Mapping[str, Callable[[], Any]]) -> None:
    """Raise where the values of the steps are further apart than ``agree``."""
    values = {name: float(call()) for name, call in calls.items()}
    apart = max(values.values()) - min(values.values())
    if not apart <= agree:
        told = ", ".join(f"{name} {value:.9g}" for name, value in values.items())
        raise MeasurementError(f"values are {apart:.1e} apart, above {agree:g}: {told}")


def rank_seconds(
    steps: Mapping[str, Mapping[str, Any]], products: Mapping[str, Any] | None, rounds: int, agree: float | None = None
) -> dict[str, list[float]]:
    """Seconds on this rank, by round, of the steps and of the matrix products."""
    prepare()
    calls = {name: Step(**step).build() for name, step in steps.items()}
    if agree is not None:
        hold_to(agree, calls)
    if products:
        calls |= gemm(*(products[key] for key in ("rows", "columns", "features", "dtype")))
    return alternate(calls, rounds, least=0.0 if dist.is_initialized() else LEAST_SECONDS, ready=meet)


def rank_megabytes(step: Mapping[str, Any]) -> float:
    prepare()
    wanted = Step(**step)
    call = wanted.build()
    (wanted.build(**wanted.tiny) if wanted.tiny else call)()
    meet()
    return extra_megabytes(call)


def rank_error(step: Mapping[str, Any]) -> float:
    prepare()
    return float(Step(**step).build()())


def rank_state(step: Mapping[str, Any]) -> int:
    prepare()
    call = Step(**step).build()
    call()
    return int(getattr(call, "state_bytes")())  # noqa: B009 - a step is any call, and only some keep a state


TASKS: dict[str, Callable[..., Any]] = {
    "time": rank_seconds,
    "memory": rank_megabytes,
    "error": rank_error,
    "state": rank_state,
}


def serve() -> None:
    """Do the task that standard input describes, and print the answers of its ranks."""
    request = json.load(sys.stdin)
    task, ranks, arguments = TASKS[request["task"]], request["ranks"], request["arguments"]
    if ranks == 1:
        answers = [task(*arguments)]
    else:
        with Pool(ranks, seconds=RANK_SECONDS) as pool:
            answers = pool.run(task, [tuple(arguments)] * ranks)
    print("\n" + json.dumps(answers))


def fresh(task: str, ranks: int, *arguments: Any) -> list[Any]:
    """Answers of the ranks to a task, from processes that did nothing before."""
    done = subprocess.run(
        [sys.executable, "-c", "from tests.benchmarks.measure import serve; serve()"],
        input=json.dumps({"task": task, "ranks": ranks, "arguments": arguments}),
        env=os.environ | THREADS | (RETURN_MEMORY if task == "memory" else {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"the process ended with status {done.returncode}"]
        raise MeasurementError(f"{task}: {said[-1][:200]}")
    return json.loads(done.stdout.splitlines()[-1])


def combined(answers: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """By step and round, the seconds of the rank that took longest."""
    return {name: [max(taken) for taken in zip(*(a[name] for a in answers), strict=True)] for name in answers[0]}


def take_time(case: Case, result: Result, rounds: int) -> None:
    steps = {"ours": asdict(case.ours)} | ({"theirs": asdict(case.theirs)} if case.theirs else {})
    products = asdict(case.products) if case.products else None
    answers = fresh("time", case.ranks, steps, products, rounds, case.agree)
    seconds = combined(answers)
    middle = {name: statistics.median(taken) for name, taken in seconds.items()}
    result.seconds = {name: middle[name] for name in steps}
    if case.theirs:
        result.ratio = estimate([a / b for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)])
    if case.products:
        # The fastest of the three is the limit: what the others lose to their shapes is not to our credit.
        fastest = min(taken for name, taken in middle.items() if name not in steps)
        result.share = case.products.strips * fastest / middle["ours"]


def take_memory(case: Case, result: Result) -> None:
    for name, step in {"ours": case.ours, "theirs": case.theirs}.items():
        if step is not None:
            result.megabytes[name] = max(fresh("memory", case.ranks, asdict(step)))
    if case.theirs:
        result.memory = result.megabytes["ours"] / max(result.megabytes["theirs"], math.ulp(1.0))


def take_state(case: Case, result: Result) -> None:
    for name, step in {"ours": case.ours, "theirs": case.theirs}.items():
        if step is not None:
            result.state[name] = max(fresh("state", case.ranks, asdict(step)))


def measure(case: Case, rounds: int) -> Result:
    """Everything that the case holds a target for, and what comes with it."""
    result = Result(case)
    try:
        if case.error is not None:
            result.error = max(fresh("error", case.ranks, asdict(case.ours)))
            return result
        if case.theirs or case.products:
            take_time(case, result, rounds)
        take_memory(case, result)
        if case.state is not None:
            take_state(case, result)
    except MeasurementError as problem:
        result.problem = str(problem)
    return result
