"""The entry to the sums over pairs: which algorithm runs when."""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_number
from trainkit._core.numerics import at_most
from trainkit._core.score_pairs.ops import pair_sum_op
from trainkit._core.score_pairs.surrogates import SURROGATES, SurrogateName

__all__ = ["PairAlgorithm", "SurrogateName", "check_surrogate", "pair_surrogate_sum"]

PairAlgorithm: TypeAlias = Literal["auto", "dense", "brute", "closed", "sort", "grid"]

NOTHING = -1e30
"""Stand-in for the logarithm of zero that has a derivative."""

DENSE_LIMIT = 1 << 20
"""Pairs up to which the plain form is taken: it is as fast there, and differentiable twice."""

FAST = {"logistic": "grid", "hinge": "sort", "squared_hinge": "sort", "square": "closed", "exponential": "closed"}


def check_surrogate(owner: str, surrogate: str, margin: float) -> None:
    """Require one of the surrogates, and a margin >= 0."""
    check_choice(owner, "surrogate", surrogate, SURROGATES)
    check_number(owner, "margin", margin, minimum=0)


def pair_surrogate_sum(
    positive: Tensor,
    negative: Tensor,
    *,
    surrogate: SurrogateName,
    margin: float = 0.0,
    positive_weight: Tensor | None = None,
    negative_weight: Tensor | None = None,
    algorithm: PairAlgorithm = "auto",
) -> Tensor:
    r"""Sum of :math:`w_i u_j \phi(n_j - p_i)` over all pairs of a positive score p and a negative score n.

    The surrogates :math:`\phi(x)` are ``"logistic"``, :math:`\log(1 + e^x)`; ``"hinge"``, :math:`\max(0, m + x)`;
    ``"squared_hinge"``, its square; ``"square"``, :math:`(m + x)^2`; ``"exponential"``, :math:`e^x`.

    Args:
        positive: (P,) scores, divided by the temperature already; P may be 0.
        negative: (Q,) scores; Q may be 0.
        surrogate: The function of a pair.
        margin: m; the logistic and the exponential surrogate have none and leave it aside.
        positive_weight: (P,) w, >= 0, default 1; no gradient goes to it.
        negative_weight: (Q,) u, likewise.
        algorithm: ``"dense"`` holds all pairs, in plain torch; ``"brute"`` goes through them in tiles; ``"sort"`` is
            exact for both hinges, ``"closed"`` for the square and the exponential; ``"grid"`` is good to 2e-7 of every
            gradient entry for the logistic. ``"auto"`` is dense up to 2^20 pairs, then the fast form of the surrogate;
            for the exponential always the closed one.

    Returns:
        The sum, () in the dtype of the scores; a zero with a live graph without a pair. "brute", "sort" and "grid"
        compute in fp64, are differentiable once, and give NaN as value and gradients if a score is not finite.
    """
    owner = "pair_surrogate_sum"
    check_surrogate(owner, surrogate, margin)
    check_choice(owner, "algorithm", algorithm, ("auto", "dense", "brute", FAST[surrogate]))
    w = torch.ones_like(positive) if positive_weight is None else positive_weight.detach().to(positive.dtype)
    u = torch.ones_like(negative) if negative_weight is None else negative_weight.detach().to(negative.dtype)
    shift = float(margin) if SURROGATES[surrogate].takes_margin else 0.0
    chosen = algorithm
    if algorithm == "auto":
        # The product of two sums is always better than the exponentials of all differences.
        dense = surrogate != "exponential" and at_most(positive.numel() * negative.numel(), DENSE_LIMIT)
        chosen = "dense" if dense else FAST[surrogate]  # type: ignore[assignment]
    if chosen == "dense":
        return w @ (SURROGATES[surrogate].value(negative - positive[:, None] + shift) @ u)
    if chosen == "closed":
        if surrogate == "exponential":
            return _exponential_sum(positive, negative, w, u)
        return _square_sum(positive, negative, w, u, shift)
    value: Tensor = pair_sum_op(positive, negative, w, u, surrogate, shift, chosen)[0]
    return value


def _exponential_sum(positive: Tensor, negative: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Product of a sum over each side, taken in logarithms; plain torch, differentiable twice."""

    def log_sum(scores: Tensor, weight: Tensor) -> Tensor:
        counts = weight > 0
        terms = torch.where(counts, scores + torch.where(counts, weight, 1.0).log(), NOTHING)
        return terms.logsumexp(0).clamp_min(NOTHING)

    total = log_sum(-positive.double(), w.double()) + log_sum(negative.double(), u.double())
    return total.exp().to(positive.dtype)


def _square_sum(positive: Tensor, negative: Tensor, w: Tensor, u: Tensor, margin: float) -> Tensor:
    """Square of the difference of means, plus the variances; plain torch, differentiable twice."""
    p, n, w, u = positive.double(), negative.double(), w.double(), u.double()
    total_w, total_u = w.sum(), u.sum()
    mean_p = (w @ p) / torch.where(total_w > 0, total_w, 1)
    mean_n = (u @ n) / torch.where(total_u > 0, total_u, 1)
    between = total_w * total_u * (margin + mean_n - mean_p).square()
    total = between + total_u * (w @ (p - mean_p).square()) + total_w * (u @ (n - mean_n).square())
    return total.to(positive.dtype)
