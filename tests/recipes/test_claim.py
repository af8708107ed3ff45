"""``trainkit claim``: statistics by hand, verdicts, runs that are kept, and what ships."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scipy import stats

from trainkit.cli import claim_file, claim_result, claim_runs
from trainkit.cli.claim_file import Arm

ROOT = Path(__file__).resolve().parents[2]

FUNCTION = """
import os, time
from pathlib import Path

def value(seed, shift, tuned=0.0):
    with open("calls.txt", "a") as calls:
        calls.write(f"{seed} {shift} {tuned}\\n")
    while Path("wait").exists() and seed == 1:
        time.sleep(0.01)
    if shift == "fail":
        raise RuntimeError("no such luck")
    score = 10 * seed + shift * (1 + 0.1 * seed) - (0.5 * (tuned - shift)) ** 2
    return {"score": score, "same": seed, "lost": float("nan")}
"""

CLAIM = """
claim: Better is
  better.
run:
  function: arms_of_test:value
arms:
  worse:
    arguments: {shift: 0.0}
  better:
    arguments: {shift: 1.0}
claimed: better
seeds: [0, 1, 2]
metrics: {score: up, same: equal}
decides: score
tolerance: 0.5
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a function and a claim about it, and a cache of its own."""
    monkeypatch.setenv("TRAINKIT_CACHE", str(tmp_path / "cache"))
    # Children find the function in the working directory; hashing finds it on the path.
    monkeypatch.syspath_prepend(str(tmp_path))
    # One that another test has imported would be hashed in place of this one.
    monkeypatch.delitem(sys.modules, "arms_of_test", raising=False)
    (tmp_path / "arms_of_test.py").write_text(FUNCTION)
    (tmp_path / "mine.yaml").write_text(CLAIM)
    return tmp_path


@pytest.fixture
def instant(monkeypatch):
    """Runs of functions in this process, in place of one of their own each."""

    class Done:
        returncode = 0

        def __init__(self, command, stdout, **options):
            self.args = command
            from trainkit.cli.claim_function import main

            sys.modules.pop("arms_of_test", None)
            try:
                main(*command[-3:])
            except RuntimeError as error:
                stdout.write(f"RuntimeError: {error}\n".encode())
                self.returncode = 1

    def run(command, **options):
        return subprocess_run(command, **options) if command[0] == "git" else Done(command, **options)

    subprocess_run = subprocess.run
    monkeypatch.setattr(claim_runs.subprocess, "run", run)


def calls(place):
    return (place / "calls.txt").read_text().splitlines()


def result_of(place, name="mine"):
    return json.loads((place / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30])
def test_quantile_is_that_of_student(freedom):
    assert claim_result.quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_interval_by_hand():
    # Mean 3, deviation 1, standard error 1 / sqrt(3), t = 4.302653 for two degrees of freedom.
    mean, low, high = claim_result.interval([2.0, 3.0, 4.0])
    assert (mean, low, high) == pytest.approx((3.0, 3 - 2.484138, 3 + 2.484138), abs=1e-6)
    assert claim_result.interval([5.0]) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize(
    ("direction", "differences", "verdict"),
    [
        ("up", [1.0, 1.1, 0.9], "held"),
        ("up", [-1.0, -1.1, -0.9], "contradicted"),
        ("up", [1.0, -1.0, 0.5], "not shown"),
        ("down", [-1.0, -1.1, -0.9], "held"),
        ("down", [1.0, 1.1, 0.9], "contradicted"),
        ("up", [0.0, 0.0], "not shown"),
        ("equal", [0.5, -0.5], "held"),
        ("equal", [0.5, -0.51], "contradicted"),
    ],
)
def test_verdict(direction, differences, verdict):
    assert claim_result.judge(direction, differences, 0.5) == verdict


def concluded(place, text, **values):
    """Verdict on a claim about arms with these scores."""
    (place / "mine.yaml").write_text(text)
    claim = claim_file.read(place / "mine.yaml")
    runs = {arm: [{"score": v, "same": 0.0} for v in told] for arm, told in values.items()}
    return claim_result.conclude(claim, runs)


def test_differences_are_paired(place):
    said = concluded(place, CLAIM, worse=[1.0, 11.0, 21.0], better=[2.0, 12.1, 21.9])
    one = said["comparisons"][0]
    assert one["differences"] == pytest.approx([1.0, 1.1, 0.9])
    half = stats.t.ppf(0.975, 2) * 0.1 / 3**0.5
    assert (one["mean"], one["low"], one["high"]) == pytest.approx((1.0, 1 - half, 1 + half))
    assert said["arms"]["worse"]["score"]["mean"] == 11.0
    assert said["verdict"] == one["verdict"] == "held"


def test_a_claim_against_two_arms_needs_both(place):
    text = CLAIM.replace("  better:\n", "  third:\n    arguments: {shift: 0.5}\n  better:\n")
    better = [2.0, 12.1, 21.9]
    assert concluded(place, text, worse=[1, 11, 21], third=[1, 11, 21], better=better)["verdict"] == "held"
    assert concluded(place, text, worse=[1, 11, 21], third=[2, 12, 22], better=better)["verdict"] == "not shown"
    assert concluded(place, text, worse=[1, 11, 21], third=[3, 13, 23], better=better)["verdict"] == "contradicted"


def test_runs_once_and_then_leaves_the_bytes(place, run, instant):
    status, out, err = run("claim", "mine.yaml")
    assert (status, "better - worse" in out, "run/s" in err or "s/run" in err) == (0, True, True)
    result = result_of(place)
    assert (result["verdict"], result["claim"], result["seeds"]) == ("held", "Better is better.", [0, 1, 2])
    assert result["comparisons"][0]["differences"] == pytest.approx([0.75, 0.85, 0.95])
    assert len(calls(place)) == 6
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (place / "results").iterdir()}
    assert {path.name for path in files} == {"mine.json", "mine.svg"}
    status, out, err = run("claim", "mine.yaml")
    assert (status, err) == (0, "")
    assert len(calls(place)) == 6
    assert files == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (place / "results").iterdir()}


def test_what_decides_the_numbers_is_run_again(place, run, instant, monkeypatch):
    run("claim", "mine.yaml")
    (place / "mine.yaml").write_text(CLAIM.replace("shift: 1.0", "shift: 2.0").replace("Better", "Far better"))
    run("claim", "mine.yaml")
    assert len(calls(place)) == 6 + 3
    assert result_of(place)["claim"] == "Far better is better."
    (place / "arms_of_test.py").write_text(FUNCTION + "\n")
    run("claim", "mine.yaml")
    assert len(calls(place)) == 9 + 6
    monkeypatch.setattr(claim_runs, "_source", lambda: "another")
    run("claim", "mine.yaml")
    assert len(calls(place)) == 15 + 6


def test_each_config_and_option_decides_and_the_readme_does_not(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "own.yaml").write_text("model: 1\n")
    (place / "pairs.csv").write_text("a")
    arm = Arm(("own.yaml",), ("--data.path=pairs.csv",))
    keys = [claim_runs._key(arm, 0), claim_runs._key(arm, 1), claim_runs._key(Arm(("own.yaml",)), 0)]
    (place / "pairs.csv").write_text("b")
    keys.append(claim_runs._key(arm, 0))
    (place / "own.yaml").write_text("model: 2\n")
    keys.append(claim_runs._key(arm, 0))
    assert len(set(keys)) == 5
    (place / "README.md").write_text("new")
    assert claim_runs._key(arm, 0) == keys[-1]


def test_code_of_the_library_decides_and_the_command_line_does_not(tmp_path, monkeypatch):
    for name in ("losses", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.py").write_text("a = 1")
    monkeypatch.setattr(claim_runs.trainkit, "__file__", str(tmp_path / "__init__.py"))
    before = claim_runs._source.__wrapped__()
    (tmp_path / "cli" / "part.py").write_text("a = 2")
    (tmp_path / "README.md").write_text("new")
    assert claim_runs._source.__wrapped__() == before
    (tmp_path / "losses" / "part.py").write_text("a = 2")
    assert claim_runs._source.__wrapped__() != before


def test_tuning_takes_the_best_value_of_each_arm(place, run, instant):
    tune = "tune: {parameter: tuned, values: [0.0, 1.0, 3.0], seed: 7, metric: score, direction: up}\n"
    (place / "mine.yaml").write_text(CLAIM + tune)
    status, out, _ = run("claim", "mine.yaml")
    assert status == 0
    assert result_of(place)["tune"]["chosen"] == {"worse": 0.0, "better": 1.0}
    assert "tuned of better, chosen on validation: 1.0" in out
    assert len(calls(place)) == 6 + 6
    (place / "mine.yaml").write_text(CLAIM + tune.replace("metric: score", "metric: lost"))
    status, _, err = run("claim", "mine.yaml")
    assert (status, "gives worse a finite lost" in err) == (1, True)


def test_killed_in_an_arm_it_gives_the_same_result(place, run):
    command = [sys.executable, "-m", "trainkit", "claim", "mine.yaml"]
    (place / "mine.yaml").write_text(CLAIM.replace("[0, 1, 2]", "[0, 1]"))
    (place / "wait").touch()
    with subprocess.Popen(command, cwd=place, stderr=subprocess.DEVNULL, start_new_session=True) as started:
        while not (place / "calls.txt").exists() or len(calls(place)) < 2:
            time.sleep(0.02)
        os.killpg(started.pid, signal.SIGKILL)
    assert not (place / "results").exists()
    (place / "wait").unlink()
    assert run("claim", "mine.yaml")[0] == 0
    interrupted = result_of(place)
    # The run that was killed, and three that are whole.
    assert len(calls(place)) == 2 + 3
    for file in (place / "cache").rglob("*.json"):
        file.unlink()
    assert run("claim", "mine.yaml")[0] == 0
    whole = result_of(place)
    for told in (interrupted, whole):
        del told["cpu_seconds"], told["date"]
    assert interrupted == whole


def test_a_run_that_fails_says_its_last_lines_and_other_claims_go_on(place, run, instant):
    (place / "bad.yaml").write_text(CLAIM.replace("shift: 1.0", "shift: fail"))
    status, out, err = run("claim", "bad.yaml", "mine.yaml")
    assert status == 1
    assert "trainkit claim: bad: a run failed with status 1" in err
    assert "no such luck" in err
    assert out.startswith("mine: ")
    assert not (place / "results" / "bad.json").exists()


def test_a_number_that_is_none_ends_the_claim(place, run, instant):
    (place / "mine.yaml").write_text(CLAIM.replace("{score: up", "{lost: down, score: up"))
    assert "lost of worse with seed 0 is no finite number" in run("claim", "mine.yaml")[2]
    (place / "mine.yaml").write_text(CLAIM.replace("{score: up", "{scores: down, score: up"))
    assert "metrics.scores is none of lost, same, score, which worse gives" in run("claim", "mine.yaml")[2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds:", "seedz:", "seedz must be one of claim, run, arms"),
        ("claimed: better\n", "", "the file must have the key claimed"),
        ("claimed: better", "claimed: best", "claimed must be one of worse, better, got 'best'"),
        ("score: up", "score: more", "metrics.score must be one of up, down, equal, got 'more'"),
        ("decides: score", "decides: scores", "decides must be one of score, same, got 'scores'"),
        ("decides: score", "decides: []", "decides must name one metric or more"),
        ("[0, 1, 2]", "[0]", "seeds must be 2 or more"),
        ("[0, 1, 2]", "[0, a]", "seeds must be a list of whole numbers"),
        ("tolerance: 0.5\n", "", "tolerance must be a number where metrics are equal, and nowhere else, got None"),
        ("  function: arms_of_test:value", "  functions: x", "run.functions must be one of configs"),
        ("arms_of_test:value", "arms_of_test", "arms.worse.function must be package.module:function"),
        ("arguments: {shift: 0.0}", "options: [--a]", "arms.worse must have options to configs"),
        ("  function:", "  configs: [a]\n  function:", "arms.worse must have either configs or a function"),
        ("  better:\n    arguments: {shift: 1.0}\n", "", "arms must be two or more"),
        ("tolerance:", "tune: {values: [1, 2]}\ntolerance:", "tune must have the key parameter"),
        ("arms:", "arms: [", "is no YAML"),
    ],
)
def test_faults_of_files_name_key_and_file(place, run, old, new, message):
    assert old in CLAIM
    (place / "mine.yaml").write_text(CLAIM.replace(old, new))
    status, _, err = run("claim", "mine.yaml")
    assert status == 2
    assert err.startswith("trainkit claim: mine.yaml: ")
    assert message in err


def test_names(run):
    status, _, err = run("claim", "man_whitney")
    assert (status, "did you mean mann_whitney_auc" in err) == (2, True)
    assert run("claim")[0] == 2
    assert run("claim", "--list", "focal_ece")[0] == 2
    assert run("claim", "--list", "--write", "x")[0] == 2


def test_a_folder_that_is_read_only_asks_for_another(place, run, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    status, _, err = run("claim", "mine.yaml")
    assert (status, "say where with --out FOLDER" in err) == (2, True)


def test_out(place, run, instant):
    assert run("claim", "mine.yaml", "--out", "elsewhere")[0] == 0
    assert (place / "elsewhere" / "mine.json").is_file()


def test_list_and_table_tell_what_was_run(place, run, instant, monkeypatch):
    monkeypatch.setattr(claim_file, "shipped", lambda: {"mine": place / "mine.yaml"})
    assert "mine  Better is better. (not run yet)" in run("claim", "--list")[1]
    assert "| `mine`: Better is better. | | not run yet |" in run("claim", "--table")[1]
    run("claim", "mine")
    assert "(held, " in run("claim", "--list")[1]
    (place / "README.md").write_text("a\n<!-- claims:start -->\nold\n<!-- claims:end -->\nb\n")
    assert run("claim", "--table", "--write", "README.md")[0] == 0
    text = (place / "README.md").read_text()
    assert re.search(
        r"^a\n<!-- claims:start -->\n\| Claim .*\*\*held\*\* \|\n<!-- claims:end -->\nb\n$", text, re.DOTALL
    )
    assert "score against worse: +" in text
    assert run("claim", "--table", "--write", "none.md")[0] == 2


def test_a_claim_about_a_recipe(place, run, pairs_file):
    text = f"""
