"""What the losses on pairs of embeddings share: checks, scale, gathering, and the choice of plain or blocked form."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from trainkit._core.checks import (
    check_choice,
    check_flag,
    check_floating,
    check_integer,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.loss import Loss
from trainkit._core.numerics import at_most, safe_normalize, upcast
from trainkit._core.pairs.base import Pairs
from trainkit._core.typing import DistributedKind, Reduction
from trainkit.distributed import gather_rows, is_distributed, rank

__all__ = [
    "Block",
    "Blocks",
    "Matmul",
    "PairLoss",
    "Shards",
    "blocks_for",
    "check_options",
    "check_pairs",
    "embed",
    "gather_shards",
    "make_pairs",
    "row_weights",
    "scale_of",
]

Matmul: TypeAlias = Literal["fp32", "input"]
Block: TypeAlias = int | tuple[int, int] | None

PLAIN_PAIRS = 2**20
"""Pairs up to which the score matrix is formed: below, blocks save memory but no time."""


class Blocks(NamedTuple):
    """How the score matrix is cut.

    Args:
        rows: Rows of a block.
        columns: Columns of a block, for what can take rows in parts.
        tiled: Whether rows are cut too, so that only statistics of them are known.
    """

    rows: int
    columns: int
    tiled: bool


def check_options(owner: str, temperature: float, normalize: bool, block_size: Any, matmul: str) -> None:
    """Check what every loss on pairs takes; ``block_size`` is None, a number of rows, or rows and columns."""
    check_number(owner, "temperature", temperature, minimum=0, open_minimum=True)
    check_flag(owner, normalize=normalize)
    check_choice(owner, "matmul", matmul, ("fp32", "input"))
    for size in block_size if isinstance(block_size, Sequence) and len(block_size) == 2 else [block_size]:
        if size is not None or block_size is not None:
            check_integer(owner, "block_size", size, minimum=1)


def blocks_for(block_size: Block, n: int, m: int) -> Blocks | None:
    """The blocks for n x m scores; None for the plain form."""
    if block_size is None:
        return None if at_most(n * m, PLAIN_PAIRS) else Blocks(256, 1024, tiled=False)
    if isinstance(block_size, int):
        return Blocks(block_size, 1024, tiled=False)
    return Blocks(block_size[0], block_size[1], tiled=True)


def check_pairs(
    owner: str, query: Tensor, key: Tensor, ids: Tensor | None, weight: Tensor | None, validate: bool
) -> None:
    """Check two towers of embeddings of which rows belong together."""
    check_floating(owner, query=query, key=key)
    if query.dim() != 2:
        reject(owner, "query", "have shape (N, D)", query)
    check_same_shape(owner, "query", query.shape, key=key)
    if key.dtype != query.dtype:
        reject(owner, "key", f"have the dtype of query, {query.dtype}", key, TypeError)
    check_same_shape(owner, "the rows of query", query.shape[:1], ids=ids, weight=weight)
    if ids is not None and ids.dtype != torch.int64:
        reject(owner, "ids", "be int64", ids, TypeError)
    if weight is not None:
        check_floating(owner, weight=weight)
        if values_checked(validate):
            check_values(owner, ("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))


def embed(x: Tensor, normalize: bool, matmul: Matmul) -> Tensor:
    """Embeddings as they are multiplied: normalised, in fp32 or better unless the input's dtype is wanted."""
    wide = upcast(x)
    unit = safe_normalize(wide, dim=-1) if normalize else wide
    return unit.to(x.dtype) if matmul == "input" else unit


def scale_of(temperature: float | Tensor, like: Tensor) -> Tensor:
    """1 / temperature as a scalar in fp32 or better; a tensor is the scale itself."""
    wide = torch.promote_types(like.dtype, torch.float32)
    if isinstance(temperature, Tensor):
        return temperature.to(wide)
    return torch.full((), 1 / temperature, dtype=wide, device=like.device)


class Shards(NamedTuple):
    """What all ranks hold, rank-major, and where the rows of this one begin.

    Args:
        tensors: Gathered tensors.
        start: Index of the first row of this rank.
    """

    tensors: tuple[Tensor, ...]
    start: int


def gather_shards(*tensors: Tensor, call: str, sync: bool) -> Shards:
    """Rows of all ranks, or the own ones if there are no others or ``sync`` is off."""
    if not sync or not is_distributed():
        return Shards(tensors, 0)
    gathered, sizes = gather_rows(*tensors, call=call)
    return Shards(gathered, int(sizes[: rank()].sum()))


def make_pairs(
    query: Tensor,
    key: Tensor,
    candidates: Tensor,
    scale: Tensor,
    *,
    bias: Tensor | None = None,
    own: Tensor | None = None,
) -> Pairs:
    """Pairs of all queries and candidates; row i of ``key`` belongs to row i of ``query``.

    Given ``own``, the column of each row's positive, operators compute the positive scores themselves.
    """
    zero = scale.new_zeros(()) if bias is None else bias
    if own is not None:
        return Pairs(query, candidates, scale, zero, scale.new_empty(0), own)
    positive = scale * torch.linalg.vecdot(upcast(query), upcast(key)) + zero
    return Pairs(query, candidates, scale, zero, positive, torch.empty(0, dtype=torch.int64, device=query.device))


def row_weights(query: Tensor, weight: Tensor | None) -> Tensor:
    """Weight of each row in fp32 or better, one where none is given; without gradient."""
    wide = torch.promote_types(query.dtype, torch.float32)
    if weight is None:
        return torch.ones(query.shape[0], dtype=wide, device=query.device)
    return weight.detach().to(wide)


class PairLoss(Loss):
    """Base of the losses that compare every row of one tower with every row of another.

    Args:
        temperature: Divisor of the scores, > 0; the initial one if it is learned.
        learnable: Learn the logarithm of 1 / temperature, the parameter ``log_scale``, capped at log 100.
        normalize: Scale every embedding to length one.
        block_size: How the score matrix is cut.
        matmul: Dtype of the products of embeddings.
        reduction: How rows are reduced.
        sync: Whether several ranks give the loss of one process.
        validate_args: Whether values are checked.
    """

    distributed: DistributedKind = "gather"  # type: ignore[misc]
    log_scale: nn.Parameter

    def __init__(
        self,
        temperature: float,
        learnable: bool,
        normalize: bool,
        block_size: Block,
        matmul: Matmul,
        reduction: Reduction,
        sync: bool,
        validate_args: bool,
    ) -> None:
        super().__init__(reduction, sync, validate_args)
        owner = type(self).__name__
        check_options(owner, temperature, normalize, block_size, matmul)
        check_flag(owner, learnable=learnable)
        self.temperature = temperature
        self.learnable = learnable
        self.normalize = normalize
        self.block_size = block_size
        self.matmul: Matmul = matmul
        if learnable:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay would pull away from their meaning."""
        return {"log_scale"} if self.learnable else set()

    def current_scale(self, like: Tensor) -> float | Tensor:
        """The temperature, or the learned scale for embeddings as ``like``; capped, as large scales diverge."""
        if not self.learnable:
            return self.temperature
        return self.log_scale.to(torch.promote_types(like.dtype, torch.float32)).clamp(max=math.log(100)).exp()
