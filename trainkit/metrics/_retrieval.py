"""What the retrieval metrics share: the pairs of a whole set, and ranks of the right keys without an N x N matrix."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_flag,
    check_floating,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.metric import RowMetric
from trainkit._core.numerics import fp32_region, safe_normalize, sum_dtype

__all__ = ["BLOCK", "FirstHit", "PairMetric", "blocks", "check_embeddings", "check_ids", "expected_gain", "first_hits"]

BLOCK = 2**20
"""Scores that are held at a time."""


def check_embeddings(owner: str, query: Tensor, key: Tensor, validate_args: bool) -> None:
    """Require two matrices with the same number of features and, if values are checked, finite ones."""
    check_floating(owner, query=query, key=key)
    if query.dim() != 2:
        reject(owner, "query", "have shape (N, D)", query)
    if key.dim() != 2 or key.shape[1] != query.shape[1]:
        reject(owner, "key", f"have {query.shape[1]} features to match query", key)
    if values_checked(validate_args):
        rule = "be finite"
        check_values(owner, ("query", rule, query, query.isfinite()), ("key", rule, key, key.isfinite()))


def check_ids(owner: str, query: Tensor, key: Tensor, ids: Tensor | None) -> None:
    """Require a key for each query and, where ids are given, an integer for each pair."""
    check_same_shape(owner, "query", query.shape, key=key)
    check_same_shape(owner, "the rows of query", query.shape[:1], ids=ids)
    if ids is not None and (ids.is_floating_point() or ids.is_complex()):
        reject(owner, "ids", "hold integers", ids, TypeError)


def blocks(
    query: Tensor, key: Tensor, relevant: Callable[[slice], Tensor], normalize: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Scores of some queries against all keys at a time, in the dtype of sums.

    Args:
        query: (N, D).
        key: (M, D).
        relevant: Gives for some rows of query which keys are right, (rows, M), boolean.
        normalize: Whether scores are cosines, or dot products.

    Yields:
        Scores and relevance, both (rows, M), and by how much equal scores may differ for rounding, (rows, 1).
    """
    dtype = sum_dtype(key.device)
    keys = key.to(dtype)
    keys = safe_normalize(keys) if normalize else keys
    # Equal keys get sums in another order at the edge of a block, so that equal scores need not be equal bits.
    unit = (key.shape[1] + 8) * torch.finfo(dtype).eps * keys.norm(dim=1).amax() if len(key) else 0.0
    rows = max(1, BLOCK // max(1, len(key)))
    for start in range(0, len(query), rows):
        part = slice(start, start + rows)
        queries = query[part].to(dtype)
        queries = safe_normalize(queries) if normalize else queries
        yield queries @ keys.T, relevant(part), unit * queries.norm(dim=1, keepdim=True)


class FirstHit(NamedTuple):
    """Where the best right key of each query stands, each (N,) int64.

    Args:
        ahead: Wrong keys with a higher score.
        ties: Wrong keys with the same score.
        shared: Right keys with that score, at least one.
    """

    ahead: Tensor
    ties: Tensor
    shared: Tensor


@fp32_region
def first_hits(query: Tensor, key: Tensor, ids: Tensor | None, normalize: bool) -> FirstHit:
    """Rank every key for every query; keys with the id of the query are right, without ids the one of its row."""
    own = torch.arange(len(query), device=query.device) if ids is None else ids

    def relevant(part: slice) -> Tensor:
        return own[part].unsqueeze(1) == own

    found = [torch.zeros(3, 0, dtype=torch.int64, device=query.device)]
    for scores, right, slack in blocks(query, key, relevant, normalize):
        best = scores.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        tied = (scores - best).abs() <= slack
        # Counted as what is neither below nor tied, so that a nan never makes a rank better.
        ahead = ~((scores < best) | tied | right)
        shared = (tied & right).sum(1).clamp_min(1)
        found.append(torch.stack([ahead.sum(1), (tied & ~right).sum(1), shared]))
    return FirstHit(*torch.cat(found, 1))


def _chances(ties: int, shared: int) -> Tensor:
    """Chance that 0, 1, ..., ``ties`` wrong keys come before the first of ``shared`` right ones in a random order."""
    wrong = torch.arange(ties, dtype=torch.float64)
    steps = (ties - wrong) / (ties + shared - 1 - wrong)
    return shared / (ties + shared) * torch.cat([torch.ones(1, dtype=torch.float64), steps]).cumprod(0)


def expected_gain(hits: FirstHit, gain: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of ``gain(rank)`` over all orders of tied keys, (N,) in the dtype of sums.

    Args:
        hits: Where the right keys stand.
        gain: Takes ranks from 1, int64, and gives their worth.
    """
    dtype = sum_dtype(hits.ahead.device)
    values = gain(hits.ahead + 1).to(dtype)
    tied = hits.ties > 0
    if not tied.any():
        return values
    # A model that has collapsed ties everything, but in few ways.
    ways, place = torch.unique(torch.stack(hits)[:, tied].cpu(), dim=1, return_inverse=True)
    means = [
        _chances(ties, shared) @ gain(ahead + 1 + torch.arange(ties + 1)).double()
        for ahead, ties, shared in ways.T.tolist()
    ]
    values[tied] = torch.stack(means)[place].to(values.device, dtype)
    return values


class PairMetric(RowMetric):
    """A metric of the ranks of the right keys among all keys of a set.

    Its states hold what came, whatever the settings, so that all such metrics of a MetricCollection share them.

    Args:
        normalize: Whether scores are cosines, or dot products.
        validate_args: Check that embeddings are finite.
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    query: Tensor
    key: Tensor
    ids: Tensor

    def __init__(self, normalize: bool = True, validate_args: bool = True) -> None:
        super().__init__(validate_args)
        check_flag(type(self).__name__, normalize=normalize)
        self.normalize = normalize
        self.add_rows("query", "key", "ids")

    def update(self, query: Tensor, key: Tensor, *, ids: Tensor | None = None) -> None:
        owner = type(self).__name__
        check_embeddings(owner, query, key, self.validate_args)
        check_ids(owner, query, key, ids)
        self._check_ids_throughout(len(query) if ids is not None else 0, len(query))
        self.append("query", query)
        self.append("key", key)
        if ids is not None:
            self.append("ids", ids.to(torch.int64))

    def _check_ids_throughout(self, new_ids: int = 0, new_rows: int = 0) -> None:
        given, rows = len(self.ids) + new_ids, len(self.query) + new_rows
        if given not in (0, rows):
            raise ValueError(f"{type(self).__name__}: ids must be given always or never, got {given} for {rows} pairs")

    def mean_gain(self, gain: Callable[[Tensor], Tensor]) -> Tensor:
        """Mean over the queries of what ``gain`` gives for the rank of the first right key."""
        # Ranks may differ in whether they gave ids.
        self._check_ids_throughout()
        ids = self.ids if len(self.ids) else None
        query, key = (rows if len(rows) else rows.reshape(0, 1) for rows in (self.query, self.key))
        values = expected_gain(first_hits(query, key, ids, self.normalize), gain)
        return self.mean(values.sum(), values.new_tensor(len(values)))
