"""Hold any class to the properties of its family, knowing nothing but the class."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from trainkit._core.binding import accepted
from trainkit.testing import calibrators, callbacks, loaders, losses, metrics, modules, optimizers, samplers
from trainkit.testing.case import Case
from trainkit.testing.kinds import KINDS, kind_for
from trainkit.testing.loaders import build_loader
from trainkit.testing.optimizers.common import build_optimizer, draw_parameters, usable_shapes
from trainkit.testing.pool import Pool
from trainkit.testing.properties import Outcome, Property, conform
from trainkit.testing.samplers import build_sampler
from trainkit.testing.spec import (
    CalibratorSpec,
    CallbackSpec,
    LoaderSpec,
    LossSpec,
    MetricSpec,
    ModuleSpec,
    OptimizerSpec,
    SamplerSpec,
    Spec,
)

__all__ = ["FAMILIES", "cases_of", "check", "family_of", "properties_for", "spec_for"]

PROBES: Mapping[str, tuple[Any, ...]] = {
    "reduction": ("sum", "none"),
    "gamma": (0.0, 0.5),
    "temperature": (0.05,),
    "margin": (0.0,),
    "label_smoothing": (0.1,),
    "normalize": (False,),
    "shuffle": (False,),
    "drop_last": (True,),
    "momentum": (0.9,),
    "weight_decay": (0.1,),
    "amsgrad": (True,),
    "maximize": (True,),
}
"""Values of usual hyper-parameters that show faults which the defaults hide."""


FAMILIES: Mapping[str, tuple[type[Spec], tuple[Property, ...]]] = {
    "losses": (LossSpec, losses.PROPERTIES),
    "metrics": (MetricSpec, metrics.PROPERTIES),
    "modules": (ModuleSpec, modules.PROPERTIES),
    "optimizers": (OptimizerSpec, optimizers.PROPERTIES),
    "samplers": (SamplerSpec, samplers.PROPERTIES),
    "loaders": (LoaderSpec, loaders.PROPERTIES),
    "callbacks": (CallbackSpec, callbacks.PROPERTIES),
    "calibrators": (CalibratorSpec, calibrators.PROPERTIES),
}
"""Families that have properties: the record of a part and the properties it is held to."""


def properties_for(spec: Spec) -> tuple[Property, ...]:
    """The properties of the family that ``spec`` is a record of."""
    return next(properties for record, properties in FAMILIES.values() if isinstance(spec, record))


def family_of(cls: type[Any], kind: str | None = None, init: Mapping[str, Any] | None = None) -> str:
    """Family of a class, read from its bases; a module that gives one number for a batch is a loss, one with a fit a
    calibrator.

    Args:
        cls: The class.
        kind: Name of the input kind, for modules that only a call tells apart.
        init: Constructor arguments for that call.

    Raises:
        ValueError: If the class belongs to no family that has properties.
    """
    bases = {f"{b.__module__.split('.')[0]}.{b.__name__}" for b in cls.__mro__}
    if "torchmetrics.Metric" in bases:
        family = "metrics"
    elif issubclass(cls, torch.utils.data.Sampler):
        family = "samplers"
    elif issubclass(cls, torch.utils.data.DataLoader):
        family = "loaders"
    elif issubclass(cls, torch.optim.Optimizer):
        family = "optimizers"
    elif bases & {"lightning.Callback", "pytorch_lightning.Callback"}:
        family = "callbacks"
    elif issubclass(cls, nn.Module) and hasattr(cls, "fit") and hasattr(cls, "predict_proba"):
        family = "calibrators"
    elif issubclass(cls, nn.Module):
        named = "loss" in cls.__name__.lower() or "reduction" in inspect.signature(cls).parameters
        family = "losses" if named or _gives_a_number(cls, kind, init or {}) else "modules"
    else:
        family = "a class of this sort"
    if family not in FAMILIES:
        raise ValueError(f"{cls.__name__}: there are no properties for {family}, only for {', '.join(FAMILIES)}")
    return family


def _gives_a_number(cls: type[Any], kind: str | None, init: Mapping[str, Any]) -> bool:
    try:
        kind = kind or kind_for([name for name, needed in accepted(cls(**init)) if needed])
        case = Case(LossSpec(cls=cls, kind=kind or "", configs=(init,)))
        value = case.make()(**case.inputs(4, torch.float32))
    except Exception:
        return False
    return isinstance(value, torch.Tensor) and value.dim() == 0


def spec_for(
    cls: type[Any], kind: str | None = None, init: Mapping[str, Any] | None = None, family: str | None = None
) -> Spec:
    """A record for a class of which nothing else is known.

    The first configuration is ``init``; further ones vary the usual hyper-parameters that ``init`` leaves open.

    Args:
        cls: The class.
        kind: Name of the input kind; None takes the first that has the tensors of the call.
        init: Constructor arguments.
        family: Name of the family; None reads it from the class.

    Raises:
        ValueError: If the class can't be built, or no kind has its tensors; says what was tried.
    """
    init = dict(init or {})
    record, _ = FAMILIES[family or family_of(cls, kind, init)]
    try:
        part = _build(record, cls, init)
    except Exception as error:
        tried = f"{cls.__name__}({', '.join(f'{k}={v!r}' for k, v in init.items())})"
        raise ValueError(f"{cls.__name__}: tried {tried}, which raised {type(error).__name__}: {error}") from error
    configs = [init, *_probes(record, cls, init)]
    if record in (SamplerSpec, LoaderSpec, CallbackSpec):
        return record(cls=cls, configs=configs)
    if record is OptimizerSpec:
        return OptimizerSpec(cls=cls, configs=configs, decoupled=None)
    if record is ModuleSpec and cls.forward is nn.Module.forward:
        raise ValueError(f"{cls.__name__}: has no forward; give a record that says how to call it")
    if kind is None:
        required = [name for name, needed in accepted(part) if needed]
        kind = kind_for(required)
        if kind is None:
            raise ValueError(
                f"{cls.__name__}: no input kind has the tensors {', '.join(required)}; name one of {', '.join(KINDS)}"
            )
    elif kind not in KINDS:
        raise ValueError(f"{cls.__name__}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    spec = record(cls=cls, kind=kind, configs=configs)
    Case(spec).names()
    return spec


def _build(record: type[Spec], cls: type[Any], config: Mapping[str, Any]) -> Any:
    """The class in a configuration; samplers and loaders get a data set too, optimizers parameters."""
    if record is SamplerSpec:
        return build_sampler(SamplerSpec(cls=cls), config)
    if record is LoaderSpec:
        return build_loader(LoaderSpec(cls=cls), config)
    if record is OptimizerSpec:
        return build_optimizer(cls, config, draw_parameters(usable_shapes(cls, config)))
    return cls(**config)


def _probes(record: type[Spec], cls: type[Any], init: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Configurations that vary one usual hyper-parameter each, as far as the class takes them."""
    for name, parameter in inspect.signature(cls).parameters.items():
        for value in PROBES.get(name, ()):
            config = {**init, name: value}
            if name in init or value == parameter.default:
                continue
            try:
                _build(record, cls, config)
            except (TypeError, ValueError):
                continue
            yield config


