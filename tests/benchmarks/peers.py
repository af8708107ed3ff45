"""What the peers compute, written anew from the named version and file, so that none of them must be installed.

Each takes query and key, (N, D), and returns the mean loss. The scale is 20.
"""

import warnings
from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

SCALE = 20.0


def cross_entropy(query: Tensor, key: Tensor) -> Tensor:
    """One-sided InfoNCE as plain PyTorch writes it."""
    return F.cross_entropy(query @ key.T * SCALE, torch.arange(len(query)))


@cache
def _compiled() -> Callable[[Tensor, Tensor], Tensor]:
    return torch.compile(cross_entropy)


def compiled_cross_entropy(query: Tensor, key: Tensor) -> Tensor:
    """The plain form under ``torch.compile`` with its default backend."""
    return _compiled()(query, key)


def mann_whitney(query: Tensor, key: Tensor) -> Tensor:
    """Mean over queries of the logistic of all differences of negative and positive, as plain PyTorch writes it."""
    scores = query @ key.T * SCALE
    values = F.softplus(scores - scores.diagonal()[:, None])
    return (values.sum() - values.diagonal().sum()) / (len(query) * (len(query) - 1))


def open_clip(query: Tensor, key: Tensor) -> Tensor:
    """``ClipLoss`` of open_clip_torch 3.3.0, ``open_clip/loss.py``, on one process: two products, not a transpose."""
    target = torch.arange(len(query))
    by_query = SCALE * query @ key.T
    by_key = SCALE * key @ query.T
    return (F.cross_entropy(by_query, target) + F.cross_entropy(by_key, target)) / 2


def open_clip_local(query: Tensor, key: Tensor) -> Tensor:
    """The same with ``local_loss=True, gather_with_grad=True``: own rows against the gathered rows of both towers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        queries = torch.cat(all_gather(query), dim=0)
        keys = torch.cat(all_gather(key), dim=0)
    target = torch.arange(len(query)) + len(query) * dist.get_rank()
    by_query = SCALE * query @ keys.T
    by_key = SCALE * key @ queries.T
    return (F.cross_entropy(by_query, target) + F.cross_entropy(by_key, target)) / 2


def multiple_negatives(query: Tensor, key: Tensor) -> Tensor:
    """``MultipleNegativesRankingLoss`` of sentence-transformers 6.2.0 with its defaults.

    File ``sentence_transformers/sentence_transformer/losses/multiple_negatives_ranking.py``. It normalises what it is
    given and concatenates the score matrices of its directions, of which there is one.
    """
    rows = torch.arange(len(query))
    query, key = query[rows], torch.cat([key], dim=0)
    scores = F.normalize(query, p=2, dim=1) @ F.normalize(key, p=2, dim=1).T * SCALE
    positive = scores[rows, rows]
    return -(positive - torch.logsumexp(torch.cat([scores], dim=1), dim=1)).mean()


def metric_learning_ntxent(query: Tensor, key: Tensor) -> Tensor:
    """``NTXentLoss`` of pytorch-metric-learning, as installed."""
    from pytorch_metric_learning.losses import NTXentLoss

    labels = torch.arange(len(query))
    # The same object on both sides would be taken for a comparison with itself, which drops the positives.
    return NTXentLoss(temperature=1 / SCALE)(query, labels, ref_emb=key, ref_labels=labels.clone())
