"""Contrastive losses on N unit-norm embeddings of width 256: value and gradients of both towers, scale 20, fp32."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.benchmarks import peers
from tests.benchmarks.measure import Case, Products, Step

WIDTH = 256
BLOCKED = 1040
"""Rows whose pairs just exceed 2^20, so that the tiny step runs the blocked operators too."""


def embeddings(n: int, dtype: str = "float32", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Query and key whose positives are closer than chance, with gradients that exist already."""
    draw = torch.Generator().manual_seed(seed)
    query = F.normalize(torch.randn(n, WIDTH, generator=draw), dim=1)
    key = F.normalize(torch.randn(n, WIDTH, generator=draw) + 4.0 * query, dim=1)
    leaves = [x.to(getattr(torch, dtype)).requires_grad_() for x in (query, key)]
    for leaf in leaves:
        leaf.grad = torch.zeros_like(leaf)
    return leaves[0], leaves[1]


def training_step(loss: Callable[[Tensor, Tensor], Tensor], query: Tensor, key: Tensor) -> Callable[[], float]:
    def step() -> float:
        value = loss(query, key)
        value.backward()
        return value.item()

    return step


def ours(loss: str, options: dict[str, Any], n: int, dtype: str = "float32", seed: int = 0) -> Callable[[], float]:
    from trainkit import losses

    return training_step(getattr(losses, loss)(temperature=1 / peers.SCALE, **options), *embeddings(n, dtype, seed))


def theirs(formula: str, n: int, dtype: str = "float32", seed: int = 0) -> Callable[[], float]:
    return training_step(getattr(peers, formula), *embeddings(n, dtype, seed))


def tiny(n: int) -> dict[str, int]:
    return {"n": BLOCKED if n > BLOCKED else 64}


def our_step(loss: str, n: int, dtype: str = "float32", **options: Any) -> Step:
    # The embeddings have length one already, and the peers' formulas don't normalise.
    arguments = {"loss": loss, "options": {"normalize": False} | options, "n": n, "dtype": dtype}
    return Step("tests.benchmarks.contrastive:ours", arguments, tiny(n))


def their_step(formula: str, n: int, dtype: str = "float32") -> Step:
    # A compiled function is compiled anew for each size.
    warm_up = {} if formula.startswith("compiled") else tiny(n)
    return Step("tests.benchmarks.contrastive:theirs", {"formula": formula, "n": n, "dtype": dtype}, warm_up)


def against(
    name: str, peer: str, n: int, mine: Step, formula: str, time: float, memory: float | None, **more: Any
) -> Case:
    dtype = mine.arguments["dtype"]
    return Case(f"{name} N={n}", mine, peer, their_step(formula, n, dtype), time, memory, long=n >= 16384, **more)


def one_sided() -> list[Case]:
    """InfoNCE in one direction."""

    def case(n: int, time: float, memory: float | None, formula: str = "cross_entropy", **more: Any) -> Case:
        peer = "torch.compile(plain)" if formula.startswith("compiled") else "plain torch"
        return against("InfoNCE", peer, n, our_step("InfoNCELoss", n), formula, time, memory, **more)

    limit = Case("InfoNCE N=32768", our_step("InfoNCELoss", 32768), megabytes=300, long=True)
    rows = [
        case(1024, 1.05, None),
        case(4096, 0.65, 0.15, products=Products(4096, 4096, WIDTH, passes=3)),
        case(4096, 1.0, None, formula="compiled_cross_entropy"),
        case(16384, 0.62, 0.03, products=Products(16384, 16384, WIDTH, passes=3, share=0.8)),
        case(16384, 1.0, 0.1, formula="compiled_cross_entropy"),
        limit,
    ]
    bf16 = our_step("InfoNCELoss", 4096, "bfloat16", matmul="input")
    # In bf16 the two sides round differently.
    rows.append(against("InfoNCE bf16", "plain torch", 4096, bf16, "cross_entropy", 0.85, 0.6, equal=False))
    mine = our_step("InfoNCELoss", 4096, normalize=True)
    rows.append(against("InfoNCE normalize", "sentence-transformers", 4096, mine, "multiple_negatives", 0.5, 0.1))
    if find_spec("pytorch_metric_learning"):
        mine, formula = our_step("InfoNCELoss", 256), "metric_learning_ntxent"
        rows.append(against("InfoNCE", "pytorch-metric-learning", 256, mine, formula, 0.02, 0.05))
    return rows


def two_sided() -> list[Case]:
    """InfoNCE in both directions."""

    def case(n: int, time: float, memory: float) -> Case:
        products = Products(n, n, WIDTH, passes=4)
        mine = our_step("ClipLoss", n)
        return against("ClipLoss", "open_clip", n, mine, "open_clip", time, memory, products=products)

    return [case(4096, 0.55, 0.10), case(16384, 0.50, 0.02)]


def mann_whitney() -> list[Case]:
    """The logistic of the differences of negative and positive scores."""

    def case(n: int, time: float, memory: float) -> Case:
        products = Products(n, n, WIDTH, passes=3)
        mine = our_step("MannWhitneyLoss", n, pairing="per_query")
        return against("MannWhitney per query", "plain torch", n, mine, "mann_whitney", time, memory, products=products)

    pooled, by_query = (our_step("MannWhitneyLoss", 4096, pairing=pairing) for pairing in ("global", "per_query"))
    every = Case("MannWhitney global N=4096", pooled, "ours per query", by_query, time=4.0, megabytes=100, equal=False)
    return [case(4096, 0.65, 0.15), case(16384, 0.58, 0.03), every]


def cases() -> list[Case]:
    return one_sided() + two_sided() + mann_whitney()
