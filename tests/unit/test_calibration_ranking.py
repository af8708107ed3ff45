"""Behaviours of the metrics of rankings, of accuracy without labels and of features that no property covers."""

import itertools

import pytest
import torch

from trainkit.calibration.metrics import CoverageAtRisk, coverage_at_risk, selective_risk


def close(got, expected, rtol=1e-12):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype), rtol=rtol, atol=1e-14)


def coverage(confidences, errors, risk, **options):
    """For predictions of class 1, each with its confidence and whether it is wrong."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return coverage_at_risk(p, 1 - torch.tensor(errors), risk=risk, task="binary", input_kind="probs", **options)


def test_coverage_by_hand():
    confidences, errors = [0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1]
    for risk, expected in {0.0: 0.25, 0.33: 0.25, 1 / 3: 0.75, 0.49: 0.75, 0.5: 1.0, 1.0: 1.0}.items():
        close(coverage(confidences, errors, risk), expected)
    close(coverage(confidences, [1, 0, 0, 0], 0.3), 1.0)
    close(coverage(confidences, [1, 1, 1, 0], 0.5), 0.0)
    close(coverage(confidences, [0, 0, 0, 0], 0.0), 1.0)


@pytest.mark.parametrize("risk", [0.0, 0.2, 0.25, 0.3, 0.34, 0.4, 0.45, 0.5, 0.6, 0.99])
@pytest.mark.parametrize("first", [[0, 0], [0, 1], [1, 1], []])
def test_coverage_inside_of_a_tie_is_that_of_the_mean_over_all_orders(first, risk):
    tied = [1, 0, 1, 0, 1]
    n = len(first) + len(tied)
    confidences = [0.9 - 0.01 * i for i in range(len(first))] + [0.7] * len(tied)
    means = [sum(first[:k]) / k for k in range(1, len(first) + 1)]
    means += [(sum(first) + 0.6 * k) / (len(first) + k) for k in range(1, len(tied) + 1)]
    expected = max((k / n for k, mean in enumerate(means, 1) if mean <= risk + 1e-12), default=0.0)
    for order in set(itertools.permutations(tied)):
        close(coverage(confidences, [*first, *order], risk), expected)


@pytest.mark.parametrize("errors", range(11))
def test_coverage_at_the_risk_of_all_rows_is_one(errors):
    """Rounding neither of the share nor of its product decides."""
    for n in (10, 30, 70):
        wrong = [0] * (n - errors) + [1] * errors
        confidences = [1 - k / (2 * n) for k in range(n)]
        close(coverage(confidences, wrong, errors / n), 1.0)
        assert coverage(confidences, wrong, max(0.0, errors / n - 1e-9)) <= 1.0
        assert errors == 0 or coverage(confidences, wrong, errors / n - 1e-9) < 1.0


@pytest.mark.parametrize("exact", [True, False])
def test_coverage_with_weights_equals_repetition(exact):
    g = torch.Generator().manual_seed(0)
    logits, target = torch.randn(20, 4, generator=g).double(), torch.randint(4, (20,), generator=g)
    times = torch.arange(20) % 4
    rows, labels = logits.repeat_interleave(times, 0), target.repeat_interleave(times)
    for risk in (0.3, 0.5, 0.7):
        options = {"risk": risk, "exact": exact}
        weighted = coverage_at_risk(logits, target, weight=times.double(), **options)
        close(weighted, coverage_at_risk(rows, labels, **options))
    zeros = coverage_at_risk(logits, target, weight=(times > 1).double(), risk=0.7)
    close(zeros, coverage_at_risk(logits[times > 1], target[times > 1], risk=0.7))


def test_coverage_and_risk_agree():
    g = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(200, 4, generator=g, dtype=torch.float64)
    target = logits.softmax(1).multinomial(1, generator=g)[:, 0]
    for risk in (0.1, 0.2, 0.3):
        kept = float(coverage_at_risk(logits, target, risk=risk))
        assert selective_risk(logits, target, coverage=kept) <= risk
        assert selective_risk(logits, target, coverage=min(1.0, kept + 0.005)) > risk


def test_coverage_of_nothing_and_of_one_row():
    metric = CoverageAtRisk(0.1)
    metric.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.warns(UserWarning, match="CoverageAtRisk: the value is nan"):
        assert metric.compute().isnan()
    metric.update(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([1]))
    assert metric.compute() == 0
    assert metric.figure().axes[0].title == "CoverageAtRisk 0.0000"
    assert "exact=True" in repr(metric)
