"""Optimizers made of transforms."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from trainkit._core.checks import reject
from trainkit.optim._base import ChainOptimizer, Params
from trainkit.optim._driver import Impl, Plan
from trainkit.optim._precision import Rounding
from trainkit.optim._tape import WHOLE, LoopOps, Register, Scalar
from trainkit.optim.transforms import BiasCorrect, Decay, Divide, Momentum, SecondMoment
from trainkit.optim.transforms._base import Hyper, Transform

__all__ = ["Chain", "adamw"]


def _hyper_of(transforms: Sequence[Transform]) -> dict[str, Any]:
    """Hyper-parameters of the transforms by name."""
    found: dict[str, Any] = {}
    for transform in transforms:
        for field in fields(transform):  # type: ignore[arg-type]
            value = getattr(transform, field.name)
            if field.name in found and found[field.name] != value:
                reject("Chain", field.name, f"be the same in all transforms, was {found[field.name]!r} before", value)
            found[field.name] = value
    return found


def _check_fit(transforms: Sequence[Transform], hyper: Hyper) -> None:
    """Require transforms that can stand after each other."""
    names = [slot.name for transform in transforms for slot in transform.slots(hyper)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        reject("Chain", "transforms", f"keep each state once, {', '.join(twice)} is kept twice", transforms)
    plan, trial = Plan(tuple(transforms), hyper), torch.zeros(1)
    state = {name: Register(t) for name, t in plan.state(trial, torch.float32).items()}
    try:
        plan.run(LoopOps(WHOLE), Register(trial), Register(trial.clone()), state, plan.numbers(1.0), 0.0)
    except ValueError as error:
        raise ValueError(f"Chain: transforms must fit together: {error}") from error


class Chain(ChainOptimizer):
    r"""Runs any transforms one after the other: an optimizer that no paper has, in one line.

    Use it to put a variance reduction, a normalisation, a momentum and a decay together that have not met before.
    The update starts as the gradient, goes through the transforms, and is subtracted:

    .. math:: u_t = T_k(\dots T_1(g_t)), \qquad p_t = p_{t-1} - \eta\, u_t

    Args:
        params: Parameters, named parameters or groups of them.
        transforms: The steps, from :mod:`trainkit.optim.transforms`. Their fields become hyper-parameters of the
            groups, where each group can have its own.
        lr: Learning rate, >= 0; a number or a tensor without dimensions.
        betas: Factors of the averages, in [0, 1).
        eps: Added to denominators, >= 0.
        weight_decay: Factor of the decay, >= 0; acts where the chain holds a ``Decay``.
        maximize: Maximise instead of minimise.
        state_dtype: Dtype of the state; None for that of the parameter. float64 parameters keep float64.
        rounding: How bf16 parameters are rounded: ``"nearest"`` or ``"stochastic"``, unbiased, alike on all ranks.
        seed: Start of the random numbers of stochastic rounding.
        impl: ``"loop"`` over parameters, ``"foreach"`` on lists, ``"compiled"`` lists, or ``"auto"``: on the CPU the
            loop for large parameters and lists for small ones, else lists.

    Example:
        >>> import torch
        >>> from trainkit.optim import Chain
        >>> from trainkit.optim.transforms import BiasCorrect, Correct, Decay, Divide, Momentum, SecondMoment
        >>> model = torch.nn.Linear(3, 1)
        >>> steps = [Correct(gamma=0.05), SecondMoment(), Divide(), Momentum(), BiasCorrect(), Decay()]
        >>> optimizer = Chain(model.parameters(), steps, lr=1e-3, weight_decay=0.1)
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.step()

    Note:
        No paper: the frame that the optimizers of this package are written in. Gradients are neither written nor kept.
        Half-precision parameters are computed in fp32. ``state_dict`` holds the hyper-parameters of the transforms, and
        a chain of other transforms does not load it. Under DDP all ranks take the same step; of a DTensor each rank
        moves its part, with norms and means over all of it.
    """

    def __init__(
        self,
        params: Params,
        transforms: Sequence[Transform],
        lr: Scalar = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        rounding: Rounding = "nearest",
        seed: int = 0,
        impl: Impl = "auto",
    ) -> None:
        if not transforms:
            reject("Chain", "transforms", "hold at least one transform", transforms)
        for transform in transforms:
            if not hasattr(transform, "tape"):
                reject("Chain", "transforms", "be transforms", transform, TypeError)
        self._transforms = tuple(transforms)
        shared = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        own = {**_hyper_of(transforms), "chain": [type(t).__name__ for t in transforms]}
        super().__init__(
            params,
            {**shared, **own},
            maximize=maximize,
            state_dtype=state_dtype,
            rounding=rounding,
            seed=seed,
            impl=impl,
        )

    def transforms(self, hyper: Hyper) -> tuple[Transform, ...]:
        return self._transforms

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        own = [type(t).__name__ for t in self._transforms]
        if group["chain"] != own:
            reject(type(self).__name__, "chain", f"be {own}", group["chain"])

    def _accept(self, group: dict[str, Any]) -> None:
        super()._accept(group)
        _check_fit(self._transforms, self._plan(group, self.kinds[0]).hyper)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_transforms": self._transforms}


def adamw(
    params: Params,
    lr: Scalar = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    amsgrad: bool = False,
    cautious_weight_decay: bool = False,
    maximize: bool = False,
    state_dtype: torch.dtype | None = torch.float32,
    rounding: Rounding = "nearest",
    impl: Impl = "auto",
) -> Chain:
    """AdamW as a chain, the reference that other chains are compared with.

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Learning rate.
        betas: Factors of the averages of the gradient and its square.
        eps: Added to the denominator.
        weight_decay: Factor of the decoupled decay.
        amsgrad: Divide by the largest average so far.
        cautious_weight_decay: Decay only the entries that the update moves towards zero.
        maximize: Maximise instead of minimise.
        state_dtype: Dtype of the state; None for that of the parameter.
        rounding: How bf16 parameters are rounded.
        impl: What runs the step.
    """
    return Chain(
        params,
        [SecondMoment(amsgrad), Momentum(), Divide(), BiasCorrect(), Decay(cautious_weight_decay)],
        lr,
        betas,
        eps,
        weight_decay,
        maximize=maximize,
        state_dtype=state_dtype,
        rounding=rounding,
        impl=impl,
    )
