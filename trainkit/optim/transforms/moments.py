"""Moments of the gradient, and what divides by them."""

from dataclasses import dataclass
from typing import Literal

from trainkit._core.checks import check_choice, check_flag, check_integer, check_number
from trainkit.optim._tape import Ops, Register, Scalar
from trainkit.optim.transforms._base import Fields, Hyper, Scalars, Slot, indicator, not_negative, weight_sum

__all__ = [
    "BiasCorrect",
    "Centre",
    "CentredSecondMoment",
    "Divide",
    "Momentum",
    "RateMomentum",
    "Rectify",
    "SecondMoment",
    "Variance",
]

TINY = 1e-30
"""Far below any learning rate, and above the smallest fp32 number."""


def _make_denominator(ops: Ops, fields: Fields, moment: Register, numbers: Scalars, inside: bool = False) -> None:
    """Root of a bias-corrected moment with eps outside of it, or inside."""
    out = Register()
    if inside:
        ops.mul(out, moment, numbers["correction"])
        ops.add(out, out, numbers["eps"])
        ops.sqrt(out, out)
    else:
        # sqrt(v) c + eps = c (sqrt(v) + eps / c): the factor goes to the quotient, where it costs no pass.
        ops.sqrt(out, moment)
        ops.add(out, out, numbers["scaled_eps"])
        fields.factor = numbers["factor"]
    fields.denominator = out


def _denominator_of(fields: Fields, reader: str) -> Register:
    """The denominator, which a transform before must have made."""
    if fields.denominator is None:
        raise ValueError(f"{reader} needs a transform before it that makes a denominator, such as SecondMoment")
    return fields.denominator


def _numbers(hyper: Hyper, step: Scalar) -> dict[str, Scalar]:
    """What a second moment and its denominator need."""
    beta, eps = hyper["betas"][1], hyper["eps"]
    weights = weight_sum(beta, step) if hyper.get("bias_correction", True) else 1.0
    factor = weights**0.5
    return {
        "beta2": beta,
        "rest2": 1.0 - beta,
        "eps": eps,
        "scaled_eps": eps * factor,
        "correction": 1.0 / weights,
        "factor": factor,
    }


@dataclass(frozen=True)
class Momentum:
    """Exponential average of the update with the first of ``betas``, without bias correction."""

    def check(self, owner: str, hyper: Hyper) -> None: ...

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return (Slot("exp_avg", "first"),)

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        beta = hyper["betas"][0]
        return {"beta": beta, "rest": 1.0 - beta}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        fields.update.average_into(fields.state["exp_avg"], numbers["beta"], numbers["rest"])


@dataclass(frozen=True)
class RateMomentum:
    """Average of the update times the learning rate, divided by the same average of the learning rate."""

    def check(self, owner: str, hyper: Hyper) -> None: ...

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return (Slot("exp_avg", "first"), Slot("lr_average", "other", "scalar"))

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        beta = hyper["betas"][0]
        return {"beta": beta, "share": (1.0 - beta) * hyper["lr"]}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        average, rate, own, divisor = fields.state["exp_avg"], fields.state["lr_average"], Register(), Register()
        ops.mul(own, fields.update.get(), numbers["share"])
        ops.mul(average, average, numbers["beta"])
        ops.add(average, average, own)
        ops.mul(rate, rate, numbers["beta"])
        ops.add(rate, rate, numbers["share"])
        # Before the first rate above zero both averages are zero.
        ops.max(divisor, rate, TINY)
        fields.update.set(average)
        fields.update.divide(divisor)


@dataclass(frozen=True)
class BiasCorrect:
    """Division by the sum of the weights of the average with the first of ``betas``."""

    bias_correction: bool = True

    def check(self, owner: str, hyper: Hyper) -> None:
        check_flag(owner, bias_correction=hyper["bias_correction"])

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return ()

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        return {"factor": 1.0 / weight_sum(hyper["betas"][0], step)}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        if hyper["bias_correction"]:
            fields.update.multiply(numbers["factor"])


