"""How callbacks read any ``LightningModule``: tensors by their vocabulary name, from what a step returns."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from trainkit._core.checks import describe, reject

__all__ = ["Outputs", "check_outputs", "read_outputs"]

Outputs: TypeAlias = dict[str, str] | Callable[[Any, Any], Mapping[str, Any]] | None

FROM_BATCH = ("target", "index", "groups")
"""What a batch is asked for without being told: an entry ``weight`` there may well be another quantity."""


def check_outputs(owner: str, outputs: Any) -> None:
    """Check the argument ``outputs`` of a callback."""
    if outputs is None or callable(outputs):
        return
    if not isinstance(outputs, Mapping):
        reject(owner, "outputs", "be a mapping of names, a function or None", outputs, TypeError)
    for name, key in outputs.items():
        if not isinstance(name, str) or not isinstance(key, str):
            reject(owner, "outputs", "map names to names", outputs, TypeError)


def _there(what: str, value: Any) -> str:
    """What a step returned, or a batch, has to offer."""
    if isinstance(value, Mapping):
        return f"{what} has {', '.join(map(str, value)) or 'no entries'}"
    return f"{what} is {'None' if value is None else f'of type {type(value).__name__}'}"


def read_outputs(
    owner: str, hook: str, outputs: Outputs, wanted: Iterable[tuple[str, bool]], returned: Any, batch: Any
) -> dict[str, Tensor]:
    """The wanted tensors of one step, detached.

    Args:
        owner: Class that errors name.
        hook: Hook that errors name.
        outputs: Keys by name, looked up in what the step returned and then in the batch; or a function of both that
            gives a mapping; or None: the names themselves are the keys.
        wanted: Names, each with whether it is required.
        returned: What the step returned.
        batch: The batch.
    """
    if callable(outputs):
        returned, batch, named = outputs(returned, batch), None, {}
    else:
        named = outputs or {}
    found = {}
    for name, required in wanted:
        key = named.get(name, name)
        places = [returned] + [batch] * (name in named or name in FROM_BATCH)
        value = next((p[key] for p in places if isinstance(p, Mapping) and p.get(key) is not None), None)
        if value is None and (required or name in named):
            offered = _there("what outputs gave" if callable(outputs) else "what the step returned", returned)
            offered += "" if callable(outputs) else f" and {_there('the batch', batch)}"
            raise ValueError(
                f"{owner}: {hook} looked for {name!r}{f' as {key!r}' if key != name else ''}, but {offered}; return it "
                f"from the step, or name it with outputs={{{name!r}: 'key'}} or a function (outputs, batch) -> mapping"
            )
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"{owner}: {hook} needs a tensor for {name!r}, got {describe(value)}")
        found[name] = value.detach()
    return found
