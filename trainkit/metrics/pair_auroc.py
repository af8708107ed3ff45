"""Area under the ROC curve of scores over positive and negative pairs, exact and from histograms."""

import warnings
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_choice,
    check_floating,
    check_integer,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.figures import Figure
from trainkit._core.metric import RowMetric, StreamingMetric
from trainkit._core.numerics import sum_dtype
from trainkit._core.rasters import Plotted
from trainkit.metrics._pair_figure import BARS, pair_figure

__all__ = ["BinnedPairAUROC", "PairAUROC", "binned_pair_auroc", "pair_auroc"]

Pairing: TypeAlias = Literal["global", "per_query"]
EmptyTargetAction: TypeAlias = Literal["skip", "neg", "pos", "error"]


def _check(owner: str, pairing: str, empty_target_action: str) -> None:
    check_choice(owner, "pairing", pairing, ("global", "per_query"))
    check_choice(owner, "empty_target_action", empty_target_action, ("skip", "neg", "pos", "error"))


def _check_bins(owner: str, n_bins: int, low: float, high: float) -> None:
    check_integer(owner, "n_bins", n_bins, minimum=1)
    check_number(owner, "low", low)
    check_number(owner, "high", high, minimum=low, open_minimum=True)


def _flat(owner: str, scores: Tensor, target: Tensor, validate_args: bool) -> tuple[Tensor, Tensor]:
    """Scores and whether they are of positive pairs, checked, in one dimension."""
    check_floating(owner, scores=scores)
    check_same_shape(owner, "scores", scores.shape, target=target)
    if values_checked(validate_args):
        check_values(
            owner,
            ("scores", "be finite", scores, scores.isfinite()),
            ("target", "be 0 or 1", target, (target == 0) | (target == 1)),
        )
    return scores.detach().reshape(-1), target.reshape(-1) == 1


def _flat_index(owner: str, scores: Tensor, index: Tensor | None) -> Tensor:
    if index is None:
        reject(owner, "index", "be given for pairing='per_query'", index)
    check_same_shape(owner, "scores", scores.shape, index=index)
    if index.is_floating_point() or index.is_complex():
        reject(owner, "index", "hold integers", index, TypeError)
    return index.reshape(-1).to(torch.int64)


def _areas(positives: Tensor, negatives: Tensor, query: Tensor, queries: int) -> Tensor:
    """Area for each query, nan for one without positives or without negatives.

    Args:
        positives: Positive pairs in each cell of tied scores, int64; cells ascend by query, then by score.
        negatives: Negative pairs in each cell.
        query: Query of each cell.
        queries: Number of queries.
    """
    totals = torch.zeros(2, queries, dtype=torch.int64, device=query.device)
    totals = totals.index_add(1, query, torch.stack([positives, negatives]))
    below = negatives.cumsum(0) - negatives - (totals[1].cumsum(0) - totals[1])[query]
    # Products of counts are larger than int64 holds; as floating point numbers they are exact up to 2**53.
    dtype = sum_dtype(query.device)
    wins = positives.to(dtype) * (2 * below + negatives).to(dtype)
    wins = wins.new_zeros(queries).index_add(0, query, wins)
    return (wins / (2 * totals[0].to(dtype) * totals[1].to(dtype))).clamp(0, 1)