@dataclass(frozen=True)
class SecondMoment:
    """Average of the squared update with the second of ``betas``; its corrected root plus eps is the denominator.

    Args:
        amsgrad: Take the largest average so far.
    """

    amsgrad: bool = False

    def check(self, owner: str, hyper: Hyper) -> None:
        check_flag(owner, amsgrad=hyper["amsgrad"])

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        largest = (Slot("max_exp_avg_sq", "second"),) if hyper["amsgrad"] else ()
        return (Slot("exp_avg_sq", "second"), *largest)

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        return _numbers(hyper, step)

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        x, moment = fields.update.get(), fields.state["exp_avg_sq"]
        ops.mul(moment, moment, numbers["beta2"])
        ops.addcmul(moment, moment, x, x, numbers["rest2"])
        if hyper["amsgrad"]:
            largest = fields.state["max_exp_avg_sq"]
            ops.max(largest, largest, moment)
            moment = largest
        _make_denominator(ops, fields, moment, numbers)


@dataclass(frozen=True)
class CentredSecondMoment:
    """Average of the squared distance of the update from its own average; its root plus eps is the denominator.

    Args:
        centre: The average that is subtracted: ``"post"`` with this step's update in it, ``"pre"`` without,
            ``"pre_hat"`` without and bias-corrected, ``"none"`` for zero.
        eps_s: Added to the average at every step.
        eps_mode: Whether ``eps`` is added ``"outside"`` of the root or ``"inside"``.
        beta_centre: Factor of the centre's average; None takes the first of ``betas``.
        bias_correction: Divide the average by the sum of its weights.
    """

    centre: Literal["post", "pre", "pre_hat", "none"] = "post"
    eps_s: float = 0.0
    eps_mode: Literal["outside", "inside"] = "outside"
    beta_centre: float | None = None
    bias_correction: bool = True

    def check(self, owner: str, hyper: Hyper) -> None:
        check_choice(owner, "centre", hyper["centre"], ("post", "pre", "pre_hat", "none"))
        check_number(owner, "eps_s", hyper["eps_s"], minimum=0)
        check_choice(owner, "eps_mode", hyper["eps_mode"], ("outside", "inside"))
        if hyper["beta_centre"] is not None:
            check_number(owner, "beta_centre", hyper["beta_centre"], minimum=0, maximum=1, open_maximum=True)
        check_flag(owner, bias_correction=hyper["bias_correction"])

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        centre = () if hyper["centre"] == "none" else (Slot("centre", "first"),)
        return (*centre, Slot("exp_avg_sq", "second"))

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        beta = hyper["betas"][0] if hyper["beta_centre"] is None else hyper["beta_centre"]
        before = step - 1.0
        # At the first step there is no average yet, and its correction would be a division by zero.
        first = indicator(before == 0)
        return {
            **_numbers(hyper, step),
            "rest": 1.0 - beta,
            "before": (1.0 - first) / (weight_sum(beta, before) + first),
            "eps_s": hyper["eps_s"],
        }

    def _distance(self, ops: Ops, fields: Fields, numbers: Scalars, kind: str) -> Register:
        x = fields.update.get()
        if kind == "none":
            return x
        centre, distance = fields.state["centre"], Register()
        if kind == "post":
            ops.lerp(centre, centre, x, numbers["rest"])
            ops.sub(distance, x, centre)
            return distance
        if kind == "pre":
            ops.sub(distance, x, centre)
        else:
            ops.mul(distance, centre, numbers["before"])
            ops.sub(distance, distance, x)
        ops.lerp(centre, centre, x, numbers["rest"])
        return distance

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        distance, moment = self._distance(ops, fields, numbers, hyper["centre"]), fields.state["exp_avg_sq"]
        ops.mul(moment, moment, numbers["beta2"])
        ops.addcmul(moment, moment, distance, distance, numbers["rest2"])
        if hyper["eps_s"] != 0:
            ops.add(moment, moment, numbers["eps_s"])
        _make_denominator(ops, fields, moment, numbers, inside=hyper["eps_mode"] == "inside")


