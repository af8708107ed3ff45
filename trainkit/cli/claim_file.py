"""Claims as their YAML files tell them."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.cli import configs

__all__ = ["Arm", "Claim", "ClaimError", "Tune", "find", "read", "shipped"]

DIRECTIONS = ("up", "down", "equal")
RUN_KEYS = ("configs", "options", "function", "arguments")
KEYS = ("claim", "run", "arms", "claimed", "seeds", "tune", "metrics", "decides", "tolerance")
TUNE_KEYS = ("parameter", "values", "seed", "metric", "direction")


class ClaimError(Exception):
    """A claim that can't be read or carried out; the text says why."""


@dataclass(frozen=True)
class Arm:
    """How the runs of one arm are made.

    Args:
        configs: Configs for ``trainkit fit``, one over the other.
        options: Words of its command line after them.
        function: ``package.module:function`` in place of ``fit``; called with ``seed`` and the arguments, it gives a
            mapping of numbers.
        arguments: Its arguments.
    """

    configs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    function: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def with_value(self, parameter: str, value: Any) -> "Arm":
        """The arm with one more option, or argument of its function."""
        if self.function:
            return Arm(function=self.function, arguments={**self.arguments, parameter: value})
        return Arm(self.configs, (*self.options, f"{parameter}={value}"))


@dataclass(frozen=True)
class Tune:
    """A parameter whose value each arm chooses on validation, with one seed, before its runs.

    Args:
        parameter: Option of ``fit``, or argument of the function.
        values: What is tried.
        seed: Of the runs that try them.
        metric: What is compared.
        direction: ``"up"`` if more of it is better, else ``"down"``.
    """

    parameter: str
    values: tuple[Any, ...]
    seed: int
    metric: str
    direction: str


@dataclass(frozen=True)
class Claim:
    """A sentence, the runs that test it, and what would show it.

    Args:
        name: Name of the file.
        path: The file.
        sentence: What is claimed.
        arms: Arms by name.
        claimed: The arm of which it is claimed; it is compared with each of the others.
        seeds: Seeds of the runs of every arm.
        metrics: Direction in which the claimed arm is said to differ, by metric.
        decides: Metrics that all have to say so.
        tune: What is chosen first, if anything.
        tolerance: Largest difference of metrics that are said to be equal.
    """

    name: str
    path: Path
    sentence: str
    arms: Mapping[str, Arm]
    claimed: str
    seeds: tuple[int, ...]
    metrics: Mapping[str, str]
    decides: tuple[str, ...]
    tune: Tune | None
    tolerance: float | None

    @property
    def rivals(self) -> list[str]:
        """The arms that the claimed one is compared with."""
        return [name for name in self.arms if name != self.claimed]


def shipped() -> dict[str, Path]:
    """The claims that ship with trainkit, by name."""
    return {path.stem: path for path in sorted((configs.folder() / "claims").glob("*.yaml"))}


def find(name: str) -> Path:
    """The shipped claim of that name, or else the file of that path.

    Raises:
        ClaimError: If there is neither; names what is close.
    """
    known = shipped()
    if name in known:
        return known[name]
    if name.endswith(".yaml") and Path(name).is_file():
        return Path(name)
    close = [n for n in known if name in n] or difflib.get_close_matches(name, known, n=4, cutoff=0.4)
    hint = f"did you mean {', '.join(close)}?" if close else f"the shipped ones are {', '.join(known)}"
    raise ClaimError(f"there is no claim {name!r}, neither a shipped one nor a .yaml file; {hint}")


