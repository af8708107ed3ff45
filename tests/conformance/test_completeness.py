"""Every public part has one record, and every record says enough."""

import importlib
from collections import Counter

import pytest

from tests.specs import all_specs
from trainkit import catalogue
from trainkit.testing import CallbackSpec

SPECS = all_specs()
MOST_EXEMPTIONS = 15


def test_every_part_has_exactly_one_record():
    recorded = Counter(spec.cls for spec in SPECS)
    for entry in catalogue.entries():
        module, _, name = entry.path.rpartition(".")
        assert recorded[getattr(importlib.import_module(module), name)] == 1, f"{entry.path} needs one spec record"


def test_exemptions_are_few_and_have_reasons():
    exemptions = [(spec.name, rule, reason) for spec in SPECS for rule, reason in spec.exempt.items()]
    assert len(exemptions) <= MOST_EXEMPTIONS
    for name, rule, reason in exemptions:
        assert len(reason) >= 20, f"{name} {rule}: the exemption needs a reason"


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.cls.__name__)
def test_record_says_enough(spec):
    assert len(spec.configs) >= 2
    # A callback has no value of its own that another implementation could give.
    assert spec.golden or spec.reference or isinstance(spec, CallbackSpec)
    assert len(spec.errors) >= 2
    assert len({str(config) for config in spec.configs}) == len(spec.configs)