claim: A hotter softmax ranks better.
run:
  configs: [retrieval/info_nce]
  options:
    - --data.path={pairs_file}
    - --data.batch_size=32
    - --trainer.max_epochs=1
    - --trainer.limit_train_batches=1
    - --model.encoder.buckets=64
    - --model.encoder.dim=8
arms:
  cold: {{}}
  hot: {{options: [--model.loss.temperature=0.5]}}
claimed: hot
seeds: [0, 1]
metrics: {{test/R@10: up}}
decides: test/R@10
"""
    (place / "mine.yaml").write_text(text)
    claim = claim_file.read(place / "mine.yaml")
    told = claim_runs.perform(claim.arms["hot"], 1)
    assert 0 <= told["values"]["test/R@10"] <= 1
    assert {"val/AUROC", "posthoc/test_ece_after"} <= set(told["values"])
    assert told["cpu_seconds"] > 0
    assert claim_runs.finished(claim.arms["hot"], 1) == told


@pytest.mark.parametrize("name", claim_file.shipped())
def test_every_shipped_claim_can_be_read(name):
    claim = claim_file.read(claim_file.find(name))
    assert claim.sentence.endswith(".")
    for arm in claim.arms.values():
        assert claim_runs._key(arm, 0)
    text = claim.path.read_text()
    assert f"#   trainkit claim {name}\n" in text


def test_the_two_focal_claims_share_cross_entropy():
    one, other = (claim_file.read(claim_file.find(name)) for name in ("focal_ece", "dual_focal_ece"))
    assert one.arms["cross_entropy"] == other.arms["cross_entropy"]
    assert one.seeds == other.seeds


def test_readme_holds_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- claims:start -->\n(.*?)\n<!-- claims:end -->", text, re.DOTALL)
    told = claim_result.markdown(claim_file.shipped().values(), lambda path: path.parent / "results")
    assert shown
    assert shown[1] == told, "run: trainkit claim --table --write README.md"
