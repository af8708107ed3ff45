"""Properties of callbacks that hold before any training: state, key and configuration."""

import copy
import inspect
import io
import pickle
from functools import partial
from typing import Any, TypeAlias

import torch

from trainkit.testing.case import Case
from trainkit.testing.faults import Fault, refusal, require
from trainkit.testing.properties import prop
from trainkit.testing.spec import CallbackSpec

__all__ = ["CallbackCase", "saved_and_read"]

CallbackCase: TypeAlias = Case[CallbackSpec]


def _no_state(case: CallbackCase) -> str | None:
    return None if case.make().state_dict() else "it has no state"


def saved_and_read(state: Any) -> Any:
    """A state as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@prop("K1", "state", needs=_no_state)
def state(case: CallbackCase) -> None:
    """The state is plain data, which a checkpoint gives back, and makes a copy of another configuration the same."""
    callback = case.make()
    try:
        saved = saved_and_read(callback.state_dict())
    except pickle.UnpicklingError as error:
        raise Fault("state read from a checkpoint", "plain data", str(error).partition("\n")[0]) from error
    for config in case.spec.configs:
        other = case.spec.cls(**copy.deepcopy(dict(config)))
        other.load_state_dict(copy.deepcopy(saved))
        found = other.state_dict()
        require(repr(found) == repr(callback.state_dict()), "state after it was loaded", callback.state_dict(), found)


@prop("K2", "state key", needs=_no_state)
def state_key(case: CallbackCase) -> None:
    """Two of one configuration share the key of the state, as a resumed run needs; other configurations have others."""
    own = case.make().state_key
    again = case.make().state_key
    require(own == again, "state key of another of the same configuration", own, again)
    for index, config in enumerate(case.spec.configs):
        other = case.spec.cls(**copy.deepcopy(dict(config))).state_key
        require(
            index == case.index or other != own, f"state key of configuration {index}", f"another than {own}", other
        )


@prop("K3", "configuration")
def configuration(case: CallbackCase) -> None:
    """An attribute with the name of an argument holds what was given, or the default."""
    callback = case.make()
    for name in inspect.signature(case.spec.cls).parameters:
        given, held = case.setting(name), getattr(callback, name, case.setting(name))
        require(repr(held) == repr(given), f"attribute {name}", given, held)


@prop("K4", "copies")
def copies(case: CallbackCase) -> None:
    """Deep copies and pickles have its state, which processes that a trainer starts need."""
    callback: Any = case.make()
    others = {
        "a deep copy": copy.deepcopy(callback),
        "a pickle": pickle.loads(pickle.dumps(callback)),  # noqa: S301 - our own bytes
    }
    for what, other in others.items():
        found = other.state_dict()
        require(repr(found) == repr(callback.state_dict()), f"state of {what}", callback.state_dict(), found)


@prop("K5", "errors")
def errors(case: CallbackCase) -> None:
    """The listed bad calls raise an error that names the class."""
    for bad in case.spec.errors if case.index == 0 else ():
        what = f"call with {', '.join(bad.config)}"
        text = refusal(case.spec.cls, partial(case.make, **bad.config), bad.error, what)
        require(bad.match in text, what, bad.match, text)
