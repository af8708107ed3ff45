"""Properties of callbacks in small fits of a module that knows nothing of trainkit."""

import copy
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import DataLoader

from trainkit.testing.callbacks.runs import BATCH, ROWS, RowStream, fit, validation
from trainkit.testing.callbacks.state import CallbackCase, saved_and_read
from trainkit.testing.faults import compare, require
from trainkit.testing.properties import prop

KINDS_OF_RUNS: dict[str, dict[str, Any]] = {
    "with accumulation, after a sanity check, with two validation loaders": {
        "accumulate_grad_batches": 2,
        "num_sanity_val_steps": 1,
        "held_out": [validation(), validation(rows=5)],
    },
    "on an iterable data set, without validation": {
        "train": DataLoader(RowStream(), BATCH),
        "limit_val_batches": 0,
    },
    "of one batch": {"fast_dev_run": True},
}


@prop("K6", "runs", dear=True)
def runs(case: CallbackCase) -> None:
    """Fits of every kind end, after as many steps as without the callback.

    With accumulation, a sanity check and several validation loaders; on an iterable data set without validation; of
    one batch.
    """
    batches = ROWS // BATCH
    for (what, options), steps in zip(KINDS_OF_RUNS.items(), (batches, 2 * batches, 1), strict=True):
        run = fit([case.make()], **options)
        require(run.steps == steps, f"steps of a fit {what}", steps, run.steps)


def _unreadable(case: CallbackCase) -> str | None:
    try:
        saved_and_read(case.make().state_dict())
    except pickle.UnpicklingError:
        return "no checkpoint gives its state back, see K1"
    return None


@prop("K7", "resume", needs=_unreadable, dear=True)
def resume(case: CallbackCase) -> None:
    """A new callback that goes on from a checkpoint ends with the weights and the state of one that ran through."""
    through = case.make()
    whole = fit([through])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "stopped.ckpt"
        fit([case.make()], max_epochs=1, save_to=path)
        resumed = case.make()
        rest = fit([resumed], ckpt_path=path)
    compare("weights after a resume", rest.weights, whole.weights, rtol=0, atol=0)
    found = resumed.state_dict()
    require(repr(found) == repr(through.state_dict()), "state after a resume", through.state_dict(), found)


@prop("K9", "modes", dear=True)
def modes(case: CallbackCase) -> None:
    """A fit leaves modules in training or evaluation mode, and gradients on or off, as one without the callback."""
    alone, run = fit([], noisy=True), fit([case.make()], noisy=True)
    for name, mode in alone.modes.items():
        got = run.modes.get(name, mode)
        require(got == mode, f"whether {name} is in training mode or trained", mode, got)
    require(torch.is_grad_enabled(), "gradients after a fit", "on", "off")


def _no_other(case: CallbackCase) -> str | None:
    if len(case.spec.configs) < 2:
        return "there is one configuration"
    # K2 says so where it is a fault.
    return "the two share the key of their state" if _other(case).state_key == case.make().state_key else None


def _other(case: CallbackCase) -> Any:
    """An instance of the next configuration."""
    configs = case.spec.configs
    return case.spec.cls(**copy.deepcopy(dict(configs[(case.index + 1) % len(configs)])))


@prop("K10", "two in one trainer", needs=_no_other, dear=True)
def two(case: CallbackCase) -> None:
    """Beside one of another configuration, it ends with the state that it has alone, and logs the same."""
    alone, beside = case.make(), case.make()
    own, both = fit([alone]), fit([beside, _other(case)])
    found = beside.state_dict()
    require(repr(found) == repr(alone.state_dict()), "state beside another", alone.state_dict(), found)
    if case.spec.passive:
        got = {name: both.logged.get(name) for name in own.logged}
        compare("what is logged beside another", got, own.logged)


def _not_passive(case: CallbackCase) -> str | None:
    return None if case.spec.passive else "it is not said to be passive"


@prop("K11", "passive", needs=_not_passive, dear=True)
def passive(case: CallbackCase) -> None:
    """Losses, weights, buffers and random numbers of a fit are to the last bit those without the callback."""
    alone, run = fit([], noisy=True), fit([case.make()], noisy=True)
    require(run.losses == alone.losses, "losses of a fit", alone.losses, run.losses)
    compare("weights after a fit", run.weights, alone.weights, rtol=0, atol=0)
    require(torch.equal(run.random, alone.random), "random state after a fit", "as without the callback", "another")


@prop("K12", "copies after a fit", dear=True)
def copies_after(case: CallbackCase) -> None:
    """After a fit, deep copies and a new callback that loads its state have its state."""
    callback = case.make()
    fit([callback], max_epochs=1)
    state = callback.state_dict()
    loaded = case.make()
    if state:
        loaded.load_state_dict(copy.deepcopy(state))
    for what, other in {"a deep copy": copy.deepcopy(callback), "one that loaded it": loaded}.items():
        found = other.state_dict()
        require(repr(found) == repr(state), f"state of {what} after a fit", state, found)
