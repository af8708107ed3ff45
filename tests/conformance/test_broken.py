"""The tests of the tests: each broken part fails the property that it is meant for, and nothing else."""

import importlib
import pkgutil

import pytest

from tests.conformance import broken
from trainkit.testing import FAMILIES, cases_of, properties_for, run_property

MODULES = [importlib.import_module(f"{broken.__name__}.{m.name}") for m in pkgutil.iter_modules(broken.__path__)]
BROKEN = [b for module in MODULES for b in module.BROKEN]


def faults(spec, ranks, pool=None):
    """Ids of the properties that do not hold, of those that need ranks or those that don't."""
    outcomes = [
        run_property(rule, case, pool, shrink=False)
        for case in cases_of(spec)
        for rule in properties_for(spec)
        if rule.ranks == ranks
    ]
    return {o.property.id for o in outcomes if o.status == "fault"}


def expected(item, ranks):
    rule = next(p for p in properties_for(item.spec) if p.id == item.property)
    return {item.property} if rule.ranks == ranks else set()


@pytest.mark.parametrize("item", BROKEN, ids=lambda b: f"{b.property}-{b.spec.cls.__name__}")
def test_fails_its_property_alone(item, warm):
    assert faults(item.spec, ranks=False) == expected(item, ranks=False)


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("item", BROKEN, ids=lambda b: f"{b.property}-{b.spec.cls.__name__}")
def test_fails_its_property_alone_on_ranks(item, pool):
    assert faults(item.spec, ranks=True, pool=pool) == expected(item, ranks=True)


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("spec", [m.GOOD for m in MODULES if hasattr(m, "GOOD")], ids=lambda s: s.cls.__name__)
def test_the_same_part_unbroken_fails_nothing(spec, pool, warm):
    assert faults(spec, ranks=False) | faults(spec, ranks=True, pool=pool) == set()


def test_every_property_has_a_broken_part():
    ids = {p.id for _, properties in FAMILIES.values() for p in properties}
    assert ids == {item.property for item in BROKEN}