def cases_of(spec: Spec) -> list[Case[Any]]:
    """Each configuration of a record."""

    def sizes(index: int) -> tuple[int, ...]:
        return tuple(n for n in spec.sizes.get(index, Case.sizes) if n >= spec.smallest)

    return [Case(spec, index, sizes(index)) for index in range(len(spec.configs))]


def check(
    cls: type[Any],
    kind: str | None = None,
    *,
    init: Mapping[str, Any] | None = None,
    family: str | None = None,
    spec: Spec | None = None,
    full: bool = True,
) -> Iterator[Outcome]:
    """Hold a class to the properties of its family, on one process and on a pool of two ranks.

    Args:
        cls: A loss, metric, module, optimizer, sampler, loader, callback or calibrator, importable by name.
        kind: Name of the input kind, see :mod:`trainkit.testing.kinds`.
        init: Constructor arguments.
        family: Name of the family; None reads it from the class.
        spec: A full record, in place of the arguments above.
        full: False leaves the dear properties out for all but the first configuration.

    Yields:
        What came of each property, as soon as it is known.

    Example:
        >>> from trainkit.losses import FocalLoss
        >>> from trainkit.testing import check
        >>> outcomes = list(check(FocalLoss, "classification"))  # doctest: +SKIP
    """
    spec = spec or spec_for(cls, kind, init, family)
    properties = properties_for(spec)
    with Pool(2) as pool:
        yield from conform(properties, cases_of(spec), pool, full=full)
