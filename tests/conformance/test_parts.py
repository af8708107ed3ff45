"""Every part in every configuration is held to every property of its family."""

import pytest

from tests.pace import quiet_seconds, yardstick
from tests.specs import all_specs
from trainkit.testing import cases_of, properties_for, run_property


def parameters():
    for spec in all_specs():
        family = spec.cls.__module__.split(".")[1]
        for case in cases_of(spec):
            for rule in properties_for(spec):
                marks = [pytest.mark.full] if rule.dear and case.index else []
                if rule.ranks:
                    marks.append(pytest.mark.xdist_group("ranks"))
                name = f"{spec.cls.__name__}-{case.index}-{rule.id}"
                yield pytest.param(family, case, rule, id=name, marks=marks)


@pytest.mark.parametrize(("family", "case", "rule"), list(parameters()))
def test_property(family, case, rule, warm, request, record_property):
    pool = request.getfixturevalue("pool") if rule.ranks else None
    before = [yardstick()] if rule.dear else []
    outcome = run_property(rule, case, pool)
    seconds = quiet_seconds(outcome.seconds, before)
    record_property("outcome", (case.label, rule.id, outcome.status, outcome.reason, seconds))
    if pool is not None and outcome.status != "does not apply":
        record_property("ranks", pool.process_ids)
    if outcome.status == "fault":
        pytest.fail(f"{case.label}, {rule.id} {rule.title}: {rule.statement}\n{outcome.fault}", pytrace=False)
