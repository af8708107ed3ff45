"""Sums over all pairs of P positive and Q negative scores: value and gradients, fp32."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.benchmarks.measure import Case, Step
from trainkit._core.score_pairs import SurrogateName, pair_surrogate_sum

ROWS = 1024
"""Positives that the brute force takes at a time."""
MARGIN = 1.0
SMALL = 1040
"""Scores whose pairs just exceed 2^20, so that the tiny step runs the fast forms too."""
TARGET = 0.003


def surrogate_and_slope(surrogate: str, x: Tensor) -> tuple[Tensor, Tensor]:
    if surrogate == "logistic":
        return F.softplus(x, threshold=1000.0), torch.sigmoid(x)
    late = (MARGIN + x).clamp_min(0)
    return (late, (late > 0).to(x.dtype)) if surrogate == "hinge" else (late.square(), 2 * late)


def scores(n: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return scale * (torch.randn(n, generator=draw) + 1), scale * torch.randn(n, generator=draw)


def brute(surrogate: str, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = torch.zeros((), dtype=torch.float64)
    slopes, of_negative = [], torch.zeros_like(negative)
    for own in positive.split(ROWS):
        value, slope = surrogate_and_slope(surrogate, negative - own[:, None])
        total += value.sum(dtype=torch.float64)
        slopes.append(-slope.sum(1))
        of_negative += slope.sum(0)
    return total, torch.cat(slopes), of_negative


def fast(surrogate: SurrogateName, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p, n = positive.clone().requires_grad_(), negative.clone().requires_grad_()
    value = pair_surrogate_sum(p, n, surrogate=surrogate, margin=MARGIN)
    return value.detach(), *torch.autograd.grad(value, (p, n))


def step(form: str, surrogate: SurrogateName, n: int, scale: float = 1.0) -> Callable[[], float]:
    positive, negative = scores(n, scale)
    run = {"fast": fast, "brute": brute}[form]
    return lambda: run(surrogate, positive, negative)[0].item()


def gradient_error(surrogate: SurrogateName, n: int) -> Callable[[], float]:
    """Largest relative error of an entry of the gradients, in fp64."""

    def error() -> float:
        positive, negative = (x.double() for x in scores(n))
        got, exact = (run(surrogate, positive, negative)[1:] for run in (fast, brute))
        return max(float(((a - b) / b).abs().max()) for a, b in zip(got, exact, strict=True))

    return error


def side(form: str, surrogate: SurrogateName, n: int, scale: float = 1.0) -> Step:
    arguments = {"form": form, "surrogate": surrogate, "n": n, "scale": scale}
    return Step("tests.benchmarks.pairwise:step", arguments, {"n": SMALL})


def against_brute(surrogate: SurrogateName, n: int, scale: float = 1.0, target: float | None = TARGET) -> Case:
    name = f"pairwise {surrogate} P=Q={n}" + (f" scores x {scale:g}" if scale != 1 else "")
    return Case(
        name, side("fast", surrogate, n, scale), "tiled brute force", side("brute", surrogate, n, scale), target
    )


def cases() -> list[Case]:
    error = Step("tests.benchmarks.pairwise:gradient_error", {"surrogate": "logistic", "n": 16384})
    return [
        against_brute("logistic", 16384),
        against_brute("hinge", 16384),
        against_brute("squared_hinge", 16384),
        against_brute("logistic", 16384, 1e4, None),
        Case("pairwise logistic P=Q=16384 gradient entries", error, error=1e-6),
    ]
