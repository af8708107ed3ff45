"""Evolved sign momentum."""

import torch

from trainkit.optim._base import ChainOptimizer, Params
from trainkit.optim._driver import Impl
from trainkit.optim._precision import Rounding
from trainkit.optim._tape import Scalar
from trainkit.optim.transforms import CautiousUpdate, Decay, InterpolatedSign
from trainkit.optim.transforms._base import Hyper, Transform

__all__ = ["Lion"]


class Lion(ChainOptimizer):
    r"""Moves every entry by the learning rate, in the direction of an average of the gradient.

    Use it to save memory against AdamW: one state tensor. Learning rates are 3 to 10 times smaller than AdamW's and
    decays as many times larger.

    .. math::

        u_t = \operatorname{sign}(\beta_1 m_{t-1} + (1 - \beta_1) g_t), \qquad
        m_t = \beta_2 m_{t-1} + (1 - \beta_2) g_t, \qquad
        p_t = p_{t-1} - \eta (u_t + \lambda p_{t-1})

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Learning rate, >= 0; a number or a tensor without dimensions.
        betas: Factors of the average, in the direction and in the state, in [0, 1).
        weight_decay: Factor of the decoupled decay, >= 0.
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
        >>> from trainkit.optim import Lion
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = Lion(model.parameters(), lr=1e-4)
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.step()

    Note:
        Defaults of the paper. The sign of zero is zero. Gradients are neither written nor kept. Half-precision
        parameters are computed in fp32. Under DDP all ranks take the same step; of a DTensor each rank moves its part.

    References:
        Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023. arXiv:2302.06675
    """

    def __init__(
        self,
        params: Params,
        lr: Scalar = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
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
            "weight_decay": weight_decay,
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
        return (InterpolatedSign(), CautiousUpdate(), Decay())
