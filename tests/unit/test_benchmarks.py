"""The benchmarks' statistics, verdicts and memory measurement, and that both sides of a case compute the same value."""

import json
import math
import random

import pytest
import torch

from tests.benchmarks import __main__ as command
from tests.benchmarks import calibration, contrastive, ddp, measure, peers
from tests.benchmarks.measure import Case, Estimate, Products, Result, Step

HERE = "tests.unit.test_benchmarks"


def allocate(megabytes, earlier):
    """A step that takes memory, in a process that gave back more of it before."""
    if earlier:
        assert torch.ones(earlier << 18).sum() > 0
    return lambda: torch.ones(megabytes << 18).sum()


def constant(value):
    return lambda: value


def fail():
    raise OSError("a step that cannot be built")


def step(name, **arguments):
    return Step(f"{HERE}:{name}", arguments)


class Clock:
    """Seconds that the steps spend, and nothing else."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds, calls=None, name=""):
        def step():
            self.now += seconds
            if calls is not None:
                calls.append(name)

        return step


def test_interval_contains_the_median_and_widens_with_the_spread():
    draw = random.Random(3)
    wide = [draw.gauss(0.6, 0.1) for _ in range(9)]
    narrow = [0.6 + (x - 0.6) / 10 for x in wide]
    first, second = measure.estimate(wide), measure.estimate(narrow)
    for interval in (first, second):
        assert interval.low < interval.median < interval.high
    assert first.high - first.low == pytest.approx(10 * (second.high - second.low))
    assert measure.estimate([0.5] * 5) == (0.5, 0.5, 0.5)
    assert measure.estimate(wide) == first


def test_interval_covers_the_true_median_about_as_often_as_it_says():
    draw = random.Random(0)
    samples = [[draw.gauss(1.0, 0.2) for _ in range(9)] for _ in range(200)]
    intervals = [measure.estimate(sample, resamples=200) for sample in samples]
    assert 0.88 < sum(i.low <= 1.0 <= i.high for i in intervals) / 200 <= 1.0


def test_one_outlier_does_not_move_the_median():
    assert measure.estimate([0.6, 0.6, 0.6, 0.6, 6.0]).median == 0.6


def test_steps_alternate_in_random_order_after_a_warm_up():
    clock, calls = Clock(), []
    steps = {name: clock.spend(1.0, calls, name) for name in ("ours", "theirs")}
    seconds = measure.alternate(steps, 20, least=0.0, clock=clock)
    assert seconds == {"ours": [1.0] * 20, "theirs": [1.0] * 20}
    pairs = [tuple(calls[i : i + 2]) for i in range(0, len(calls), 2)]
    assert pairs[0] == ("ours", "theirs")
    assert set(pairs[1:]) == {("ours", "theirs"), ("theirs", "ours")}


def test_short_steps_are_repeated():
    clock, calls = Clock(), []
    assert measure.timed(clock.spend(0.25, calls), 1.0, clock) == 0.25
    assert len(calls) == 4
    assert measure.timed(clock.spend(2.0, calls), 1.0, clock) == 2.0
    assert len(calls) == 5


def test_ranks_count_as_the_slowest_of_each_round():
    assert measure.combined([{"ours": [1.0, 5.0]}, {"ours": [3.0, 2.0]}]) == {"ours": [3.0, 5.0]}


def test_ratios_and_share_come_from_the_same_rounds(monkeypatch):
    seconds = {"ours": [2.0, 4.0, 6.0], "theirs": [4.0, 8.0, 12.0], "gemm a": [0.5] * 3, "gemm b": [0.25] * 3}
    monkeypatch.setattr(measure, "fresh", lambda task, *_: [seconds] if task == "time" else [8.0])
    products = Products(rows=512, columns=512, features=4, passes=3, share=0.375)
    case = Case("case", step("constant"), "peer", step("constant"), time=0.5, memory=1.0, products=products)
    result = measure.measure(case, 3)
    assert result.ratio == (0.5, 0.5, 0.5)
    assert result.memory == 1.0
    assert result.share == pytest.approx(3 * 2 * 0.25 / 4.0)
    assert result.passed


VERDICTS = [
    ({"time": 0.6}, {"ratio": Estimate(0.5, 0.4, 0.6)}, True),
    ({"time": 0.6}, {"ratio": Estimate(0.5, 0.4, 0.61)}, False),
    ({"time": 0.6}, {}, False),
    ({"time": 0.6}, {"ratio": Estimate(float("nan"), float("nan"), float("nan"))}, False),
    ({"memory": 0.1}, {"memory": 0.1}, True),
    ({"memory": 0.1}, {"memory": 0.11}, False),
    ({"megabytes": 300}, {"megabytes": {"ours": 299.0}}, True),
    ({"megabytes": 300}, {"megabytes": {"ours": 301.0}}, False),
    ({"state": 1023}, {"state": {"ours": 1023, "theirs": 4096}}, True),
    ({"state": 1023}, {"state": {"ours": 1024}}, False),
    ({"state": 1023}, {}, False),
    ({"error": 1e-12}, {"error": 1e-15}, True),
    ({"error": 1e-12}, {"error": float("nan")}, False),
    ({"products": Products(1, 1, 1, 3, share=0.8)}, {"share": 0.8}, True),
    ({"products": Products(1, 1, 1, 3, share=0.8)}, {"share": 0.79}, False),
    ({"products": Products(1, 1, 1, 3)}, {"share": 0.1}, True),
    ({}, {}, True),
    ({}, {"problem": "out of memory"}, False),
]


@pytest.mark.parametrize(("targets", "measured", "passed"), VERDICTS)
def test_verdict(targets, measured, passed):
    result = Result(Case("case", step("constant"), **targets), **measured)
    assert result.passed is passed
    assert command.columns(result)[-1].startswith("PASS" if passed else "FAIL")


@pytest.mark.parametrize(("error", "code"), [(1e-15, 0), (1e-9, 1)])
def test_exit_code_lines_and_json(error, code, monkeypatch, tmp_path, capsys):
    cases = [Case("exact", step("constant"), error=1e-12), Case("a longer name", step("constant"), long=True)]
    monkeypatch.setattr(command, "suites", lambda names: {"suite": cases})
    monkeypatch.setattr(command, "measure", lambda case, rounds: Result(case, error=error))
    file = tmp_path / "figures.json"
    assert command.main(["--quick", "--json", str(file)]) == code
    out = capsys.readouterr()
    header, row, last = out.out.splitlines()
    assert header.index("PASS/FAIL") == row.index("FAIL" if code else "PASS")
    assert "longer" not in out.out
    assert "1/1 exact" in out.err
    assert last == f"{1 - code} of 1 cases met their targets"
    kept = json.loads(file.read_text())
    assert kept["rounds"] == command.QUICK_ROUNDS
    assert kept["results"][0]["targets"] == {"error<=1e-12": code == 0}


def test_names_suites_and_texts_that_do_not_exist():
    with pytest.raises(SystemExit, match="no suite nosuch; there are .*contrastive"):
        command.suites(["nosuch"])
    with pytest.raises(SystemExit, match="no case is left of .* by --only 'nosuch'"):
        command.chosen(["contrastive"], "nosuch", quick=False)


def test_lists_every_suite(capsys):
    assert command.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert "contrastive: InfoNCE N=4096, plain torch" in listed
    assert "ddp: ClipLoss 2x4096 rows, open_clip local_loss" in listed


def test_quick_leaves_out_the_long_cases():
    assert not [c.name for c in command.chosen(["contrastive"], "", quick=True) if "16384" in c.name]
    assert [c.name for c in command.chosen(["contrastive"], "16384", quick=False)]


def test_memory_sees_the_step_and_nothing_before_it():
    case = Case("memory", step("allocate", megabytes=64, earlier=256), megabytes=70.4)
    result = measure.measure(case, 1)
    assert result.problem == ""
    assert 57.6 < result.megabytes["ours"] < 70.4


def test_a_step_that_fails_is_a_failed_case_that_says_why():
    result = measure.measure(Case("broken", step("fail")), 1)
    assert result.problem == "memory: OSError: a step that cannot be built"
    assert not result.passed


def test_values_that_disagree_leave_no_time():
    case = Case("apart", step("constant", value=0.5), "peer", step("constant", value=0.25), time=10.0, agree=0.1)
    result = measure.measure(case, 1)
    assert result.ratio is None
    assert result.problem.endswith("values are 2.5e-01 apart, above 0.1: ours 0.5, theirs 0.25")
    assert not result.passed
    measure.hold_to(0.25, {"ours": constant(0.5), "theirs": constant(0.25)})
    with pytest.raises(measure.MeasurementError, match="nan apart"):
        measure.hold_to(1.0, {"ours": constant(float("nan")), "theirs": constant(0.25)})


@pytest.mark.parametrize(
    "case", [c for c in calibration.cases() if c.agree], ids=lambda case: f"{case.name} {case.peer}"
)
def test_calibration_agrees_with_its_peers(case):
    values = [float(side.build(rows=700)()) for side in (case.ours, case.theirs)]
    assert values[0] == pytest.approx(values[1], abs=case.agree)


def test_state_is_that_of_the_metric_and_groups_share_it():
    own, other = (calibration.Epoch(name, 700) for name in ("ECE", "torchmetrics"))
    own(), other()
    assert own.state_bytes() == 3 * 15 * 2 * 8
    assert other.state_bytes() == 700 * 8
    together = calibration.Epoch("equal width", 700)
    together()
    assert len(together.metric.compute_groups) == 1


def test_peers_compute_what_they_are_named_for():
    query, key = (x.detach() for x in contrastive.embeddings(7))
    scores = (peers.SCALE * query @ key.T).tolist()
    by_query = peers.cross_entropy(query, key).item()
    assert by_query == pytest.approx(
        sum(math.log(sum(math.exp(s - row[i]) for s in row)) for i, row in enumerate(scores)) / 7, rel=1e-5
    )
    assert peers.multiple_negatives(3.0 * query, key).item() == pytest.approx(by_query, rel=1e-5)
    both = (by_query + peers.cross_entropy(key, query).item()) / 2
    assert peers.open_clip(query, key).item() == pytest.approx(both, rel=1e-5)
    losses = [math.log1p(math.exp(s - row[i])) for i, row in enumerate(scores) for j, s in enumerate(row) if i != j]
    assert peers.mann_whitney(query, key).item() == pytest.approx(sum(losses) / 42, rel=1e-5)


SINGLE = [
    case for case in contrastive.cases() if case.theirs and case.equal and not case.long and "compile" not in case.peer
]


@pytest.mark.parametrize("case", SINGLE, ids=lambda case: f"{case.name}, {case.peer}")
def test_both_sides_return_the_same_value(case):
    assert case.ours.build(n=24)() == pytest.approx(case.theirs.build(n=24)(), rel=1e-5)


def value_on_rank(step):
    return Step(**step).build(n=24)()


@pytest.mark.xdist_group("ranks")
def test_both_sides_return_the_same_value_on_two_ranks(pool):
    case = ddp.cases()[0]
    sides = [pool.run(value_on_rank, [(measure.asdict(s),)] * 2) for s in (case.ours, case.theirs)]
    assert sum(sides[0]) == pytest.approx(sum(sides[1]), rel=1e-5)
