"""Logged values of a run over its steps, in bounded memory, and the curves they make."""

import copy
import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainkit._core.figures import Axes, Figure, Line, Mark, Points, numbers

__all__ = ["LEARNING_RATE", "History", "Series", "curves"]

CAPACITY = 1000
"""Points of a series; half of them stay when there are more."""
DRAWN = 400
LEARNING_RATE = "learning rate"
STAGES = ("train", "validate", "test")
AFFIX = r"train|training|val|valid|validation|test"


@dataclass
class Series:
    """Values of one name from one stage.

    Args:
        stage: Where they were logged: train, validate, test, or learning rate.
        name: Their name.
        steps: Optimizer steps taken before each, in ascending order.
        epochs: Epoch of each.
        values: The values.
        bad: Number of values that were no finite numbers.
        first_bad: Step of the first of these.
    """

    stage: str
    name: str
    steps: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    bad: int = 0
    first_bad: int = 0

    def add(self, step: int, epoch: int, value: float) -> None:
        """Append a value; another one of the same step takes its place, and what came after the step is forgotten."""
        if self.steps and self.steps[-1] > step:
            self.cut(step)
        if self.steps and self.steps[-1] == step:
            self.values[-1] = value
            return
        if not math.isfinite(value):
            self.first_bad = self.first_bad if self.bad else step
            self.bad += 1
        self.steps.append(step)
        self.epochs.append(epoch)
        self.values.append(value)
        if len(self.values) > CAPACITY:
            self._keep(kept(self.steps, self.values, CAPACITY // 2))

    def cut(self, step: int) -> None:
        """Forget what came after the step."""
        self._keep(range(bisect_right(self.steps, step)))
        if self.first_bad > step:
            self.bad = self.first_bad = 0

    def _keep(self, indices: Sequence[int]) -> None:
        self.steps = [self.steps[i] for i in indices]
        self.epochs = [self.epochs[i] for i in indices]
        self.values = [self.values[i] for i in indices]

    def extremes(self) -> tuple[int, int] | None:
        """Indices of the lowest and the highest value, the first of equal ones; None without a finite one."""
        finite = [i for i, value in enumerate(self.values) if math.isfinite(value)]
        if not finite:
            return None
        return min(finite, key=self.values.__getitem__), max(finite, key=self.values.__getitem__)

    def drawn(self) -> tuple[list[int], list[float]]:
        """Steps and values for a curve, without points that the eye would not miss."""
        indices = kept(self.steps, self.values, DRAWN)
        return [self.steps[i] for i in indices], [self.values[i] for i in indices]


def kept(steps: Sequence[int], values: Sequence[float], at_most: int) -> Sequence[int]:
    """Indices of the first and the last point, and of the lowest and the highest in equal stretches of steps.

    Stretches of steps, not of points: what has been thinned before is not thinned more than the rest.
    """
    if len(values) <= at_most:
        return range(len(values))
    stretches = at_most // 2 - 1
    width = max(steps[-1] - steps[0], 1) / stretches
    members: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        members.setdefault(min(int((step - steps[0]) / width), stretches - 1), []).append(i)
    chosen = {0, len(values) - 1}
    for stretch in members.values():
        finite = [i for i in stretch if math.isfinite(values[i])] or stretch[:1]
        chosen |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    return sorted(chosen)


class History:
    """All series of a run."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], Series] = {}

    def add(self, stage: str, name: str, step: int, epoch: int, value: float) -> None:
        """Append a value to the series of that stage and name."""
        self.series.setdefault((stage, name), Series(stage, name)).add(step, epoch, value)

    def cut(self, step: int) -> None:
        """Forget what came after the step."""
        for series in self.series.values():
            series.cut(step)
        self.series = {key: series for key, series in self.series.items() if series.steps}

    def state(self) -> list[dict[str, Any]]:
        """The series as plain data."""
        return [asdict(series) for series in self.series.values()]

    def load(self, state: list[dict[str, Any]]) -> None:
        """The series that :meth:`state` gave."""
        loaded = [Series(**copy.deepcopy(one)) for one in state]
        self.series = {(series.stage, series.name): series for series in loaded}

    def metrics(self) -> list[Series]:
        """What was logged, without learning rates: by stage, then by name."""
        chosen = [series for series in self.series.values() if series.stage in STAGES]
        return sorted(chosen, key=lambda series: (STAGES.index(series.stage), series.name))


def quantity(name: str) -> str:
    """What a metric measures: its name without stage, step, epoch and data loader."""
    name = re.sub(r"/dataloader_idx_\d+$", "", name)
    bare = re.sub(rf"^({AFFIX})[_/.]|[_/.]({AFFIX})$", "", re.sub(r"_(step|epoch)$", "", name))
    return bare or name


def curves(history: History) -> list[tuple[Figure, list[Series]]]:
    """Figures of what changed over the steps, with the series they show: losses first, learning rates last."""
    groups: dict[str, list[Series]] = {}
    for series in history.metrics():
        if series.stage != "test":
            groups.setdefault(quantity(series.name), []).append(series)
    for group in groups.values():
        # Single steps are noisy and lie at the back.
        group.sort(key=lambda series: not series.name.endswith("_step"))
    names = sorted(groups, key=lambda name: ("loss" not in name, name))
    drawn = [(_figure(name, groups[name]), groups[name]) for name in names]
    rates: list[Series] = []
    for series in history.series.values():
        if series.stage == LEARNING_RATE and all(series.values != other.values for other in rates):
            rates.append(series)
    return [*drawn, (_figure(LEARNING_RATE, rates), rates)] if rates else drawn


def _figure(title: str, group: list[Series]) -> Figure:
    marks: list[Mark] = []
    for series in group:
        steps, values = series.drawn()
        marks.append((Line if len(steps) > 1 else Points)(numbers(steps), numbers(values), label=series.name))
    return Figure((Axes(tuple(marks), x_label="step", legend=len(group) > 1),), title=title, width=480, height=300)
