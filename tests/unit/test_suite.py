"""The options of the suite itself."""

import pytest

from tests.conftest import families_of


@pytest.mark.parametrize(
    ("names", "families"),
    [
        (["README.md", "trainkit/__init__.py", "tests/unit/test_core.py"], set()),
        (["trainkit/losses/classification/focal.py", "recipes/embedding.py"], {"losses"}),
        (["tests/specs/losses_classification.py", "tests/specs/calibration_metrics.py"], {"losses", "calibration"}),
        (["trainkit/calibration/metrics/brier_score.py", "trainkit/_core/metric.py"], None),
        (["trainkit/distributed/queue.py"], None),
        (["trainkit/testing/kinds.py"], None),
    ],
)
def test_full_runs_take_the_families_whose_files_changed(names, families):
    assert families_of(names) == families
