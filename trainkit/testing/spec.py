"""Spec records: what a test needs to know of a part beyond what its class says.

Which properties apply is read from the class; a record adds what cannot be read: inputs, reference values, calls that
must fail, invariances that the method promises.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = [
    "BadCall",
    "CalibratorSpec",
    "CallbackSpec",
    "Golden",
    "Invariance",
    "LoaderSpec",
    "LossSpec",
    "MetricSpec",
    "ModuleSpec",
    "OptimizerSpec",
    "SamplerSpec",
    "Spec",
]


@dataclass(frozen=True)
class Golden:
    """A record of reference values and the call that must give them.

    Args:
        name: Name of the record.
        expected: Values by name; ``value`` is the result, ``grad`` maps input names to gradients.
        run: Gives the same names, computed by the part.
        rtol: Relative tolerance of the values.
        grad_rtol: Relative tolerance of the gradients.
    """

    name: str
    expected: Mapping[str, Any]
    run: Callable[[], Mapping[str, Any]]
    rtol: float = 1e-9
    grad_rtol: float = 1e-7


@dataclass(frozen=True)
class BadCall:
    """A call that must fail with one clear sentence.

    Args:
        error: Type of the exception.
        match: Text that the message holds: the argument and the value.
        config: Constructor arguments, on top of the first configuration.
        inputs: Tensors by name, on top of drawn inputs of 4 rows; empty if the constructor already fails.
    """

    error: type[Exception]
    match: str
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Invariance:
    """A change of the inputs that leaves the value as it is, for example a shift of the logits."""

    name: str
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Fields that records of all families share.

    Args:
        cls: The class.
        kind: Name of the input kind, see :mod:`trainkit.testing.kinds`.
        kinds: Input kinds of single configurations, by their index, where they differ.
        reference: Independent implementation in plain Python: takes the tensors as nested lists, by name, and the
            configuration, and gives the value.
        sizes: Numbers of rows to try for single configurations, by their index, where the usual ones cost too much.
        configs: Constructor arguments; the first are the defaults, as far as the class has them.
        golden: Records of reference values.
        errors: Calls that must fail.
        seeds: Catalogue ids of the systems that the class covers.
        smallest: Fewest rows that the part is defined on.
        exempt: Properties that apply and do not hold, with the reason; ``"L8"`` or, for one configuration, ``"L8@1"``.
    """

    cls: type[Any]
    kind: str = "classification"
    kinds: Mapping[int, str] = field(default_factory=dict)
    sizes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    smallest: int = 1
    reference: Callable[..., Any] | None = None
    configs: Sequence[Mapping[str, Any]] = ({},)
    golden: Sequence[Golden] = ()
    errors: Sequence[BadCall] = ()
    seeds: Sequence[str] = ()
    exempt: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Import path of the class."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"


@dataclass(frozen=True, kw_only=True)
class LossSpec(Spec):
    """Record of a loss.

    Args:
        function: The functional form.
        invariances: Changes of the inputs that leave the value as it is.
    """

    function: Callable[..., Any] | None = None
    invariances: Sequence[Invariance] = ()


@dataclass(frozen=True, kw_only=True)
class MetricSpec(Spec):
    """Record of a metric.

    Args:
        function: The functional form.
        exact: Whether the value over any split of the data equals the value in one pass.
        perfect: Changes drawn inputs into ones with the best value.
        worst: Changes drawn inputs into ones with a worse value than ``perfect``.
        bounds: Least and largest possible value.
    """

    function: Callable[..., Any] | None = None
    exact: bool = True
    perfect: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    worst: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CalibratorSpec(Spec):
    """Record of a calibrator.

    ``reference`` takes logits and target of a fit, and gives numbers of the ``state_dict`` by name; ``probs`` are the
    calibrated probabilities. ``inputs`` of ``errors`` are those of ``fit``.

    Args:
        function: The functional form, which gives what is fitted.
        fitted: Name of the buffer that the function gives, if it gives one tensor.
    """

    function: Callable[..., Any] | None = None
    fitted: str = ""


@dataclass(frozen=True, kw_only=True)
class ModuleSpec(Spec):
    """Record of a module that is no loss.

    Outputs are a tensor, a tuple or a mapping of tensors. ``reference`` may also take ``state``: parameters and buffers
    before the call, by name, as nested lists.

    Args:
        call: Runs the module on inputs by name, importable by name in another process; it gets every tensor of the
            kind. Default: ``module(**inputs)`` on those that ``forward`` names.
    """

    kind: str = "embeddings"
    call: Callable[[Any, dict[str, Tensor]], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Spec):
    """Record of an optimizer; ``configs`` hold everything but the parameters.

    ``reference(parameters, gradients, config)`` gives the parameters after each step: ``parameters`` are float64 numpy
    arrays, ``gradients`` a list over steps of lists over parameters (None for a parameter without gradient), ``config``
    is the configuration as it stands, without the defaults. ``errors`` are calls of the constructor; ``inputs`` may
    hold ``params``. ``kind`` is of no use.

    Args:
        decoupled: Whether ``weight_decay`` multiplies the parameters by 1 - lr * weight_decay and leaves the state
            alone; None where that is not known. It otherwise only has to make parameters smaller.
        found_inf: Whether an attribute ``found_inf`` of 1, as a gradient scaler sets it, skips the step.
        convergence: Gives, for class and configuration, a figure and the bound that it must stay under. Default: the
            share of the loss of a noisy least-squares problem that is left after 100 steps, under 0.5.
    """

    kind: str = ""
    decoupled: bool | None = True
    found_inf: bool = False
    convergence: Callable[[type[Any], Mapping[str, Any]], tuple[float, float]] | None = None


@dataclass(frozen=True, kw_only=True)
class SamplerSpec(Spec):
    """Record of a sampler; ``configs`` hold everything but ``num_replicas`` and ``rank``.

    ``reference(rows, epoch, **config)`` gives the order of an epoch on one process.

    Args:
        batch_size: Name of the constructor argument that holds the global batch size.
        dataset: Gives the first constructor argument for a number of rows.
    """

    batch_size: str = "batch_size"
    dataset: Callable[[int], Any] = range


@dataclass(frozen=True, kw_only=True)
class LoaderSpec(Spec):
    """Record of a loader that can be resumed; its first argument is the data set, ``configs`` hold the rest.

    ``reference(rows, epoch, **config)`` gives the row numbers of each batch of an epoch on one process.

    Args:
        batch_size: Name of the constructor argument that holds the global batch size.
    """

    batch_size: str = "batch_size"


@dataclass(frozen=True, kw_only=True)
class CallbackSpec(Spec):
    """Record of a Lightning callback.

    Args:
        passive: Whether training is bitwise the same with and without.
    """

    passive: bool = False
