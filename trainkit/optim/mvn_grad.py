"""Momentum on variance-normalised gradients."""

from typing import Literal

import torch

from trainkit.optim._base import ChainOptimizer, Params
from trainkit.optim._driver import Impl
from trainkit.optim._precision import Rounding
from trainkit.optim._tape import Scalar
from trainkit.optim.transforms import (
    BiasCorrect,
    CautiousUpdate,
    CentredSecondMoment,
    Decay,
    Divide,
    Momentum,
)
from trainkit.optim.transforms._base import Hyper, Transform

__all__ = ["MVNGrad"]


class MVNGrad(ChainOptimizer):
    r"""Divides the gradient by the root of its running variance first, and averages the quotients.

    Use it in place of AdamW where single batches have far larger gradients than the rest: one gradient of any size
    moves a parameter by a bounded amount.

    .. math::

        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2) (g_t - m_t)^2 + \epsilon_s \\
        u_t &= \beta_1 u_{t-1} + (1 - \beta_1) \frac{g_t}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon} \\
        p_t &= p_{t-1} - \eta \Bigl(\frac{u_t}{1 - \beta_1^t} + \lambda p_{t-1}\Bigr)

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Learning rate, >= 0; a number or a tensor without dimensions.
        betas: Factors of the averages of gradients and quotients, and of the variance, in [0, 1).
        eps: Added to the denominator, >= 0.
        weight_decay: Factor of the decoupled decay, >= 0.
        eps_s: Added to the variance at every step (paper: epsilon_s). 1e-16 to 1e-12 keeps gradients without noise from
            being divided by next to nothing.
        centre: What the variance is taken about: ``"post"``, the average with this step's gradient; ``"pre"``, without
            it; ``"pre_hat"``, without it and bias-corrected; ``"none"``, zero, which is LaProp.
        eps_mode: Whether ``eps`` is added ``"outside"`` of the root or ``"inside"``.
        bias_correction: Divide variance and update by the sums of their weights.
        beta_centre: Factor of the average that the variance is taken about; None takes the first of ``betas``.
        max_ratio: Largest size of an entry of the quotient; None for no limit.
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
        >>> from trainkit.optim import MVNGrad
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = MVNGrad(model.parameters(), lr=1e-3, eps_s=1e-16)
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.step()

    Note:
        Formulas and defaults as published catalogues give them; official code was not found. Without bias correction
        a spike after zero gradients gives a quotient of at most :math:`1 / (\beta_1 \sqrt{1 - \beta_2})`. Three state
        tensors, one more than AdamW. Gradients are neither written nor kept. Half-precision
        parameters are computed in fp32. Under DDP all ranks take the same step; of a DTensor each rank moves its part.

    References:
        Patitucci and Mokhtari, "Adaptive Optimization via Momentum on Variance-Normalized Gradients", 2026.
        arXiv:2602.10204
    """

    def __init__(
        self,
        params: Params,
        lr: Scalar = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        eps_s: float = 0.0,
        centre: Literal["post", "pre", "pre_hat", "none"] = "post",
        eps_mode: Literal["outside", "inside"] = "outside",
        bias_correction: bool = True,
        beta_centre: float | None = None,
        max_ratio: float | None = None,
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
            "eps_s": eps_s,
            "centre": centre,
            "eps_mode": eps_mode,
            "bias_correction": bias_correction,
            "beta_centre": beta_centre,
            "max_ratio": max_ratio,
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
        return (CentredSecondMoment(), Divide(), Momentum(), BiasCorrect(), CautiousUpdate(), Decay())
