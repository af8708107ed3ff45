"""Momentum apart from the adaptive denominator."""

from collections.abc import Mapping
from typing import Any

import torch

from trainkit._core.checks import check_flag
from trainkit.optim._base import ChainOptimizer, Params
from trainkit.optim._driver import Impl
from trainkit.optim._precision import Rounding
from trainkit.optim._tape import Scalar
from trainkit.optim.transforms import (
    BiasCorrect,
    CautiousUpdate,
    Decay,
    Divide,
    Momentum,
    RateMomentum,
    SecondMoment,
    Variance,
)
from trainkit.optim.transforms._base import Hyper, Transform

__all__ = ["LaProp"]


class LaProp(ChainOptimizer):
    r"""Divides the gradient by its root mean square first, and averages the quotients.

    Use it in place of AdamW where the two ``betas`` need to be far apart, or gradients have outliers.

    .. math::

        v_t &= \beta_2 v_{t-1} + (1 - \beta_2) g_t^2 \\
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \frac{g_t}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon} \\
        p_t &= p_{t-1} - \eta \Bigl(\frac{m_t}{1 - \beta_1^t} + \lambda p_{t-1}\Bigr)

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Learning rate, >= 0; a number or a tensor without dimensions.
        betas: Factors of the averages of the quotients and of the squared gradients, in [0, 1).
        eps: Added to the denominator, >= 0.
        weight_decay: Factor of the decoupled decay, >= 0.
        centered: Take the square of the gradient's mean from the mean square, after 10 steps.
        lr_in_momentum: Multiply the learning rate into the average, as the official code does: a change of it then
            comes late.
        cautious_update: Keep only the entries of the update that point as the gradient does (arXiv:2411.16085).
        cautious_weight_decay: Decay only the entries that the update moves towards zero (arXiv:2510.12402).
        maximize: Maximise instead of minimise.
        state_dtype: Dtype of the state; None for that of the parameter. float64 parameters keep float64.
        rounding: How bf16 parameters are rounded: ``"nearest"`` or ``"stochastic"``, unbiased, alike on all ranks.
        seed: Start of the random numbers of stochastic rounding.
        impl: ``"loop"`` over parameters, ``"foreach"`` on lists, ``"compiled"`` lists, or ``"auto"``: on the CPU the
            loop for large parameters and lists for small ones, else lists.

    Example:
        >>> import torch
        >>> from trainkit.optim import LaProp
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = LaProp(model.parameters(), lr=4e-4)
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.step()

    Note:
        Defaults of the official code, whose decay comes after the update; here it comes before. Two state tensors,
        three with ``centered``. Gradients are neither written nor kept. Half-precision parameters are computed in fp32.
        Under DDP all ranks take the same step; of a DTensor each rank moves its part.

    References:
        Ziyin et al., "LaProp: Separating Momentum and Adaptivity in Adam", 2020. arXiv:2002.04839
    """

    def __init__(
        self,
        params: Params,
        lr: Scalar = 4e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-15,
        weight_decay: float = 0.0,
        *,
        centered: bool = False,
        lr_in_momentum: bool = False,
        cautious_update: bool = False,
        cautious_weight_decay: bool = False,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        rounding: Rounding = "nearest",
        seed: int = 0,
        impl: Impl = "auto",
    ) -> None:
        hyper = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "centered": centered,
            "lr_in_momentum": lr_in_momentum,
            "cautious_update": cautious_update,
            "cautious_weight_decay": cautious_weight_decay,
        }
        super().__init__(
            params,
            hyper,
            maximize=maximize,
            state_dtype=state_dtype,
            rounding=rounding,
            seed=seed,
            impl=impl,
        )

    def transforms(self, hyper: Hyper) -> tuple[Transform, ...]:
        moment = Variance() if hyper["centered"] else SecondMoment()
        average = (RateMomentum(),) if hyper["lr_in_momentum"] else (Momentum(), BiasCorrect())
        return (moment, Divide(), *average, CautiousUpdate(), Decay())

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_flag(type(self).__name__, centered=group["centered"], lr_in_momentum=group["lr_in_momentum"])
