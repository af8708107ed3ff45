"""What wrappers of a metric share: the states of that metric once for each of some slots that rows are dealt to."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from trainkit._core.checks import reject
from trainkit._core.metric import RowMetric
from trainkit._core.numerics import sum_dtype
from trainkit._core.repr import hyper_parameters

__all__ = ["SlotMetric"]


class SlotMetric(RowMetric):
    """Holds the states of ``metric`` for each slot, so that its value over any set of slots can be told.

    Sums are stacked; rows are kept together, each with its slot. The metric itself holds nothing between two calls.
    ``filled`` counts the rows of each slot.

    Args:
        metric: A metric whose states are sums, or rows of a :class:`RowMetric`.
        slots: Number of slots.
        own: Name of the argument of ``update`` that says where rows go.
        required: Whether that argument has to be given.
    """

    is_differentiable = False

    slot: Tensor
    filled: Tensor

    def __init__(self, metric: Metric, slots: int, own: str, required: bool) -> None:
        owner = type(self).__name__
        if not isinstance(metric, Metric):
            reject(owner, "metric", "be a metric", metric, TypeError)
        self._signature = _signature(owner, metric, own, required)
        self._own = own
        self._shared = own in inspect.signature(metric.update).parameters
        super().__init__()
        if isinstance(metric, SlotMetric):
            self._refuse(metric)
        self.metric = metric.clone()
        self.metric.reset()
        # What is computed of it has been gathered already.
        self.metric._to_sync = False
        self._slots = slots
        self._before = 0
        inner = self.metric if isinstance(self.metric, RowMetric) else None
        self._inner_rows = () if inner is None else inner._row_names
        # A state without entries only tells metrics apart.
        states = self.metric._defaults.items()
        self._inner_sums = tuple(
            k for k, v in states if k not in self._inner_rows and (isinstance(v, list) or v.numel())
        )
        for name in self._inner_sums:
            self._add_sum(owner, name)
        self.add_counts("filled", shape=(slots,))
        if self._inner_rows:
            self.add_rows("slot", *(_stacked(name) for name in self._inner_rows))

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """That of the metric."""
        better: bool | None = self.metric.higher_is_better
        return better

    def extra_repr(self) -> str:
        return hyper_parameters(self)

    def _refuse(self, metric: "SlotMetric") -> None:
        """Raise where this wrapper can't go around that one."""

    def _add_sum(self, owner: str, name: str) -> None:
        state, reduction = self.metric._defaults[name], self.metric._reductions[name]
        if not isinstance(state, Tensor) or getattr(reduction, "__name__", "") != "dim_zero_sum":
            reject(owner, "metric", f"have states that are sums or rows, which {name!r} is not", self.metric, TypeError)
        self.add_state(_stacked(name), state.new_zeros(self._slots, *state.shape), dist_reduce_fx="sum")

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        wrapped = super()._wrap_update(update)
        # Who binds by name sees what the metric takes.
        wrapped.__signature__ = self._signature  # type: ignore[attr-defined]
        return wrapped

    def update(self, *args: Any, **kwargs: Any) -> None:
        inputs = dict(self._signature.bind(*args, **kwargs).arguments)
        own = inputs.get(self._own) if self._shared else inputs.pop(self._own, None)
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        first = next(iter(tensors), None)
        if first is None or tensors[first].dim() == 0:
            reject(type(self).__name__, first or "inputs", "have a dimension of rows", inputs.get(first or "", inputs))
        count = len(tensors[first])
        for name, value in tensors.items():
            if value.dim() == 0 or len(value) != count:
                reject(type(self).__name__, name, f"have {count} rows, as {first}", value)
        self.deal(self.slots_of(own, count), inputs)

    def slots_of(self, own: Any, count: int) -> Tensor:
        """Slot of each of ``count`` rows, for what came as the argument of this wrapper; below zero for none."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # It resets the metric for the batch, whose rows go on from those before nevertheless.
        self._before = int(self.filled.sum())
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._before = 0

    def deal(self, slots: Tensor, inputs: Mapping[str, Any]) -> None:
        """Add rows, each to its slot; those in slots below zero are left out.

        Args:
            slots: Slot of each row, (N,).
            inputs: What ``update`` of the metric takes, by name.
        """
        order = slots.argsort(stable=True)
        numbers, counts = slots[order].unique_consecutive(return_counts=True)
        added = {name: torch.zeros_like(getattr(self, _stacked(name))) for name in self._inner_sums}
        rows: dict[str, list[Tensor]] = {name: [] for name in ("slot", *self._inner_rows)}
        start = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            chosen = order[start : start + count]
            start += count
            if number < 0:
                continue
            self.metric.reset()
            # Not through the instance, whose wrapper would count updates and warn.
            type(self.metric).update(
                self.metric, **{k: v[chosen] if isinstance(v, Tensor) else v for k, v in inputs.items()}
            )
            for name in self._inner_sums:
                added[name][number] += getattr(self.metric, name)
            for name in self._inner_rows:
                rows[name].append(getattr(self.metric, name))
            if self._inner_rows:
                kept = len(rows[self._inner_rows[0]][-1])
                rows["slot"].append(torch.full((kept,), number, dtype=torch.int64, device=slots.device))
        self.metric.reset()
        # Only here, so that nothing is added where a part is refused.
        self.filled = self.filled + slots[slots >= 0].bincount(minlength=self._slots)
        for name, sums in added.items():
            setattr(self, _stacked(name), getattr(self, _stacked(name)) + sums)
        for name, parts in rows.items():
            if parts:
                self.append(name if name == "slot" else _stacked(name), torch.cat(parts))

    def load(self, counts: Tensor) -> None:
        """Give the metric the states of all rows, those of slot j ``counts[j]`` times."""
        self.metric.reset()
        for name in self._inner_sums:
            stacked = getattr(self, _stacked(name))
            # Through floating point, since not every device has a product of integer matrices; counts fit exactly.
            dtype = sum_dtype(stacked.device)
            sums = counts.to(stacked.device, dtype) @ stacked.reshape(self._slots, -1).to(dtype)
            setattr(self.metric, name, sums.reshape(stacked.shape[1:]).to(stacked.dtype))
        if self._inner_rows and len(self.slot):
            times = counts.to(self.slot.device)[self.slot]
            for name in self._inner_rows:
                setattr(self.metric, name, getattr(self, _stacked(name)).repeat_interleave(times, 0))

    def value(self, counts: Tensor, warn: bool = False) -> Any:
        """Value of the metric over all rows, those of slot j ``counts[j]`` times, with or without its warnings."""
        self.load(counts)
        self.metric._update_count = int(warn)
        found = type(self.metric).compute(self.metric)
        self.metric.reset()
        return found


def _stacked(name: str) -> str:
    return f"slots_of_{name}"


def _signature(owner: str, metric: Metric, own: str, required: bool) -> inspect.Signature:
    """That of the metric's update with the argument of the wrapper behind it."""
    given = inspect.signature(metric.update)
    parameters = list(given.parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        reject(owner, "metric", "name the arguments of its update", metric, TypeError)
    if own in given.parameters:
        return given
    default = inspect.Parameter.empty if required else None
    return given.replace(
        parameters=[*parameters, inspect.Parameter(own, inspect.Parameter.KEYWORD_ONLY, default=default)]
    )
