"""Configurations of parts as plain data, the way the command line reads and writes them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from trainkit.testing.faults import Fault

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

__all__ = ["check_config", "check_factory", "to_config"]


def to_config(cls: type[Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """``class_path`` and ``init_args`` of a class in a configuration; parts inside it likewise."""
    return {
        "class_path": f"{cls.__module__}.{cls.__qualname__}",
        "init_args": {k: _plain(v) for k, v in config.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, nn.Module) or (type(value).__module__.startswith("trainkit.") and hasattr(value, "__dict__")):
        names = inspect.signature(type(value)).parameters
        return to_config(type(value), {name: getattr(value, name) for name in names})
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return value.tolist() if isinstance(value, Tensor) else value


def check_config(cls: type[Any], config: Mapping[str, Any], base: type[Any]) -> Any:
    """Parse the configuration, dump it, parse the dump, and give the part that comes of it.

    Raises:
        Fault: If jsonargparse refuses the configuration or its own dump of it.
    """
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(base, "part")
    return _round_trip(parser, cls, config)


def check_factory(cls: type[Any], config: Mapping[str, Any], base: type[Any]) -> Any:
    """The same for what still needs its first argument, as Lightning's ``OptimizerCallable``; gives the factory."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--part", type=Callable[[Iterable[Any]], base])
    return _round_trip(parser, cls, config)


def _round_trip(parser: "ArgumentParser", cls: type[Any], config: Mapping[str, Any]) -> Any:
    try:
        parsed = parser.parse_object({"part": to_config(cls, config)})
        again = parser.parse_string(parser.dump(parsed, skip_unset=False))
        return parser.instantiate(again).part
    except Exception as error:
        text = " ".join(str(error).split())
        raise Fault("configuration of the command line", f"{to_config(cls, config)} parsed and built", text) from error
