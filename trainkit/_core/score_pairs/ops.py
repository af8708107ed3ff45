"""The sums as one opaque operator: a single node of the graph, traced whole under ``torch.compile``."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trainkit._core.score_pairs.grid import grid_sums
from trainkit._core.score_pairs.ramps import sorted_sums
from trainkit._core.score_pairs.surrogates import Sums, tiled

__all__ = ["pair_sum_op"]

ALGORITHMS: Mapping[str, Callable[..., Sums]] = {"brute": tiled, "sort": sorted_sums, "grid": grid_sums}


@torch.library.custom_op("trainkit::pair_sum", mutates_args=())
def pair_sum_op(
    positive: Tensor,
    negative: Tensor,
    positive_weight: Tensor,
    negative_weight: Tensor,
    surrogate: str,
    margin: float,
    algorithm: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum over all pairs and its gradients, computed in fp64; scores of weight zero are left out first."""
    counted = [weight.nonzero()[:, 0] for weight in (positive_weight, negative_weight)]
    gradients = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (positive, negative)]
    value = positive.new_zeros(())
    if counted[0].numel() and counted[1].numel():
        scores = [x.index_select(0, i).double() for x, i in zip((positive, negative), counted, strict=True)]
        weights = [
            w.index_select(0, i).double() for w, i in zip((positive_weight, negative_weight), counted, strict=True)
        ]
        # Zero, or NaN if any of them is not finite.
        flaw = torch.stack([(x * 0).sum() for x in (*scores, *weights)]).sum()
        if bool(flaw == 0):
            sums = ALGORITHMS[algorithm](*scores, *weights, surrogate, margin)
        else:
            sums = (flaw, flaw.expand_as(scores[0]), flaw.expand_as(scores[1]))
        value = sums[0].to(positive.dtype)
        for gradient, index, found in zip(gradients, counted, sums[1:], strict=True):
            gradient.index_copy_(0, index, found.to(gradient.dtype))
    return value, gradients[0], gradients[1]


@pair_sum_op.register_fake
def _(
    positive: Tensor,
    negative: Tensor,
    positive_weight: Tensor,
    negative_weight: Tensor,
    surrogate: str,
    margin: float,
    algorithm: str,
) -> tuple[Tensor, Tensor, Tensor]:
    form = torch.contiguous_format
    value = positive.new_empty(())
    return value, torch.empty_like(positive, memory_format=form), torch.empty_like(negative, memory_format=form)


@torch.library.custom_op("trainkit::pair_sum_backward", mutates_args=())
def pair_sum_backward_op(grad: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Scale the gradients that the forward kept; without a formula of its own, so that a second derivative raises."""
    return grad * positive, grad * negative


@pair_sum_backward_op.register_fake
def _(grad: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(positive), torch.empty_like(negative)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad: Tensor, *of_gradients: Tensor) -> tuple[Tensor | None, ...]:
    return (*pair_sum_backward_op(grad, *ctx.saved_tensors), None, None, None, None, None)


pair_sum_op.register_autograd(_backward, setup_context=_save)
