"""Properties and the runner: what is tried, whether it applies, and what came of it."""

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from trainkit.testing.case import Case
from trainkit.testing.faults import Fault
from trainkit.testing.pool import Pool

__all__ = ["Outcome", "Property", "collect", "conform", "prop", "run_property"]

THIRD_PARTIES = r"(torch|jsonargparse)(\.|$)"
"""Modules whose warnings are about themselves; one that a part causes carries the part's own module."""

Status: TypeAlias = Literal["holds", "fault", "exempt", "does not apply"]


@dataclass(frozen=True)
class Property:
    """One thing that is true of every part it applies to.

    Args:
        id: Short name, as L7.
        title: Name in words.
        run: Raises a :class:`~trainkit.testing.Fault` if the property does not hold.
        needs: Gives the reason why the property does not apply, read from the class; None if it does.
        dear: Takes long; later configurations of a class leave it to full runs.
        ranks: Runs on several processes.
    """

    id: str
    title: str
    run: Callable[..., None]
    needs: Callable[[Any], str | None]
    dear: bool = False
    ranks: bool = False

    @property
    def statement(self) -> str:
        """What the property says."""
        return " ".join((self.run.__doc__ or "").split())


@dataclass(frozen=True)
class Outcome:
    """What came of one property for one case.

    Args:
        property: The property.
        case: Class and configuration.
        status: What came of it.
        reason: Why it does not apply or is exempt.
        fault: What did not hold.
        seconds: CPU seconds that it took.
    """

    property: Property
    case: str
    status: Status
    reason: str = ""
    fault: Fault | None = None
    seconds: float = 0.0


def _always(case: Any) -> None:
    return None


def prop(
    name: str,
    title: str,
    *,
    needs: Callable[[Any], str | None] = _always,
    dear: bool = False,
    ranks: bool = False,
) -> Callable[[Callable[..., None]], Property]:
    """Make a :class:`Property` of a function whose docstring states it."""

    def wrap(function: Callable[..., None]) -> Property:
        return Property(name, title, function, needs, dear, ranks)

    return wrap


def collect(*modules: ModuleType) -> tuple[Property, ...]:
    """The properties that stand in the modules, in the order of their numbers."""
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Property)]
    return tuple(sorted(found, key=lambda p: int(p.id[1:])))


def _attempt(rule: Property, case: Case[Any], pool: Pool | None) -> Fault | None:
    """Run once; any exception of the part is a fault too. Warnings are faults: a part that is fine warns of nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", module=THIRD_PARTIES)
            torch.manual_seed(0)
            rule.run(case, pool) if rule.ranks else rule.run(case)
    except Fault as fault:
        return fault
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.name}, line {last.lineno}"
        return Fault("the call raised", "no exception", f"{type(error).__name__}: {error} (in {place})")
    return None


def _describe(fault: Fault, case: Case[Any]) -> Fault:
    """Add to a fault the inputs that it was seen on."""
    inputs = case.drawn.inputs
    fault.inputs = fault.inputs or inputs
    fault.dtype = fault.dtype or (str(case.drawn.dtype).removeprefix("torch.") if case.drawn.dtype else None)
    fault.shapes = fault.shapes or ", ".join(
        f"{k} {tuple(v.shape)}" for k, v in inputs.items() if isinstance(v, Tensor)
    )
    return fault


def _shrink(rule: Property, case: Case[Any], fault: Fault) -> tuple[Fault, Case[Any]]:
    """Leave out rows for as long as the property still fails on those that remain, and keep the smallest input."""
    rows = max((len(v) for v in case.drawn.inputs.values() if isinstance(v, Tensor) and v.dim()), default=0)
    if rows < 2 or rows not in case.sizes:
        return fault, case
    kept = list(range(rows))
    for row in range(rows):
        fewer = [r for r in kept if r != row]
        smaller = Case(case.spec, case.index, sizes=(rows,), rows=fewer)
        found = _attempt(rule, smaller, None) if fewer else None
        if found is not None and found.what == fault.what:
            kept, fault, case = fewer, found, smaller
    return fault, case


def run_property(rule: Property, case: Case[Any], pool: Pool | None = None, *, shrink: bool = True) -> Outcome:
    """Try one property on one case.

    Args:
        rule: What to try.
        case: The part in one configuration.
        pool: Processes for the properties that need several ranks.
        shrink: Look for a smaller input when a fault is found.

    Returns:
        What came of it. An exemption of a property that holds, or does not apply, is a fault itself.
    """
    start = time.process_time()

    def outcome(status: Status, reason: str = "", fault: Fault | None = None) -> Outcome:
        return Outcome(rule, case.label, status, reason, fault, time.process_time() - start)

    exempt = case.spec.exempt.get(rule.id) or case.spec.exempt.get(f"{rule.id}@{case.index}")
    try:
        reason = rule.needs(case)
    except Exception as error:
        return outcome("fault", fault=Fault("the class could not be looked at", "no exception", repr(error)))
    if reason:
        stale = f"{rule.id} is exempt but does not apply: {reason}"
        return (
            outcome("fault", fault=Fault(stale, "no exemption", exempt))
            if exempt
            else outcome("does not apply", reason)
        )
    fault = _attempt(rule, case, pool)
    if exempt:
        if fault is None:
            return outcome("fault", fault=Fault(f"{rule.id} is exempt but holds", "no exemption", exempt))
        return outcome("exempt", exempt, fault)
    if fault is None:
        return outcome("holds")
    if shrink and not rule.ranks:
        fault, case = _shrink(rule, case, fault)
    return outcome("fault", fault=_describe(fault, case))


def conform(
    properties: Sequence[Property], cases: Sequence[Case[Any]], pool: Pool | None = None, *, full: bool = True
) -> Iterator[Outcome]:
    """Try every property on every case.

    Args:
        properties: What to try.
        cases: Parts in their configurations.
        pool: Processes for the properties that need several ranks.
        full: False leaves the dear properties out for all but the first configuration.
    """
    for case in cases:
        for rule in properties:
            if full or case.index == 0 or not rule.dear:
                yield run_property(rule, case, pool)
