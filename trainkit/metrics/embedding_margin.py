"""Margin between the scores of right and wrong pairs."""

import warnings

import torch
from torch import Tensor

from trainkit._core.checks import check_flag, check_same_shape, reject
from trainkit._core.metric import StreamingMetric
from trainkit._core.numerics import fp32_region, sum_dtype
from trainkit.metrics._retrieval import blocks, check_embeddings, check_ids

__all__ = ["EmbeddingMargin", "embedding_margin"]


def _check_inputs(
    owner: str, query: Tensor, key: Tensor, target: Tensor | None, ids: Tensor | None, validate_args: bool
) -> None:
    check_embeddings(owner, query, key, validate_args)
    if target is None:
        check_ids(owner, query, key, ids)
        return
    if ids is not None:
        reject(owner, "ids", "be left out where target says which pairs are right", ids)
    check_same_shape(owner, "the rows of query and key", (len(query), len(key)), target=target)
    if target.dtype != torch.bool:
        reject(owner, "target", "hold booleans", target, TypeError)


@fp32_region
def _extremes(
    query: Tensor, key: Tensor, target: Tensor | None, ids: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Least score of the right pairs and largest of the wrong ones, infinite where there are none."""
    own = torch.arange(len(query), device=query.device) if ids is None else ids

    def relevant(part: slice) -> Tensor:
        return own[part].unsqueeze(1) == own if target is None else target[part]

    least = torch.full((), torch.inf, dtype=sum_dtype(query.device), device=query.device)
    greatest = -least
    for scores, right, _ in blocks(query, key, relevant, normalize):
        if scores.numel():
            least = torch.minimum(least, scores.masked_fill(~right, torch.inf).amin())
            greatest = torch.maximum(greatest, scores.masked_fill(right, -torch.inf).amax())
    return least, greatest


def _margins(owner: str, least: Tensor, greatest: Tensor, warn: bool = True) -> dict[str, Tensor]:
    if least.isinf() or greatest.isinf():
        least = greatest = torch.full_like(least, torch.nan)
        if warn:
            message = f"{owner}: the margins are nan, since there were no right or no wrong pairs"
            warnings.warn(message, UserWarning, stacklevel=3)
    return {
        "margin": torch.minimum(least, -greatest),
        "best_margin": (least - greatest) / 2,
        "best_offset": (least + greatest) / 2,
    }


@torch.no_grad()
def embedding_margin(
    query: Tensor,
    key: Tensor,
    *,
    target: Tensor | None = None,
    ids: Tensor | None = None,
    normalize: bool = True,
    validate_args: bool = True,
) -> dict[str, Tensor]:
    """Functional form of :class:`EmbeddingMargin`."""
    owner = "embedding_margin"
    check_flag(owner, normalize=normalize)
    _check_inputs(owner, query, key, target, ids, validate_args)
    return _margins(owner, *_extremes(query, key, target, ids, normalize))


class EmbeddingMargin(StreamingMetric):
    r"""Gap between the lowest score of a right pair and the highest of a wrong one.

    Use it to see whether embeddings separate right from wrong pairs by a threshold at all: a margin above zero means
    that no wrong pair outscores a right one, and how much noise or quantization that bears. One bad pair sets the
    value; for a mean over pairs take :class:`PairAUROC`.

    .. math::
        m_0 = \min(p, -n), \qquad m_b = \frac{p - n}{2}, \qquad b = \frac{p + n}{2}, \qquad
        p = \min_{ij \text{ right}} s_{ij}, \quad n = \max_{ij \text{ wrong}} s_{ij}

    Args:
        normalize: Scores are cosines; False takes dot products.
        validate_args: Check that embeddings are finite.

    Shape:
        - query: (N, D)
        - key: (M, D); M = N unless ``target`` is given
        - target: (N, M) boolean, which pairs are right, optional
        - ids: (N,) integers, optional: pairs with equal ids are right; without both, pairs in the same row are
        - output: mapping of ``margin`` (about a threshold of zero, m_0), ``best_margin`` (about the best threshold,
          m_b) and ``best_offset`` (that threshold, b), each (), float64

    Example:
        >>> import torch
        >>> from trainkit.metrics import EmbeddingMargin
        >>> metric = EmbeddingMargin()
        >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.0, 1.0]]))
        >>> {name: round(value.item(), 4) for name, value in metric.compute().items()}
        {'margin': -0.6, 'best_margin': 0.1, 'best_offset': 0.7}

    Note:
        Only pairs of a query and a key from the same update count, so that batches of another size give another
        value, and small ones one that is too good. For the margin of a whole set pass all keys with every batch of
        queries, and ``target``. "Defined from the abstract", which has the margin about zero; a learned bias moves the
        threshold, hence the other two values. State: running minimum and maximum, fp64 (fp32 on mps), merged over
        ranks, also those without data. Scores are computed in blocks of 2**20, whatever autocast says. No right or no
        wrong pairs give nan and a warning. Without gradients: train on a contrastive loss.

    References:
        Bangachev et al., "Is Dimensionality a Barrier for Retrieval Models?", 2026. arXiv:2605.23556
    """

    is_differentiable = False
    higher_is_better = True

    least: Tensor
    greatest: Tensor

    def __init__(self, normalize: bool = True, validate_args: bool = True) -> None:
        super().__init__(validate_args)
        check_flag("EmbeddingMargin", normalize=normalize)
        self.normalize = normalize
        self.add_state("least", torch.full((), torch.inf, dtype=torch.float64), dist_reduce_fx="min")
        self.add_state("greatest", torch.full((), -torch.inf, dtype=torch.float64), dist_reduce_fx="max")
        self.tell_apart(normalize)

    def update(self, query: Tensor, key: Tensor, *, target: Tensor | None = None, ids: Tensor | None = None) -> None:
        _check_inputs("EmbeddingMargin", query, key, target, ids, self.validate_args)
        least, greatest = _extremes(query, key, target, ids, self.normalize)
        self.least = torch.minimum(self.least, least)
        self.greatest = torch.maximum(self.greatest, greatest)

    def compute(self) -> dict[str, Tensor]:
        return _margins("EmbeddingMargin", self.least, self.greatest, warn=self.update_called)