def _tied(scores: Tensor, positive: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Positive and negative pairs in each cell of tied scores, which ascend by query, then by score; and its query.

    All pairs are of one query without ``index``.
    """
    # Adding zero makes of minus zero what compares equal to it.
    values, rank = torch.unique(scores.to(sum_dtype(scores.device)) + 0.0, return_inverse=True)
    query = torch.zeros_like(rank)
    if index is not None:
        query = torch.unique(index, return_inverse=True)[1]
    cells, cell = torch.unique(query * len(values) + rank, return_inverse=True)
    positives, negatives = (torch.bincount(cell[side], minlength=len(cells)) for side in (positive, ~positive))
    return positives, negatives, cells // max(len(values), 1)


def _sorted_areas(scores: Tensor, positive: Tensor, index: Tensor | None) -> Tensor:
    """Areas from the sample, one a query."""
    positives, negatives, query = _tied(scores, positive, index)
    return _areas(positives, negatives, query, int(query.max()) + 1 if len(query) else 0)


def _mean(owner: str, areas: Tensor, action: EmptyTargetAction, warn: bool = True) -> Tensor:
    """Mean over the queries; ``action`` says what those count that lack a class."""
    lacking = areas.isnan()
    if action == "error" and lacking.any():
        raise ValueError(f"{owner}: {int(lacking.sum())} of {len(areas)} queries lack positive or negative pairs")
    counted = areas[~lacking] if action == "skip" else areas.nan_to_num(float(action == "pos"))
    if warn and not len(counted):
        message = f"{owner}: the value is nan, since no query has positive and negative pairs"
        warnings.warn(message, UserWarning, stacklevel=3)
    return counted.mean()


def _histograms(scores: Tensor, positive: Tensor, n_bins: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs in each cell; the first and the last hold what is out of range."""
    values = scores.to(sum_dtype(scores.device))
    inner = ((values - low) * (n_bins / (high - low))).floor().clamp(0, n_bins - 1).long() + 1
    cell = torch.where(values < low, 0, torch.where(values > high, n_bins + 1, inner))
    positives, negatives = (torch.bincount(cell[side], minlength=n_bins + 2) for side in (positive, ~positive))
    return positives, negatives


def _binned_areas(positives: Tensor, negatives: Tensor) -> Tensor:
    queries = int((positives + negatives).any())
    query = torch.zeros_like(positives)
    return _areas(positives, negatives, query, 1)[:queries]


@torch.no_grad()
def pair_auroc(
    scores: Tensor,
    target: Tensor,
    *,
    index: Tensor | None = None,
    pairing: Pairing = "global",
    empty_target_action: EmptyTargetAction = "skip",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`PairAUROC`."""
    _check("pair_auroc", pairing, empty_target_action)
    flat, positive = _flat("pair_auroc", scores, target, validate_args)
    groups = _flat_index("pair_auroc", scores, index) if pairing == "per_query" else None
    return _mean("pair_auroc", _sorted_areas(flat, positive, groups), empty_target_action)


@torch.no_grad()
def binned_pair_auroc(
    scores: Tensor,
    target: Tensor,
    *,
    n_bins: int = 4096,
    low: float = -1.0,
    high: float = 1.0,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`BinnedPairAUROC`."""
    _check_bins("binned_pair_auroc", n_bins, low, high)
    flat, positive = _flat("binned_pair_auroc", scores, target, validate_args)
    return _mean("binned_pair_auroc", _binned_areas(*_histograms(flat, positive, n_bins, low, high)), "skip")


class PairAUROC(Plotted, RowMetric):
    r"""Chance that a positive pair scores higher than a negative one, with ties as one half.

    Use it to validate a model that scores pairs, such as a dual encoder, without a choice of threshold or k. Scores
    are any numbers whose order means something; they are never passed through a sigmoid, which in fp32 ties all
    large ones.

    .. math:: \mathrm{AUROC} = \frac{1}{|P| |N|} \sum_{i \in P} \sum_{j \in N} [s_i > s_j] + \tfrac{1}{2} [s_i = s_j]

    Args:
        pairing: ``"global"`` compares all positive with all negative pairs; ``"per_query"`` only those of the same
            query, as told by ``index``, and takes the mean over queries.
        empty_target_action: What a query counts that has no positive or no negative pairs: nothing (``"skip"``), 0
            (``"neg"``), 1 (``"pos"``), or ``"error"``. With ``pairing="global"`` there is one query.
        validate_args: Check that scores are finite and targets 0 or 1.

    Shape:
        - scores: (N,), or any shape
        - target: as scores, 1 for positive pairs and 0 for negative ones
        - index: as scores, integers, equal for the pairs of a query; needed for ``pairing="per_query"`` only
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.metrics import PairAUROC
        >>> metric = PairAUROC()
        >>> metric.update(torch.tensor([20.0, 30.0, 25.0]), torch.tensor([0, 1, 0]))
        >>> metric.update(torch.tensor([25.0]), torch.tensor([1]))
        >>> metric.compute()
        tensor(0.8750, dtype=torch.float64)

    Note:
        State: every score in its own precision and its target, so that memory grows with the number of pairs; it is
        gathered over the ranks, also uneven ones and those without data. Exact over any split into batches and ranks;
        a query may be spread over them. Counts are integers and their products fp64 (fp32 on mps), which holds any
        number of pairs. For more scores than memory holds take :class:`BinnedPairAUROC`. :meth:`figure` gives the
        distributions and the ROC curve as data; ``plot`` draws them and needs the extra ``plots``. No query with both
        classes gives nan and a warning. Rows that a sampler repeats to even out ranks count twice. Without gradients:
        train on a ranking loss.

    References:
        Hanley and McNeil, "The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC) Curve",
        Radiology 1982. doi:10.1148/radiology.143.1.7063747
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    scores: Tensor
    target: Tensor
    index: Tensor

    def __init__(
        self,
        pairing: Pairing = "global",
        empty_target_action: EmptyTargetAction = "skip",
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        _check("PairAUROC", pairing, empty_target_action)
        self.pairing: Pairing = pairing
        self.empty_target_action: EmptyTargetAction = empty_target_action
        self.add_rows("scores", "target", *(["index"] if pairing == "per_query" else []))

    def update(self, scores: Tensor, target: Tensor, *, index: Tensor | None = None) -> None:
        flat, positive = _flat("PairAUROC", scores, target, self.validate_args)
        if self.pairing == "per_query":
            self.append("index", _flat_index("PairAUROC", scores, index))
        self.append("scores", flat)
        self.append("target", positive.to(torch.uint8))

    def compute(self) -> Tensor:
        index = self.index if self.pairing == "per_query" else None
        areas = _sorted_areas(self.scores, self.target == 1, index)
        return _mean("PairAUROC", areas, self.empty_target_action, warn=self.update_called)

    def figure(self, title: str = "") -> Figure:
        """Histograms of the scores so far and the ROC curve, for ``pairing="global"``; all ranks call it together.

        Args:
            title: Above the figure.
        """
        if self.pairing != "global":
            reject("PairAUROC", "pairing", "be 'global' for a figure: a mean over queries has no curve", self.pairing)
        auroc = self.compute()
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            scores, positive = self.scores, self.target == 1
            low = float(scores.min()) if len(scores) else 0.0
            high = float(scores.max()) if len(scores) else 1.0
            high = high if high > low else low + max(abs(low), 1.0)
            histogram = _histograms(scores, positive, BARS, low, high)
            positives, negatives, _ = _tied(scores, positive, None)
        return pair_figure(histogram, low, high, (positives, negatives), auroc, title)


class BinnedPairAUROC(Plotted, StreamingMetric):
    r"""Chance that a positive pair scores higher than a negative one, from two histograms of constant size.

    Use it in place of :class:`PairAUROC` where there are too many pairs to keep, as all pairs of a validation set.

    .. math:: \mathrm{AUROC} \approx \frac{1}{|P| |N|} \sum_b P_b \Big( \sum_{a < b} N_a + \tfrac{1}{2} N_b \Big)

    with :math:`P_b` and :math:`N_b` the positive and negative pairs in cell b. Scores in one cell count as ties, so
    that the error is at most :math:`\frac{1}{2 |P| |N|} \sum_b P_b N_b`, half the share of pairs that meet in a cell.

    Args:
        n_bins: Cells of equal width between ``low`` and ``high``.
        low: Least score expected; the default suits cosines.
        high: Largest score expected.
        validate_args: Check that scores are finite and targets 0 or 1.

    Shape:
        - scores: (N,), or any shape
        - target: as scores, 1 for positive pairs and 0 for negative ones
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.metrics import BinnedPairAUROC
        >>> metric = BinnedPairAUROC(n_bins=100)
        >>> metric.update(torch.tensor([0.2, 0.3, 0.25]), torch.tensor([0, 1, 0]))
        >>> metric.update(torch.tensor([0.251]), torch.tensor([1]))
        >>> metric.compute()
        tensor(0.8750, dtype=torch.float64)

    Note:
        Scores below ``low`` or above ``high`` are never moved into the range: they have a cell of their own at each
        end, which keeps their order against all others and ties them among themselves. State: two int64 histograms of
        ``n_bins`` + 2 cells, so that any split into batches and ranks gives the same value, which is an approximation.
        Their products are fp64 (fp32 on mps), which holds any number of pairs. :meth:`figure` gives the distributions
        and the ROC curve as data; ``plot`` draws them and needs the extra ``plots``. No positive or no negative pairs
        give nan and a warning. Without gradients.

    References:
        Hanley and McNeil, "The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC) Curve",
        Radiology 1982. doi:10.1148/radiology.143.1.7063747
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    exact = False

    positives: Tensor
    negatives: Tensor

    def __init__(self, n_bins: int = 4096, low: float = -1.0, high: float = 1.0, validate_args: bool = True) -> None:
        super().__init__(validate_args)
        _check_bins("BinnedPairAUROC", n_bins, low, high)
        self.n_bins = n_bins
        self.low = low
        self.high = high
        self.add_counts("positives", "negatives", shape=(n_bins + 2,))
        self.tell_apart(n_bins, low, high)

    def update(self, scores: Tensor, target: Tensor) -> None:
        flat, positive = _flat("BinnedPairAUROC", scores, target, self.validate_args)
        positives, negatives = _histograms(flat, positive, self.n_bins, self.low, self.high)
        self.positives = self.positives + positives
        self.negatives = self.negatives + negatives

    def compute(self) -> Tensor:
        areas = _binned_areas(self.positives, self.negatives)
        return _mean("BinnedPairAUROC", areas, "skip", warn=self.update_called)

    def figure(self, title: str = "") -> Figure:
        """Histograms of the scores so far and the ROC curve; all ranks call it together.

        Args:
            title: Above the figure.
        """
        auroc = self.compute()
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            histogram = self.positives, self.negatives
        return pair_figure(histogram, self.low, self.high, histogram, auroc, title)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, exact={self.exact}"
