"""What properties of several families use."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from trainkit.testing.faults import Fault, compare
from trainkit.testing.spec import Golden

__all__ = ["as_lists", "check_golden", "holds_modules", "quiet", "shards"]


def as_lists(inputs: dict[str, Any]) -> dict[str, Any]:
    """Tensors as nested lists, for references in plain Python."""
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in inputs.items()}


def check_golden(golden: Golden) -> None:
    """Compare one golden record with what its call gives."""
    got = golden.run()
    for key, expected in golden.expected.items():
        if key not in got:
            raise Fault(f"record {golden.name!r}", f"a value named {key!r}", sorted(got))
        gradient = key == "grad"
        rtol = golden.grad_rtol if gradient else golden.rtol
        compare(f"record {golden.name!r}, {key}", got[key], expected, rtol=rtol, atol=1e-2 * rtol)


def holds_modules(value: Any) -> bool:
    """Whether a hyper-parameter is a module or a list with modules in it, which show themselves."""
    if isinstance(value, (list, tuple)):
        return any(holds_modules(v) for v in value)
    return isinstance(value, nn.Module)


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Loggers tell of errors alone; Lightning names devices on every fit, and uses what torch is about to remove."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def shards(inputs: Mapping[str, Tensor], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
    """Rows of each rank, in rank order."""
    pieces = {k: v.split(list(sizes)) for k, v in inputs.items()}
    return [{k: pieces[k][r].clone() for k in inputs} for r in range(len(sizes))]
