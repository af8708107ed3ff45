"""What a chain does to the gradient at its start and to the update at its end."""

from dataclasses import dataclass
from typing import Literal

from trainkit._core.checks import check_choice, check_flag, check_number
from trainkit.optim._tape import Ops, Register, Scalar
from trainkit.optim.transforms._base import Fields, Hyper, Scalars, Slot, indicator

__all__ = ["CautiousUpdate", "Correct", "Decay", "InterpolatedSign", "Sign"]


@dataclass(frozen=True)
class Correct:
    r"""Adds a share of the gradient's change since the last step, and limits the norm of each tensor.

    .. math:: c_t = g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g_{t-1}), \qquad
        c_t \leftarrow c_t / \max(1, \lVert c_t \rVert / \mathrm{clip})

    Args:
        gamma: Share of the change.
        clip: Largest norm of a tensor; None for no limit.
        first_step: What the gradient before the first is taken for: ``"zero_diff"``, the first itself;
            ``"zero_last"``, zero.
    """

    gamma: float = 0.025
    clip: float | None = 1.0
    first_step: Literal["zero_diff", "zero_last"] = "zero_diff"

    def check(self, owner: str, hyper: Hyper) -> None:
        check_number(owner, "gamma", hyper["gamma"], minimum=0)
        if hyper["clip"] is not None:
            check_number(owner, "clip", hyper["clip"], minimum=0, open_minimum=True)
        check_choice(owner, "first_step", hyper["first_step"], ("zero_diff", "zero_last"))

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return (Slot("last_grad", "other"),)

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        beta = hyper["betas"][0]
        factor = hyper["gamma"] * beta / (1.0 - beta)
        if hyper["first_step"] == "zero_diff":
            factor = factor * (1.0 - indicator(step == 1))
        return {"weight": 1.0 + factor, **({} if hyper["clip"] is None else {"clip": hyper["clip"]})}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        last, corrected = fields.state["last_grad"], Register()
        x = fields.update.get()
        ops.lerp(corrected, last, x, numbers["weight"])
        ops.copy(last, x)
        if hyper["clip"] is not None:
            ops.limit(corrected, corrected, numbers["clip"])
        fields.update.set(corrected)


def _sign(ops: Ops, out: Register, x: Register) -> None:
    """The sign, and NaN for NaN, whose sign torch takes for zero: an entry would stay where it is, for good."""
    ops.sign(out, x)
    ops.add(out, out, x, scale=0.0)


@dataclass(frozen=True)
class Sign:
    """The sign of the update."""

    def check(self, owner: str, hyper: Hyper) -> None: ...

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return ()

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        return {}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        sign = Register()
        _sign(ops, sign, fields.update.get())
        fields.update.set(sign)


@dataclass(frozen=True)
class InterpolatedSign:
    """The sign of the average moved to the update by the first of ``betas``; the average itself moves by the second."""

    def check(self, owner: str, hyper: Hyper) -> None: ...

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return (Slot("exp_avg", "first"),)

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        return {"rest": 1.0 - hyper["betas"][0], "rest2": 1.0 - hyper["betas"][1]}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        average, sign, x = fields.state["exp_avg"], Register(), fields.update.get()
        moved = Register()
        ops.lerp(moved, average, x, numbers["rest"])
        _sign(ops, sign, moved)
        ops.lerp(average, average, x, numbers["rest2"])
        fields.update.set(sign)


@dataclass(frozen=True)
class CautiousUpdate:
    """Keeps the entries of the update that point as the gradient does, and scales them up for those left out.

    Args:
        cautious_update: Whether to.
        mask_clamp: Smallest share of kept entries that the scale is taken from.
    """

    cautious_update: bool = True
    mask_clamp: float = 1e-3

    def check(self, owner: str, hyper: Hyper) -> None:
        check_flag(owner, cautious_update=hyper["cautious_update"])
        check_number(owner, "mask_clamp", hyper["mask_clamp"], minimum=0, maximum=1, open_minimum=True)

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return ()

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        return {"least": hyper["mask_clamp"]}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        if not hyper["cautious_update"]:
            return
        mask, share, x = Register(), Register(), fields.update.get()
        # Signs, since the product of two small numbers may be zero.
        ops.sign(mask, x)
        ops.mul(mask, mask, fields.g)
        ops.sign(mask, mask)
        ops.max(mask, mask, 0.0)
        ops.mean(share, mask)
        ops.max(share, share, numbers["least"])
        ops.mul(mask, mask, x)
        ops.div(mask, mask, share)
        fields.update.set(mask)


@dataclass(frozen=True)
class Decay:
    r"""Decoupled weight decay, :math:`p \leftarrow p - \eta \lambda p`.

    Args:
        cautious_weight_decay: Decay only the entries that the update moves towards zero, or not at all.
    """

    cautious_weight_decay: bool = False

    def check(self, owner: str, hyper: Hyper) -> None:
        check_flag(owner, cautious_weight_decay=hyper["cautious_weight_decay"])

    def slots(self, hyper: Hyper) -> tuple[Slot, ...]:
        return ()

    def scalars(self, hyper: Hyper, step: Scalar) -> Scalars:
        decay = hyper["lr"] * hyper["weight_decay"]
        return {"kept": 1.0 - decay, "decay": -decay}

    def tape(self, ops: Ops, fields: Fields, numbers: Scalars, hyper: Hyper) -> None:
        if hyper["weight_decay"] == 0:
            return
        p = fields.p
        if not hyper["cautious_weight_decay"]:
            ops.mul(p, p, numbers["kept"])
            return
        mask = Register()
        # -1 where update and parameter differ in sign, else 0.
        ops.sign(mask, fields.update.get())
        ops.mul(mask, mask, p)
        ops.sign(mask, mask)
        ops.min(mask, mask, 0.0)
        ops.add(mask, mask, 1.0)
        ops.mul(mask, mask, p)
        ops.add(p, p, mask, scale=numbers["decay"])
