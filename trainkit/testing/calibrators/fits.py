"""Properties of calibrators: what a fit finds."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainkit.testing.calibrators.common import (
    CalibratorCase,
    Data,
    data_for,
    doubtful_fit,
    fit,
    is_single,
    is_soft,
    logits_for,
    offered,
    rows_of,
)
from trainkit.testing.common import as_lists, check_golden, shards
from trainkit.testing.faults import compare, refusal, require
from trainkit.testing.pool import Pool
from trainkit.testing.properties import prop

__all__ = ["fit_on_rank"]

ROWS = 200
LEAST_GAIN = 0.02
"""What calibration takes at least off the negative log-likelihood of the drawn predictions, which are far off."""

CASTS = (torch.bfloat16, torch.float16, torch.float32)


def _check_function(case: CalibratorCase) -> None:
    function = case.spec.function
    if function is None:
        return
    theirs = inspect.signature(function).parameters
    for name, parameter in inspect.signature(case.spec.cls).parameters.items():
        if name == "sync":
            continue
        require(name in theirs, f"hyper-parameters of {function.__name__}", f"one named {name!r}", list(theirs))
        default = theirs[name].default
        require(default == parameter.default, f"default of {name} in {function.__name__}", parameter.default, default)
    data = data_for(case, 40)
    got = function(**data, **{k: v for k, v in case.config.items() if k != "sync"})
    state = fit(case, data).state_dict()
    found = got if isinstance(got, Mapping) else {case.spec.fitted: got}
    for name, value in found.items():
        compare(f"{name} of {function.__name__}", value, state[name], rtol=0, atol=0)


@prop("C1", "values")
def values(case: CalibratorCase) -> None:
    """A fit gives the numbers of the golden records and of the reference to 1e-6; the function, those of the class."""
    if case.index == 0:
        for golden in case.spec.golden:
            check_golden(golden)
    _check_function(case)
    if case.spec.reference is None:
        return
    for n in (10, 40):
        data = data_for(case, n)
        calibrator = doubtful_fit(case, data)
        found = {**calibrator.state_dict(), "probs": calibrator.predict_proba(data["logits"])}
        for name, value in case.spec.reference(**as_lists(data), **case.config).items():
            require(name in found, "numbers of the fit", f"one named {name!r}", sorted(found))
            compare(f"{name} against the reference", found[name], value, rtol=1e-6, atol=1e-8)


def _nll(case: CalibratorCase, probs: Tensor, target: Tensor) -> Tensor:
    """Mean over targets; a probability is that of class 1 where the target has its shape and is no distribution."""
    if is_single(case):
        return -torch.where(target > 0, probs, 1 - probs).log().mean()
    if target.is_floating_point():
        return -(target * probs.log()).sum(1).mean()
    return -probs.gather(1, target.unsqueeze(1)).log().mean()


def _again(case: CalibratorCase, calibrator: Any, data: Data) -> Data:
    """Calibrated predictions in the form that the configuration takes, with the same targets."""
    return {"logits": offered(case, calibrator(data["logits"])), "target": data["target"]}


@prop("C5", "idempotence")
def idempotence(case: CalibratorCase) -> None:
    """A fit to predictions that the calibrator has corrected changes no probability by 0.01."""
    data = data_for(case, ROWS)
    first = fit(case, data)
    second = fit(case, _again(case, first, data))
    before = first.predict_proba(data["logits"])
    after = second.predict_proba(_again(case, first, data)["logits"])
    compare("probabilities calibrated twice", after, before, rtol=0, atol=0.01)


@prop("C6", "improvement")
def improvement(case: CalibratorCase) -> None:
    """On other predictions of an over-confident model the negative log-likelihood falls, by 0.02 at least."""
    held_out = data_for(case, ROWS, seed=1)
    calibrator = fit(case, data_for(case, 2 * ROWS))
    after = _nll(case, calibrator.predict_proba(held_out["logits"]), held_out["target"])
    raw = logits_for(case, ROWS, seed=1)
    before = _nll(case, raw.sigmoid() if is_single(case) else raw.softmax(1), held_out["target"])
    require(bool(after < before - LEAST_GAIN), "negative log-likelihood", f"below {before - LEAST_GAIN:.4f}", after)


@prop("C8", "refit")
def refit(case: CalibratorCase) -> None:
    """A second fit replaces the first; equal fits are equal bit for bit; a call changes neither state nor inputs."""
    first, second = data_for(case, ROWS), data_for(case, 3 * ROWS // 2, seed=1)
    expected = copy.deepcopy(fit(case, second).state_dict())
    calibrator = fit(case, first)
    kept, copied = calibrator.state_dict(), copy.deepcopy(calibrator.state_dict())
    require(calibrator.fit(**second) is calibrator, "what fit gives", "the calibrator itself", "something else")
    compare("state after a second fit", calibrator.state_dict(), expected, rtol=0, atol=0)
    compare("state_dict taken before the second fit", kept, copied, rtol=0, atol=0)
    before, attributes = second["logits"].clone(), set(vars(calibrator))
    random = torch.get_rng_state()
    calibrator.fit(**second)
    for call in (calibrator, calibrator.predict_proba):
        call(second["logits"])
    require(torch.equal(second["logits"], before), "logits after the calls", before, second["logits"])
    require(set(vars(calibrator)) == attributes, "attributes", sorted(attributes), sorted(vars(calibrator)))
    require(torch.equal(random, torch.get_rng_state()), "global random state", "as before", "changed")
    compare("state after the calls", calibrator.state_dict(), expected, rtol=0, atol=0)


def _degenerate(case: CalibratorCase) -> dict[str, Data]:
    """Predictions that say nothing, too much or the wrong thing, as logits."""
    data = data_for(case, 12)
    target = data["target"]
    logits = logits_for(case, 12, seed=1)
    if is_single(case):
        right = torch.where(target > 0, 1.0, -1.0).double()
    elif target.is_floating_point():
        right = target.log()
    else:
        right = torch.zeros_like(logits).scatter(1, target.unsqueeze(1), 1.0)
    one = target[:1].expand_as(target)
    given = {
        "constant scores": (torch.full_like(logits, 0.3), target),
        "ties": (logits.round(), target),
        "one class": (logits, one),
        "one row": (logits[:1], target[:1]),
        "separable": (3 * right, target),
        "the wrong way round": (-3 * right, target),
        "scores of 1e4": (1e4 * logits, target),
        "scores of 1e-6": (1e-6 * logits, target),
    }
    return {what: {"logits": offered(case, z.double()), "target": y} for what, (z, y) in given.items()}


@prop("C9", "degenerate data")
def degenerate(case: CalibratorCase) -> None:
    """Ties, constant scores, one class, separable and wrong data give finite probabilities; no data, a ValueError."""
    for what, data in _degenerate(case).items():
        calibrator = doubtful_fit(case, case.seen(data))
        for name, value in calibrator.state_dict().items():
            require(bool(value.isfinite().all()), f"{name} for {what}", "finite", value)
        probs = calibrator.predict_proba(data["logits"])
        fine = probs.isfinite() & (probs >= 0) & (probs <= 1)
        require(bool(fine.all()), f"probabilities for {what}", "in [0, 1]", probs)
    nothing = rows_of(data_for(case, 4), slice(0, 0))
    refusal(case.spec.cls, lambda: fit(case, nothing), ValueError, "a fit without data")
    calibrated = fit(case, data_for(case, ROWS))(nothing["logits"])
    require(calibrated.shape == nothing["logits"].shape, "shape of no rows", nothing["logits"].shape, calibrated.shape)


@prop("C10", "precision")
def precision(case: CalibratorCase) -> None:
    """A fit to fp32 or half inputs, also under autocast and in inference mode, is the fp64 fit of the same values.

    Casts of the fitted calibrator leave its state as it is. Its output is fp32, or fp64 for fp64.
    """
    data = data_for(case, ROWS)
    for dtype in CASTS:
        rounded = {k: v.to(dtype) if v.is_floating_point() else v for k, v in data.items()}
        wide = {k: v.double() if v.is_floating_point() else v for k, v in rounded.items()}
        expected, name = fit(case, wide), str(dtype).removeprefix("torch.")
        state = expected.state_dict()
        compare(f"fit to {name}", fit(case, case.seen(rounded)).state_dict(), state, rtol=1e-12)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
            calibrator = fit(case, rounded)
        compare(f"fit to {name} under autocast", calibrator.state_dict(), state, rtol=1e-12)
        output = calibrator(wide["logits"]).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = calibrator(rounded["logits"])
        require(got.dtype == torch.float32, f"dtype of the output for {name}", torch.float32, got.dtype)
        compare(f"output for {name}", got, output, rtol=1e-5, atol=1e-5)
        moved = fit(case, wide).to(dtype)
        compare(f"state after a cast to {name}", moved.state_dict(), state, rtol=0, atol=0)
        for key, value in moved.state_dict().items():
            require(value.dtype == state[key].dtype, f"dtype of {key} after a cast", state[key].dtype, value.dtype)
    exact = fit(case, data)(data["logits"])
    require(exact.dtype == torch.float64, "dtype of the output for float64", torch.float64, exact.dtype)


def fit_on_rank(cls: type[Any], config: Mapping[str, Any], data: Data) -> dict[str, Tensor]:
    """What a rank of the pool runs: the state after a fit to its rows."""
    return dict(cls(**copy.deepcopy(dict(config))).fit(**data).state_dict())


def _not_synced(case: CalibratorCase) -> str | None:
    alone = case.has("sync") and not case.setting("sync")
    return "it is told to fit every rank alone" if alone else None


@prop("C11", "ranks", needs=_not_synced, ranks=True)
def ranks(case: CalibratorCase, pool: Pool | None) -> None:
    """Every rank, one without rows too, gets the fit of one process on the rows of all."""
    if pool is None:
        raise ValueError("C11 needs a pool of ranks, got None")
    data = data_for(case, 40)
    whole = fit_on_rank(case.spec.cls, case.config, data)
    for split in ((20, 20), (13, 27), (40, 0), (0, 40)):
        args = [(case.spec.cls, case.config, own) for own in shards(data, split)]
        got = pool.run(fit_on_rank, args)
        what = f"{'+'.join(map(str, split))} rows on 2 ranks"
        for rank, own in enumerate(got):
            compare(f"state, {what}", own, whole, rtol=1e-9, rank=rank, ranks=2)
            compare(f"state against rank 0, {what}", own, got[0], rtol=0, atol=0, rank=rank, ranks=2)


def _no_weight(case: CalibratorCase) -> str | None:
    takes = "weight" in inspect.signature(case.spec.cls.fit).parameters
    return None if takes else "its fit takes no weights"


def _without_counts(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a fit finds, without how many targets there were and how often they were read."""
    return {k: v for k, v in state.items() if v.is_floating_point()}


@prop("C14", "weights", needs=_no_weight)
def weights(case: CalibratorCase) -> None:
    """A whole weight is repetition, targets that weigh 0 or are ignored don't count, nor does the order of the rows."""
    data = data_for(case, 40)
    shape = data["target"][:, 0].shape if is_soft(case) else data["target"].shape
    times = torch.arange(40) % 3
    weight = times.view(-1, *[1] * (len(shape) - 1)).expand(shape).double()
    expected = _without_counts(fit(case, {k: v.repeat_interleave(times, 0) for k, v in data.items()}).state_dict())

    def check(what: str, changed: Data) -> None:
        got = fit(case, case.seen(changed)).state_dict()
        compare(what, _without_counts(got), expected, rtol=1e-9)

    check("fit with weights", {**data, "weight": weight})
    order = torch.arange(40).flip(0)
    check("fit to another order", {k: v[order] for k, v in {**data, "weight": weight}.items()})
    if case.ignore_index is None:
        return
    target = torch.where(weight == 0, torch.as_tensor(case.ignore_index).to(data["target"].dtype), data["target"])
    garbage = data["logits"].clone()
    garbage[times == 0] = torch.nan
    check("fit with ignored targets", {"logits": garbage, "target": target, "weight": weight + (weight == 0)})
