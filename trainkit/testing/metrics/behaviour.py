"""Properties of metrics: how they behave as modules, and what they say of themselves."""

import copy
import inspect
import math
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from trainkit.testing.common import holds_modules, quiet
from trainkit.testing.configs import check_config
from trainkit.testing.faults import Fault, require
from trainkit.testing.metrics.common import Batch, MetricCase, leaves_of, rows_of, same, value_of
from trainkit.testing.properties import prop

HALVES = (torch.bfloat16, torch.float16)


def _check_collections(case: MetricCase) -> None:
    """Beside another configuration in a MetricCollection, after a batch without rows, the value is its own."""
    from torchmetrics import MetricCollection

    inputs, kinds = case.inputs(case.sizes[-1]), case.spec.kinds
    expected = value_of(case.make(), inputs)
    for index, config in enumerate(case.spec.configs):
        if index == case.index or kinds.get(index, case.spec.kind) != kinds.get(case.index, case.spec.kind):
            continue
        collection = MetricCollection({"own": case.make(), "other": case.spec.cls(**config)})
        collection.update(**rows_of(inputs, slice(0, 0)))
        collection.update(**inputs)
        value = collection.compute()
        # A collection flattens metrics that give mappings, and puts their names before keys that two of them have.
        flat = {k.removeprefix("own_"): v for k, v in value.items() if k != "other" and not k.startswith("other_")}
        same(f"value in a collection beside {config}", value.get("own", flat), expected)


@prop("M6", "copies and configuration")
def copies(case: MetricCase) -> None:
    """A reset metric is as new; copies, pickles and collections hold the state; configuration and repr say all."""
    first, second = case.inputs(case.sizes[-1]), case.inputs(case.sizes[-1], seed=1)
    metric = case.make()
    value = value_of(metric, first)
    both = value_of(case.make(), first, second)
    for what, other in {
        "a deep copy": copy.deepcopy(metric),
        "a clone": metric.clone(),
        "a pickle": pickle.loads(pickle.dumps(metric)),  # noqa: S301 - our own bytes
    }.items():
        same(f"value of {what}", other.compute(), value, rtol=0)
        same(f"value of {what} after an update", value_of(other, second), both)
        require(hash(other) != hash(metric), f"hash of {what}", "another than the original's", hash(other))
    same("value after updates of the copies", metric.compute(), value, rtol=0)
    metric.reset()
    for name, state in case.make().metric_state.items():
        same(f"state {name} after a reset", getattr(metric, name), state, rtol=0)
    same("value after a reset and an update", value_of(metric, second), value_of(case.make(), second), rtol=0)
    built = check_config(case.spec.cls, case.config, nn.Module)
    require(repr(built) == repr(case.make()), "repr of the part built from its configuration", case.make(), built)
    same("value of the part built from its configuration", value_of(built, first), value, rtol=0)
    _check_collections(case)
    if type(metric).extra_repr is not nn.Module.extra_repr:
        for name in inspect.signature(case.spec.cls).parameters:
            if not holds_modules(getattr(metric, name, None)):
                require(f"{name}=" in repr(metric), "repr", f"a text with {name}=", repr(metric))


@prop("M7", "state_dict")
def state_dict(case: MetricCase) -> None:
    """The state_dict is empty; of a persistent metric it holds the state, and the metric goes on from it."""
    first, second = case.inputs(case.sizes[-1]), case.inputs(case.sizes[-1], seed=1)
    metric, restored = case.make(), case.make()
    metric.update(**first)
    require(not metric.state_dict(), "keys of the state_dict", [], list(metric.state_dict()))
    metric.persistent(True)
    restored.persistent(True)
    states = set(metric.metric_state)
    require(set(metric.state_dict()) == states, "keys when persistent", sorted(states), sorted(metric.state_dict()))
    restored.load_state_dict(metric.state_dict())
    same("value after loading and an update", value_of(restored, second), value_of(metric, second), rtol=0)


CASTS: Mapping[str, Callable[[Any], Any]] = {
    "to(bfloat16)": lambda m: m.to(torch.bfloat16),
    "half()": lambda m: m.half(),
    "bfloat16()": lambda m: m.bfloat16(),
    "set_dtype(bfloat16)": lambda m: m.set_dtype(torch.bfloat16),
    "a cast of the module that holds it": lambda m: nn.ModuleList([m]).to(torch.bfloat16),
}