def read(path: Path) -> Claim:
    """The claim in a file.

    Raises:
        ClaimError: For what is missing, wrong or unknown; names key and file.
    """
    import yaml

    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ClaimError(f"{path}: is no YAML: {error}") from error
    reader = _Reader(path)
    reader.keys("", told, KEYS, ("claim", "run", "arms", "claimed", "seeds", "metrics", "decides"))
    arms = {str(name): reader.arm(str(name), told["run"], own) for name, own in reader.mapping("arms", told).items()}
    metrics = {str(name): direction for name, direction in reader.mapping("metrics", told).items()}
    for name, direction in metrics.items():
        reader.choice(f"metrics.{name}", direction, DIRECTIONS)
    decides = told["decides"] if isinstance(told["decides"], list) else [told["decides"]]
    reader.require("decides", bool(decides), "name one metric or more", decides)
    for name in decides:
        reader.choice("decides", name, metrics)
    reader.require("arms", len(arms) > 1, "be two or more", list(arms))
    reader.choice("claimed", told["claimed"], arms)
    seeds = reader.numbers("seeds", told["seeds"])
    least = 1 if all(metrics[name] == "equal" for name in decides) else 2
    reader.require("seeds", len(set(seeds)) == len(seeds) >= least, f"be {least} or more, all different", seeds)
    tolerance = told.get("tolerance")
    right = isinstance(tolerance, int | float) == ("equal" in metrics.values())
    reader.require("tolerance", right, "be a number where metrics are equal, and nowhere else", tolerance)
    tune = reader.tune(told["tune"], arms.values()) if "tune" in told else None
    sentence, claimed = " ".join(str(told["claim"]).split()), str(told["claimed"])
    return Claim(path.stem, path, sentence, arms, claimed, seeds, metrics, tuple(decides), tune, tolerance)


class _Reader:
    """Checks of parts of a file, whose faults name it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def require(self, key: str, holds: bool, rule: str, got: Any) -> None:
        if not holds:
            raise ClaimError(f"{self.path}: {key} must {rule}, got {got!r}")

    def choice(self, key: str, value: Any, known: Iterable[str]) -> None:
        self.require(key, value in [*known], f"be one of {', '.join(known)}", value)

    def keys(self, key: str, told: Any, known: Iterable[str], needed: Iterable[str]) -> None:
        place = key or "the file"
        self.require(place, isinstance(told, dict), "be a mapping", told)
        for name in told:
            self.require(f"{key}.{name}".lstrip("."), name in known, f"be one of {', '.join(known)}", name)
        for name in needed:
            self.require(place, name in told, f"have the key {name}", list(told))

    def mapping(self, key: str, told: Mapping[str, Any]) -> dict[Any, Any]:
        value = told[key]
        self.require(key, isinstance(value, dict) and bool(value), "be a mapping with entries", value)
        return dict(value)

    def numbers(self, key: str, value: Any) -> tuple[int, ...]:
        whole = isinstance(value, list) and all(isinstance(n, int) and n >= 0 for n in value)
        self.require(key, whole, "be a list of whole numbers from 0", value)
        return tuple(value)

    def arm(self, name: str, common: Any, own: Any) -> Arm:
        """What all arms share, with what one has of its own."""
        own = {} if own is None else own
        for key, told in (("run", common), (f"arms.{name}", own)):
            self.keys(key, told, RUN_KEYS, ())
            for kind, allowed in (("configs", list), ("options", list), ("function", str), ("arguments", dict)):
                value = told.get(kind, allowed())
                self.require(f"{key}.{kind}", isinstance(value, allowed), f"be a {allowed.__name__}", value)
        stacked, words = ([*common.get(key, []), *own.get(key, [])] for key in ("configs", "options"))
        function = own.get("function", common.get("function", ""))
        arguments = {**common.get("arguments", {}), **own.get("arguments", {})}
        fits, calls = bool(stacked), bool(function)
        self.require(f"arms.{name}", fits != calls, "have either configs or a function", {**common, **own})
        fitting = not (arguments if fits else words)
        self.require(f"arms.{name}", fitting, "have options to configs, arguments to a function", own)
        self.require(f"arms.{name}.function", fits or ":" in function, "be package.module:function", function)
        return Arm(tuple(map(str, stacked)), tuple(map(str, words)), function, arguments)

    def tune(self, told: Any, arms: Iterable[Arm]) -> Tune:
        self.keys("tune", told, TUNE_KEYS, TUNE_KEYS)
        self.choice("tune.direction", told["direction"], ("up", "down"))
        values = told["values"]
        self.require("tune.values", isinstance(values, list) and len(values) > 1, "be a list of two or more", values)
        (seed,) = self.numbers("tune.seed", [told["seed"]])
        dashed = all(str(told["parameter"]).startswith("--") != bool(arm.function) for arm in arms)
        self.require("tune.parameter", dashed, "start with -- for configs, and not for a function", told["parameter"])
        return Tune(str(told["parameter"]), tuple(values), seed, str(told["metric"]), told["direction"])
