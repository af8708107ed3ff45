"""Variance reduction by the change of the gradient."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_flag, check_number
from trainkit.optim._base import ChainOptimizer, Params, check_betas
from trainkit.optim._driver import Impl
from trainkit.optim._precision import Rounding
from trainkit.optim._tape import Scalar
from trainkit.optim.transforms import (
    BiasCorrect,
    CautiousUpdate,
    Correct,
    Decay,
    Divide,
    Momentum,
    SecondMoment,
    Sign,
)
from trainkit.optim.transforms._base import Hyper, Transform

__all__ = ["MARS"]


class MARS(ChainOptimizer):
    r"""AdamW or Lion on gradients whose variance is reduced by their change since the last step.

    Use it in place of AdamW for matrices of language and vision models; vectors take plain AdamW with rates of their
    own.

    .. math::

        c_t = g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g_{t-1}), \qquad
        c_t \leftarrow \frac{c_t}{\max(1, \lVert c_t \rVert / \mathrm{clip})}, \qquad
        m_t = \beta_1 m_{t-1} + (1 - \beta_1) c_t

    and :math:`u_t` is AdamW's with :math:`c_t` for the gradient, or :math:`\operatorname{sign}(m_t)`.

    Args:
        params: Parameters, named parameters or groups of them.
        lr: Learning rate, >= 0; a number or a tensor without dimensions.
        betas: Factors of the averages of the corrected gradient and of its square, in [0, 1).
        eps: Added to the denominator, >= 0.
        weight_decay: Factor of the decoupled decay, >= 0.
        gamma: Share of the correction, >= 0; 0 is plain AdamW.
        variant: ``"adamw"`` or ``"lion"``, which here has one average and no second one.
        clip: Largest norm of the corrected gradient of a tensor; None for no limit.
        first_step: What the gradient before the first is taken for: ``"zero_diff"``, the first itself, as in the
            paper; ``"zero_last"``, zero, as in the official code.
        amsgrad: Divide by the largest second moment so far.
        optimize_1d: Treat vectors as matrices.
        lr_1d: Learning rate of vectors, which follows the schedule of ``lr``.
        betas_1d: Factors of the averages of vectors.
        weight_decay_1d: Factor of the decay of vectors.
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
        >>> from trainkit.optim import MARS
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = MARS(model.parameters(), lr=3e-3)
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.step()

    Note:
        Defaults of the official code. This is its approximate form, with the gradient of the last batch. A parameter of
        two or more dimensions is a matrix, or what ``use_matrix`` of its group says; convolutions are, unlike in the
        official code. Prefer ``clip`` to clipping all gradients together, whose factor changes from step to step and
        with it the correction. State: three tensors for ``"adamw"``, two for ``"lion"`` and for vectors. Gradients are
        not written. Half-precision parameters are computed in fp32. Under DDP all ranks take the same step; of a
        DTensor each rank moves its part, with norms over all of it.

    References:
        Yuan et al., "MARS: Unleashing the Power of Variance Reduction for Training Large Models", ICML 2025.
        arXiv:2411.10438
    """

    kinds: ClassVar[tuple[str, ...]] = ("matrix", "vector")

    def __init__(
        self,
        params: Params,
        lr: Scalar = 3e-3,
        betas: tuple[float, float] = (0.95, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        gamma: float = 0.025,
        variant: Literal["adamw", "lion"] = "adamw",
        clip: float | None = 1.0,
        first_step: Literal["zero_diff", "zero_last"] = "zero_diff",
        amsgrad: bool = False,
        optimize_1d: bool = False,
        lr_1d: float = 3e-3,
        betas_1d: tuple[float, float] = (0.9, 0.95),
        weight_decay_1d: float = 0.1,
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
            "gamma": gamma,
            "variant": variant,
            "clip": clip,
            "first_step": first_step,
            "amsgrad": amsgrad,
            "optimize_1d": optimize_1d,
            "lr_1d": lr_1d,
            "betas_1d": betas_1d,
            "weight_decay_1d": weight_decay_1d,
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

    def _accept(self, group: dict[str, Any]) -> None:
        super()._accept(group)
        group.setdefault("base_lr", float(group["lr"]))

    def kind(self, group: Mapping[str, Any], parameter: Tensor) -> str:
        if group["optimize_1d"]:
            return "matrix"
        return "matrix" if group.get("use_matrix", parameter.dim() >= 2) else "vector"

    def hyper(self, group: Mapping[str, Any], kind: str) -> Hyper:
        if kind == "matrix":
            return {**group, "kind": kind}
        # As absolute values these could not follow a schedule, and as a ratio a rate of zero would divide by zero.
        start = group.get("base_lr", 0)
        lr = group["lr"] if start == 0 else group["lr"] * (group["lr_1d"] / start)
        own = {"lr": lr, "betas": group["betas_1d"], "weight_decay": group["weight_decay_1d"]}
        return {**group, **own, "kind": kind}

    def transforms(self, hyper: Hyper) -> tuple[Transform, ...]:
        adam = (SecondMoment(), Momentum(), Divide(), BiasCorrect())
        end = (CautiousUpdate(), Decay())
        if hyper["kind"] == "vector":
            return (*adam, *end)
        if hyper["variant"] == "lion":
            return (Correct(), Momentum(), Sign(), *end)
        return (Correct(), *adam, *end)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        owner = type(self).__name__
        check_choice(owner, "variant", group["variant"], ("adamw", "lion"))
        check_flag(owner, optimize_1d=group["optimize_1d"])
        check_number(owner, "lr_1d", group["lr_1d"], minimum=0)
        check_betas(owner, "betas_1d", group["betas_1d"])
        check_number(owner, "weight_decay_1d", group["weight_decay_1d"], minimum=0)