@prop("M8", "dtypes")
def dtypes(case: MetricCase) -> None:
    """Inputs of any precision, also under autocast, count as if upcast; casts of the metric leave state and value."""
    results: set[torch.dtype] = set()
    for n in case.sizes:
        for dtype in (*HALVES, torch.float32, torch.float64):
            inputs = case.inputs(n, dtype)
            wide = torch.float32 if dtype in HALVES else torch.float64
            upcast = {k: v.to(wide) if v.is_floating_point() else v for k, v in inputs.items()}
            expected = value_of(case.make(), upcast)
            for on in (False, True):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                    got = value_of(case.make(), inputs)
                what = f"value for {str(dtype).removeprefix('torch.')} input {'under' if on else 'without'} autocast"
                same(what, got, expected, rtol=1e-4 if dtype == torch.float32 else 1e-5)
                results.update(value.dtype for _, value in leaves_of(got))
    require(len(results) == 1, "dtypes of the result", "one for inputs of any dtype", sorted(map(str, results)))
    first, second = case.inputs(case.sizes[-1]), case.inputs(case.sizes[-1], seed=1)
    for name, cast in CASTS.items():
        kept, metric = case.make(), case.make()
        value, _ = value_of(kept, first), value_of(metric, first)
        cast(metric)
        same(f"value after {name}", metric.compute(), value, rtol=0)
        for state, before in kept.metric_state.items():
            after = getattr(metric, state)
            require(
                _dtypes(after) == _dtypes(before), f"dtype of {state} after {name}", _dtypes(before), _dtypes(after)
            )
        same(f"value after {name} and an update", value_of(metric, second), value_of(kept, second), rtol=0)
        metric.reset()
        same(f"value after {name}, a reset and an update", value_of(metric, first), value, rtol=0)


def _dtypes(state: Any) -> list[torch.dtype]:
    return [v.dtype for v in ([state] if isinstance(state, Tensor) else state)]


