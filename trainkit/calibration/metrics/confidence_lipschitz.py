"""How fast the confidence of a model moves with its input, at sampled points."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainkit._core.checks import check_floating, check_integer, check_number, reject

__all__ = ["confidence_lipschitz"]


def confidence_lipschitz(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    radius: float = 0.0,
    n_probe: int = 4,
    generator: torch.Generator | None = None,
) -> Tensor:
    """How fast the largest probability moves with the input: length of its gradient, at most over sampled points.

    It looks at single points. Between them the slope may be larger, so that the result is a lower estimate of the
    Lipschitz constant in the ball and no proof of anything.

    Args:
        model: Gives logits, (N, C), each row of its own input only; a module has to be in evaluation mode.
        inputs: (N, ...)
        radius: Radius of the ball around each input, in the L2 norm; 0 looks at the input alone.
        n_probe: Number of points that are drawn in the ball beside the input, for a radius above 0.
        generator: Source of the points, on the CPU; one with the seed 0 if None.

    Returns:
        (N,), in the dtype of the inputs.

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import confidence_lipschitz
        >>> confidence_lipschitz(lambda x: torch.cat([x, -x], 1), torch.tensor([[0.0], [3.0]]))
        tensor([0.5000, 0.0049])
    """
    owner = "confidence_lipschitz"
    check_floating(owner, inputs=inputs)
    if inputs.dim() < 2:
        reject(owner, "inputs", "have shape (N, ...)", inputs)
    check_number(owner, "radius", radius, minimum=0)
    check_integer(owner, "n_probe", n_probe, minimum=0)
    if isinstance(model, nn.Module) and model.training:
        rule = "be in evaluation mode, where rows do not change each other"
        reject(owner, "model", rule, f"{type(model).__name__} in training mode")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    largest = _slope(owner, model, inputs.detach())
    for _ in range(n_probe if radius else 0):
        probe = inputs.detach() + radius * _in_ball(inputs, generator)
        largest = torch.maximum(largest, _slope(owner, model, probe))
    return largest


def _in_ball(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Points drawn evenly from the ball of radius 1, one for each input."""
    flat = inputs.shape[1:].numel()
    directions = torch.randn(len(inputs), flat, generator=generator, dtype=torch.float64)
    lengths = torch.rand(len(inputs), 1, generator=generator, dtype=torch.float64) ** (1 / max(flat, 1))
    points = lengths * nn.functional.normalize(directions, dim=1)
    return points.view(inputs.shape).to(inputs)


def _slope(owner: str, model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Length of the gradient of the largest probability of each row."""
    with torch.enable_grad():
        leaf = inputs.clone().requires_grad_()
        logits = model(leaf)
        if logits.dim() != 2 or len(logits) != len(inputs):
            reject(owner, "model", f"give logits of shape ({len(inputs)}, C)", logits)
        probs = logits.softmax(1)
        # One of the largest: the gradient of amax would be the mean over ties, which may be zero.
        largest = probs.gather(1, probs.argmax(1, keepdim=True))
        (gradient,) = torch.autograd.grad(largest.sum(), leaf)
    lengths: Tensor = gradient.flatten(1).norm(dim=1)
    return lengths
