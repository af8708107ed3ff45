"""Recall among the first k of a ranking."""

from functools import partial

import torch
from torch import Tensor

from trainkit._core.checks import check_flag, check_integer
from trainkit._core.metric import mean_or_nan
from trainkit.metrics._retrieval import PairMetric, check_embeddings, check_ids, expected_gain, first_hits

__all__ = ["RecallAtK", "recall_at_k"]


def _hit(rank: Tensor, k: int) -> Tensor:
    return rank <= k


@torch.no_grad()
def recall_at_k(
    query: Tensor,
    key: Tensor,
    *,
    ids: Tensor | None = None,
    k: int = 1,
    normalize: bool = True,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`RecallAtK`."""
    owner = "recall_at_k"
    check_integer(owner, "k", k, minimum=1)
    check_flag(owner, normalize=normalize)
    check_embeddings(owner, query, key, validate_args)
    check_ids(owner, query, key, ids)
    hits = expected_gain(first_hits(query, key, ids, normalize), partial(_hit, k=k))
    return mean_or_nan(owner, hits.sum(), hits.new_tensor(len(hits)))


class RecallAtK(PairMetric):
    r"""Share of queries that find a right key among their k best, of all keys of the whole set.

    Use it to validate a dual encoder. Every query is ranked against every key that came since the last reset, not
    against those of its batch: R@k in a batch depends on the batch size and is far too high. For the other direction,
    from text to image as well as from image to text, take a second metric and swap the arguments.

    .. math:: \mathrm{R@}k = \frac{1}{N} \sum_i [r_i \le k], \qquad
        r_i = 1 + \#\{j : y_j \ne y_i,\ s_{ij} > \max_{y_l = y_i} s_{il}\}

    Args:
        k: How many keys of the ranking count.
        normalize: Rank by cosine; False ranks by dot product.
        validate_args: Check that embeddings are finite.

    Shape:
        - query: (N, D), one row for each pair
        - key: (N, D)
        - ids: (N,) integers, optional: a key is right for every query with its id; without them the one of its row
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.metrics import RecallAtK
        >>> metric = RecallAtK(k=1)
        >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9, 0.1], [0.8, 0.6]]))
        >>> metric.update(torch.tensor([[0.6, 0.8]]), torch.tensor([[0.1, 0.9]]))
        >>> metric.compute()
        tensor(0.3333, dtype=torch.float64)

    Note:
        Ties give the expected value over random orders, so that a model that maps everything to one point gets k / N
        and not 1; scores that differ by no more than the rounding of their sums are tied. With several right keys one
        among the k best suffices, as it is counted for image captions. A key that comes with several queries stands in
        the ranking as often, also where a sampler repeats rows to even out ranks; give ids, or use a sampler that
        doesn't. Departure from the book, where recall is the share of the right keys.

        State: all embeddings in their own precision, so that memory grows with the set. They are gathered over the
        ranks, also uneven ones and those without data, and ranked in blocks of 2**20 scores, in fp64 (fp32 on mps) and
        whatever autocast says: exact over any split into batches and ranks. In a MetricCollection it shares its
        state with others of other k and with :class:`MeanReciprocalRank`. No data gives nan and a warning.

    References:
        Manning, Raghavan and Schuetze, "Introduction to Information Retrieval", Cambridge University Press 2008.
        McSherry and Najork, "Computing Information Retrieval Performance Measures Efficiently in the Presence of Tied
        Scores", ECIR 2008.
    """

    def __init__(self, k: int = 1, normalize: bool = True, validate_args: bool = True) -> None:
        super().__init__(normalize, validate_args)
        check_integer("RecallAtK", "k", k, minimum=1)
        self.k = k

    def compute(self) -> Tensor:
        return self.mean_gain(partial(_hit, k=self.k))