def _computed(metric: Any) -> Any:
    """Value of a metric that has no data, which may be nan with one warning."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        value = metric.compute()
    told = [f"{w.category.__name__}: {w.message}" for w in heard]
    fine = len(told) <= 1 and all(issubclass(w.category, UserWarning) for w in heard)
    require(fine, "warnings of compute without data", "at most one UserWarning", told)
    for name, part in leaves_of(value):
        require(not part.isinf().any(), f"value without data{name}", "finite or nan", part)
    return value


@prop("M9", "edges and errors")
def edges(case: MetricCase) -> None:
    """Updates without rows or with all ignored change nothing; wrong calls and nan raise one clear sentence."""
    inputs = case.inputs(4) if case.rows is None else case.inputs(case.sizes[0])
    value, nothing = value_of(case.make(), inputs), _computed(case.make())
    target = next((k for k, source in case.names().items() if source == "target"), None)
    without = {"without rows": rows_of(inputs, slice(0, 0))}
    if target and case.ignore_index is not None:
        without["with all ignored"] = {**inputs, target: torch.full_like(inputs[target], case.ignore_index)}
    for what, batch in without.items():
        same(f"value after another update {what}", value_of(case.make(), inputs, case.seen(batch)), value, rtol=0)
        metric = case.make()
        metric.update(**batch)
        same(f"value of only an update {what}", _computed(metric), nothing, rtol=0)
    wrong = {f"{target} with a row less": {**inputs, target: inputs[target][:-1]}} if target else {}
    for name in case.differentiable():
        for bad in (math.nan, math.inf):
            wrong[f"{name} with {bad}"] = {**inputs, name: inputs[name].index_fill(0, torch.tensor([0]), bad)}
    for what, batch in wrong.items():
        got = _attempted(case, {}, case.seen(batch))
        require(isinstance(got, Exception), what, "an exception", got)
    for listed in case.spec.errors if case.index == 0 else ():
        got = _attempted(case, listed.config, case.seen({**inputs, **listed.inputs}))
        clear = isinstance(got, listed.error) and case.spec.cls.__name__ in str(got) and listed.match in str(got)
        expected = f"{listed.error.__name__}: {case.spec.cls.__name__}: {listed.match}"
        require(clear, f"call with {', '.join([*listed.config, *listed.inputs])}", expected, repr(got))


def _attempted(case: MetricCase, config: Mapping[str, Any], batch: Batch) -> Any:
    """Value of a call that should fail, or what it raised."""
    try:
        return value_of(case.make(**config), batch)
    except Exception as error:
        return error


def _finite(value: Any) -> Tensor:
    """All numbers of a value but nan."""
    flat = torch.cat([part.detach().double().reshape(-1) for _, part in leaves_of(value)])
    return flat[~flat.isnan()]


@prop("M10", "flags are true")
def flags(case: MetricCase) -> None:
    """Gradients are right if the class says is_differentiable and absent if not; direction and bounds are true."""
    told = case.spec.cls.is_differentiable
    require(isinstance(told, bool), "is_differentiable", "True or False", told)
    for n in case.sizes:
        inputs = case.inputs(n)
        # Differences need fp64 states; ours have them, and those of others may be told.
        metric = case.make().set_dtype(torch.float64) if told else case.make()
        for function in [metric, *([_function(case)] if case.spec.function else [])]:
            _check_gradients(case, function, inputs, told)
        changes = {"perfect": case.spec.perfect, "worst": case.spec.worst}
        made = {k: value_of(case.make(), case.seen(f(dict(inputs)))) for k, f in changes.items() if f is not None}
        drawn = value_of(case.make(), inputs)
        sign = {True: 1, False: -1}.get(case.spec.cls.higher_is_better, 0)
        if sign and "perfect" in made:
            best = sign * _finite(made["perfect"]).mean()
            for name, other in {"drawn": drawn, **made}.items():
                against = sign * _finite(other).mean()
                better = best > against if name == "worst" else best >= against
                require(bool(better), f"value of perfect inputs against {name} ones", "the better one", (made, drawn))
        low, high = case.spec.bounds or (-math.inf, math.inf)
        for name, value in {"drawn": drawn, **made}.items():
            finite = _finite(value)
            inside = bool(((finite >= low) & (finite <= high)).all())
            require(inside, f"value of {name} inputs", f"in [{low:g}, {high:g}]", value)


def _function(case: MetricCase) -> Callable[..., Any]:
    def call(**inputs: Any) -> Any:
        return case.spec.function(**inputs, **case.config)  # type: ignore[misc]

    return call


def _check_gradients(case: MetricCase, function: Any, inputs: Batch, differentiable: bool) -> None:
    leaves, names = case.leaves(inputs), case.differentiable()

    def value(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(part for _, part in leaves_of(function(**{**leaves, **dict(zip(names, tensors, strict=True))})))

    tensors = [leaves[name] for name in names]
    if not differentiable:
        require(not any(v.requires_grad for v in value(*tensors)), "graph of the value", "none", "one")
        return
    try:
        torch.autograd.gradcheck(value, tensors, eps=1e-6, atol=1e-6, rtol=1e-4)
    except GradcheckError as error:
        lines = " ".join(str(error).splitlines()[:6])
        raise Fault("gradient against central differences", "equal to 1e-4", lines) from error


def _grows(case: MetricCase) -> str | None:
    grows = "memory grows" in (case.spec.cls.__doc__ or "")
    return "its docstring says that its memory grows" if grows else None


@prop("M11", "constant memory", needs=_grows)
def memory(case: MetricCase) -> None:
    """After 50 updates the metric takes the memory that it took after one."""
    metric = case.make()
    sizes = []
    for updates in (1, 49):
        for seed in range(updates):
            metric.update(**case.inputs(case.sizes[-1], seed=seed))
        lists = [name for name, state in metric.metric_state.items() if isinstance(state, list)]
        require(not lists, "states that are lists", [], lists)
        sizes.append(len(pickle.dumps(metric)))
    # Numbers may take some bytes more when they have more digits.
    require(sizes[1] <= sizes[0] + 100, "bytes of its pickle after 50 updates", f"{sizes[0]} as after one", sizes[1])


def _no_number(case: MetricCase) -> str | None:
    value = value_of(case.make(), case.inputs(case.sizes[-1]))
    return None if isinstance(value, Tensor) and value.numel() == 1 else "its value is no single number to log"


def _fit(metric: Any, epochs: Sequence[list[Batch]]) -> tuple[Any, Tensor]:
    """Train a small module that logs ``metric`` (None for none); gives what it logged last, and its weights."""
    from lightning.pytorch import LightningModule, Trainer

    class Probe(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.metric = metric

        def training_step(self, batch: int) -> Tensor:
            if self.metric is not None:
                self.metric(**epochs[self.current_epoch][batch])
                self.log("value", self.metric, on_step=False, on_epoch=True, batch_size=1)
            loss: Tensor = self.layer(torch.rand(3, 2)).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    probe = Probe()
    with quiet("lightning.pytorch", "lightning.fabric"):
        trainer = Trainer(
            max_epochs=len(epochs),
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(probe, train_dataloaders=range(len(epochs[0])))
    return trainer.callback_metrics.get("value"), probe.layer.weight.detach()


@prop("M12", "inside a LightningModule", needs=_no_number, dear=True)
def in_lightning(case: MetricCase) -> None:
    """What self.log gives in the second epoch is the value of that epoch, and the training is as without the metric."""
    epochs = [[case.inputs(n, seed=seed) for n in case.sizes] for seed in (0, 1)]
    logged, weights = _fit(case.make(), epochs)
    same("value logged in the second epoch", logged, value_of(case.make(), *epochs[1]), rtol=1e-5)
    _, without = _fit(None, epochs)
    require(torch.equal(weights, without), "weights after training with the metric", without, weights)
