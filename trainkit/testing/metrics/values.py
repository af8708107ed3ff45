"""Properties of metrics: their value over batches, splits and ranks."""

import copy
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from trainkit.testing.common import as_lists, check_golden, shards
from trainkit.testing.faults import require
from trainkit.testing.metrics.common import Batch, MetricCase, joined, rows_of, same, value_of
from trainkit.testing.pool import Pool
from trainkit.testing.properties import prop


def _no_values(case: MetricCase) -> str | None:
    return None if case.spec.golden or case.spec.reference else "no reference values are given"


@prop("M1", "reference values", needs=_no_values)
def values(case: MetricCase) -> None:
    """The value of each batch and of all batches equals the golden records and the independent reference."""
    if case.index == 0:
        for golden in case.spec.golden:
            check_golden(golden)
    if case.spec.reference is None:
        return
    batches = [case.inputs(n) for n in case.sizes]
    for batch in batches:
        expected = case.spec.reference(**as_lists(case.seen(batch)), **case.config)
        same("value of a batch against the reference", value_of(case.make(), batch), expected, rtol=1e-9)
    expected = case.spec.reference(**as_lists(joined(*batches)), **case.config)
    same("value of all batches against the reference", value_of(case.make(), *batches), expected, rtol=1e-9)


def _no_function(case: MetricCase) -> str | None:
    return None if case.spec.function else "no functional form is given"


@prop("M2", "function equals class", needs=_no_function)
def functional(case: MetricCase) -> None:
    """The function gives the class's value bit for bit and has its hyper-parameters with the same defaults."""
    function = case.spec.function
    if function is None:
        return
    theirs = inspect.signature(function).parameters
    for name, parameter in inspect.signature(case.spec.cls).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        require(name in theirs, f"hyper-parameters of {function.__name__}", f"one named {name!r}", list(theirs))
        default = theirs[name].default
        require(default == parameter.default, f"default of {name} in {function.__name__}", parameter.default, default)
    for n in case.sizes:
        inputs = case.inputs(n)
        got = function(**inputs, **case.config)
        same(f"value of {function.__name__}", got, value_of(case.make(), inputs), rtol=0)


@prop("M3", "forward")
def forward(case: MetricCase) -> None:
    """A call gives the value of its batch alone, and adds the batch to what an update adds it to."""
    batches = [case.inputs(n) for n in case.sizes]
    metric, updated = case.make(), case.make()
    for batch in batches:
        same("value of a call against that of its batch", metric(**case.seen(batch)), value_of(case.make(), batch))
        updated.update(**batch)
        same("value after calls against that after updates", metric.compute(), updated.compute())
    same("value after calls and updates", value_of(metric, batches[0]), value_of(updated, batches[0]))


def metric_on_rank(cls: type[Any], config: Mapping[str, Any], before: list[Batch], after: list[Batch]) -> list[Any]:
    """What a rank of the pool runs: updates, a value, more updates, the value then."""
    metric = cls(**copy.deepcopy(dict(config)))
    with warnings.catch_warnings():
        # torchmetrics looks at the data of this rank alone.
        warnings.filterwarnings("ignore", "The ``compute`` method of metric")
        return [value_of(metric, *before), value_of(metric, *after)]


def _pairs(batch: Batch) -> list[Batch]:
    """A batch in pieces of two rows."""
    count = len(next(iter(batch.values())))
    return [rows_of(batch, slice(start, start + 2)) for start in range(0, count, 2)]


def _inexact(case: MetricCase) -> str | None:
    return None if case.spec.exact else "its value over a split of the data is an approximation"


@prop("M4", "ranks", needs=_inexact, ranks=True)
def ranks(case: MetricCase, pool: Pool | None) -> None:
    """The value on every rank is that of all data on one process, also without data on a rank, and after a sync."""
    if pool is None:
        raise ValueError("M4 needs a pool of ranks, got None")
    first, second = case.inputs(8), case.inputs(8, seed=1)
    whole = metric_on_rank(case.spec.cls, case.config, _pairs(first), _pairs(second))
    later = [_pairs(own) for own in shards(second, (4, 4))]
    case.seen(first)
    for split in [(4, 4), (3, 5), (8, 0), (0, 8)]:
        for empty in [False, True] if 0 in split else [False]:
            own = [_pairs(rows) for rows in shards(first, split)]
            if empty:
                own = [batches or [rows_of(first, slice(0, 0))] for batches in own]
            args = [(case.spec.cls, case.config, own[rank], later[rank]) for rank in range(2)]
            what = f"{'+'.join(map(str, split))} rows on 2 ranks{', an update without rows' if empty else ''}"
            for rank, (value, grown) in enumerate(pool.run(metric_on_rank, args)):
                same(f"value of {what}", value, whole[0], rank=rank)
                same(f"value after more updates of {what}", grown, whole[1], rank=rank)


@prop("M5", "any split", needs=_inexact)
def splits(case: MetricCase) -> None:
    """Batches of one, uneven ones, another order of the rows and two metrics merged give the value of one pass."""
    for n in [n for n in case.sizes if n > 1] or case.sizes:
        inputs = case.inputs(n)
        expected = value_of(case.make(), inputs)
        singles = [rows_of(inputs, slice(i, i + 1)) for i in range(len(next(iter(inputs.values()))))]
        third = max(1, len(singles) // 3)
        uneven = [rows_of(inputs, slice(0, third)), rows_of(inputs, slice(third, None))]
        same("value of batches of one row", value_of(case.make(), *singles), expected)
        same("value of uneven batches", value_of(case.make(), *uneven), expected)
        same("value of the rows in another order", value_of(case.make(), *reversed(singles)), expected)
        # A metric with full state updates refuses to be merged, and says so.
        if case.make().full_state_update is False:
            parts = [case.make() for _ in uneven]
            for part, piece in zip(parts, uneven, strict=True):
                part.update(**piece)
            parts[0].merge_state(parts[1])
            same("value of two halves merged", parts[0].compute(), expected)
