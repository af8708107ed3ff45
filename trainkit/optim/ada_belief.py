"""Steps by the belief in the gradient."""

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
    Centre,
    CentredSecondMoment,
    Decay,
    Divide,
    Rectify,
)
from trainkit.optim.transforms._base import Hyper, Transform

__all__ = ["AdaBelief"]


class AdaBelief(ChainOptimizer):
    r"""Adam whose denominator is the root of the gradient's running variance about its average.

    Use it in place of AdamW where gradients are steady: it then takes larger steps.

    .. math::

        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
        s_t &= \beta_2 s_{t-1} + (1 - \beta_2) (g_t - m_t)^2 + \epsilon \\
        p_t &= p_{t-1} - \eta \Bigl(\frac{m_t / (1 - \beta_1^t)}{\sqrt{s_t / (1 - \beta_2^t)} + \epsilon}
            + \lambda p_{t-1}\Bigr)

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Learning rate, >= 0; a number or a tensor without dimensions.
        betas: Factors of the averages of the gradient and of its variance, in [0, 1).
        eps: Added to the variance at every step and to its root, >= 0; 1e-8 suits convolutional networks.
        weight_decay: Factor of the decoupled decay, >= 0.
        rectify: Leave the denominator out while the variance comes from too few steps, and rescale it after (RAdam).
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
        >>> from trainkit.optim import AdaBelief
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = AdaBelief(model.parameters(), lr=1e-3)
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.step()

    Note:
        Defaults of the official code. Two state tensors. Gradients are neither written nor kept. Half-precision
        parameters are computed in fp32. Under DDP all ranks take the same step; of a DTensor each rank moves its part.

    References:
        Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients", NeurIPS 2020.
        arXiv:2010.07468
    """

    def __init__(
        self,
        params: Params,
        lr: Scalar = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
        weight_decay: float = 0.0,
        *,
        rectify: bool = False,
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
            "rectify": rectify,
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

    def hyper(self, group: Mapping[str, Any], kind: str) -> Hyper:
        return {**group, "eps_s": group["eps"]}

    def transforms(self, hyper: Hyper) -> tuple[Transform, ...]:
        rectify = (Rectify(),) if hyper["rectify"] else ()
        return (CentredSecondMoment(), Centre(), *rectify, Divide(), BiasCorrect(), CautiousUpdate(), Decay())

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_flag(type(self).__name__, rectify=group["rectify"])