@dataclass(frozen=True)
class Centre:
    """The centre of a CentredSecondMoment as the update."""

    def check(self, owner: str, hyper: Hyper) -> None: ...

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return ()

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        return {}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        if "centre" not in fields.state:
            raise ValueError("Centre needs a CentredSecondMoment before it")
        fields.update.set(fields.state["centre"])


@dataclass(frozen=True)
class Variance:
    """Average of the squared update less the square of its mean, both with the second of ``betas``.

    Its corrected root plus eps is the denominator.

    Args:
        mean_after: Steps after which the mean is subtracted.
    """

    mean_after: int = 10

    def check(self, owner: str, hyper: Hyper) -> None:
        check_integer(owner, "mean_after", hyper["mean_after"], minimum=0)

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return (Slot("exp_avg_sq", "second"), Slot("mean", "first"))

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        return {**_numbers(hyper, step), "centred": -indicator(step > hyper["mean_after"])}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        x, moment, mean, variance = fields.update.get(), fields.state["exp_avg_sq"], fields.state["mean"], Register()
        ops.mul(moment, moment, numbers["beta2"])
        ops.addcmul(moment, moment, x, x, numbers["rest2"])
        ops.lerp(mean, mean, x, numbers["rest2"])
        ops.mul(variance, mean, mean)
        ops.mul(variance, variance, numbers["centred"])
        ops.add(variance, variance, moment)
        # Equal gradients leave a difference of zero, which rounding may carry below.
        ops.max(variance, variance, 0.0)
        _make_denominator(ops, fields, variance, numbers)


@dataclass(frozen=True)
class Rectify:
    r"""Replaces the denominator by one, and later rescales it, where the second moment comes from few steps.

    With :math:`\rho_\infty = 2 / (1 - \beta_2) - 1` and
    :math:`\rho_t = \rho_\infty - 2 t \beta_2^t / (1 - \beta_2^t)`, the update is multiplied by the root of
    :math:`(\rho_t - 4)(\rho_t - 2) \rho_\infty / ((\rho_\infty - 4)(\rho_\infty - 2) \rho_t)` once
    :math:`\rho_t` reaches the threshold.

    Args:
        threshold: Length of the average from which on the update is divided.
    """

    threshold: float = 5.0

    def check(self, owner: str, hyper: Hyper) -> None:
        check_number(owner, "threshold", hyper["threshold"], minimum=4)

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return ()

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        beta = hyper["betas"][1]
        longest = 2.0 / (1.0 - beta) - 1.0
        length = longest - 2.0 * step * beta**step / weight_sum(beta, step)
        ready = indicator(length >= hyper["threshold"])
        ratio = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        return {"ready": ready, "not_ready": 1.0 - ready, "rescale": ready * not_negative(ratio) ** 0.5}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        denominator, late = _denominator_of(fields, "Rectify"), numbers["not_ready"]
        ops.mul(denominator, denominator, numbers["ready"])
        ops.add(denominator, denominator, late)
        fields.factor = fields.factor * numbers["rescale"] + late


@dataclass(frozen=True)
class Divide:
    """Division of the update by the denominator that a transform before it made.

    Args:
        max_ratio: Largest size of an entry of the quotient; None for no limit.
    """

    max_ratio: float | None = None

    def check(self, owner: str, hyper: Hyper) -> None:
        if hyper["max_ratio"] is not None:
            check_number(owner, "max_ratio", hyper["max_ratio"], minimum=0, open_minimum=True)

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return ()

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        most = hyper["max_ratio"]
        return {} if most is None else {"most": most, "least": -most}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        fields.update.divide(_denominator_of(fields, "Divide"))
        fields.update.multiply(fields.factor)
        if hyper["max_ratio"] is not None:
            ratio = fields.update.get()
            ops.min(ratio, ratio, numbers["most"])
            ops.max(ratio, ratio, numbers["least"])
