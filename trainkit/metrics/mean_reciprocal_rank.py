"""Mean reciprocal rank of the first right key."""

import torch
from torch import Tensor

from trainkit._core.checks import check_flag
from trainkit._core.metric import mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit.metrics._retrieval import PairMetric, check_embeddings, check_ids, expected_gain, first_hits

__all__ = ["MeanReciprocalRank", "mean_reciprocal_rank"]


def _reciprocal(rank: Tensor) -> Tensor:
    return rank.to(sum_dtype(rank.device)).reciprocal()


@torch.no_grad()
def mean_reciprocal_rank(
    query: Tensor, key: Tensor, *, ids: Tensor | None = None, normalize: bool = True, validate_args: bool = True
) -> Tensor:
    """Functional form of :class:`MeanReciprocalRank`."""
    owner = "mean_reciprocal_rank"
    check_flag(owner, normalize=normalize)
    check_embeddings(owner, query, key, validate_args)
    check_ids(owner, query, key, ids)
    values = expected_gain(first_hits(query, key, ids, normalize), _reciprocal)
    return mean_or_nan(owner, values.sum(), values.new_tensor(len(values)))


class MeanReciprocalRank(PairMetric):
    r"""Mean over queries of one over the rank of the first right key, among all keys of the whole set.

    Use it to validate a dual encoder with one number that, unlike R@k, moves with every rank and needs no k. Every
    query is ranked against every key that came since the last reset, not against those of its batch.

    .. math:: \mathrm{MRR} = \frac{1}{N} \sum_i \frac{1}{r_i}, \qquad
        r_i = 1 + \#\{j : y_j \ne y_i,\ s_{ij} > \max_{y_l = y_i} s_{il}\}

    Args:
        normalize: Rank by cosine; False ranks by dot product.
        validate_args: Check that embeddings are finite.

    Shape:
        - query: (N, D), one row for each pair
        - key: (N, D)
        - ids: (N,) integers, optional: a key is right for every query with its id; without them the one of its row
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.metrics import MeanReciprocalRank
        >>> metric = MeanReciprocalRank()
        >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9, 0.1], [0.8, 0.6]]))
        >>> metric.update(torch.tensor([[0.6, 0.8]]), torch.tensor([[0.1, 0.9]]))
        >>> metric.compute()
        tensor(0.6667, dtype=torch.float64)

    Note:
        Ties, several right keys and repeated rows count as in :class:`RecallAtK`: the value is the expected one over
        random orders of tied keys. State: all embeddings in their own precision, so that memory grows with the set;
        gathered over the ranks, also uneven ones and those without data, and ranked in blocks in fp64 (fp32 on mps)
        whatever autocast says. Exact over any split into batches and ranks. No data gives nan and a warning. Without
        gradients.

    References:
        Voorhees, "The TREC-8 Question Answering Track Report", TREC 1999.
        McSherry and Najork, "Computing Information Retrieval Performance Measures Efficiently in the Presence of Tied
        Scores", ECIR 2008.
    """

    def __init__(self, normalize: bool = True, validate_args: bool = True) -> None:
        super().__init__(normalize, validate_args)

    def compute(self) -> Tensor:
        return self.mean_gain(_reciprocal)
