"""What the properties of metrics share: updates, values and their comparison."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainkit.testing.case import Case
from trainkit.testing.faults import as_tensor, compare, require
from trainkit.testing.spec import MetricSpec

__all__ = ["Batch", "MetricCase", "joined", "leaves_of", "rows_of", "same", "value_of"]

MetricCase: TypeAlias = Case[MetricSpec]


Batch: TypeAlias = dict[str, Any]


def value_of(metric: Any, *batches: Batch) -> Any:
    """Value after updates with the batches."""
    for batch in batches:
        metric.update(**batch)
    return metric.compute()


def joined(*batches: Batch) -> Batch:
    """One batch of all rows."""
    return {k: torch.cat([b[k] for b in batches]) for k in batches[0]}


def rows_of(batch: Batch, rows: Any) -> Batch:
    """Some rows of every tensor."""
    return {k: v[rows] for k, v in batch.items()}


def leaves_of(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a value with their places in it."""
    if isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in items:
            yield from leaves_of(part, f"{name}, {key}")
    else:
        yield name, value if isinstance(value, Tensor) else as_tensor(value)


def same(what: str, got: Any, expected: Any, *, rtol: float | None = None, rank: int | None = None) -> None:
    """Compare two values of a metric: tensors, or structures of them; a nan must be a nan.

    ``rtol`` is that of rounding in the dtype of the result if it is None, and exact if it is 0.
    """
    mine, theirs = dict(leaves_of(got)), dict(leaves_of(expected))
    require(mine.keys() == theirs.keys(), f"parts of {what}", list(theirs), list(mine))
    for name, value in theirs.items():
        own = mine[name]
        if value.is_floating_point() and own.shape == value.shape and torch.equal(own.isnan(), value.isnan()):
            own, value = own.nan_to_num(0.0, math.inf, -math.inf), value.nan_to_num(0.0, math.inf, -math.inf)
        tolerance = rtol if rtol is not None else 1e-12 if own.dtype == torch.float64 else 1e-5
        ranks = 1 if rank is None else 2
        compare(what + name, own, value, rtol=tolerance, atol=tolerance / 100, rank=rank, ranks=ranks)
