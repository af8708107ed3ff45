"""Calibration error over bins of confidence and of proximity to the training data."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trainkit._core.binning import BinSums, Closed, Ties, equal_mass_edges, equal_mass_index
from trainkit._core.checks import (
    check_choice,
    check_flag,
    check_floating,
    check_integer,
    check_length,
    check_number,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.metric import RowMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype, upcast
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._binned import Rows, Scheme, kept_rows
from trainkit.calibration.metrics._grouped import OneRow, Paired, grouped_sums, in_pairs, one_row_scheme

__all__ = ["ProximityInformedECE", "proximity_informed_ece"]


def _check(
    owner: str, n_proximity_bins: int, proximity_edges: Sequence[float] | None, ties: Ties, return_parts: bool
) -> None:
    check_integer(owner, "n_proximity_bins", n_proximity_bins, minimum=1)
    check_choice(owner, "ties", ties, ("split", "together"))
    check_flag(owner, return_parts=return_parts)
    if proximity_edges is None:
        return
    check_length(owner, "proximity_edges", proximity_edges, n_proximity_bins + 1, "edge of the n_proximity_bins bins")
    for edge in proximity_edges:
        check_number(owner, "proximity_edges", edge, minimum=0, maximum=1)
    if list(proximity_edges) != sorted(proximity_edges):
        reject(owner, "proximity_edges", "be in ascending order", proximity_edges)


def _pairs(
    owner: str,
    scheme: Scheme,
    logits: Tensor,
    target: Tensor,
    proximity: Tensor,
    weight: Tensor | None,
    validate_args: bool,
) -> Paired:
    """Rows, each with its proximity."""
    pairs = in_pairs(owner, scheme, logits, target, weight, "proximity", upcast(proximity), validate_args)
    check_floating(owner, proximity=proximity)
    if values_checked(validate_args):
        check_values(owner, ("proximity", "be in [0, 1]", proximity, (proximity >= 0) & (proximity <= 1)))
    return pairs


def _frozen_sums(scheme: Scheme, pairs: Paired, edges: Sequence[float]) -> Tensor:
    """Sums over bins of proximity between given edges and of confidence, (2, P, B, 2)."""

    def placed() -> Paired:
        for rows, proximity in pairs:
            dtype = sum_dtype(proximity.device)
            inner = torch.tensor(edges[1:-1], dtype=dtype, device=proximity.device)
            yield rows, torch.searchsorted(inner, proximity.to(dtype).contiguous(), right=True)

    return grouped_sums(scheme, placed(), len(edges) - 1)


def _kept(pairs: Paired, unweighted: bool) -> tuple[Rows, Tensor]:
    """Rows that weigh something, (n, 1) each, and their proximities, (n,)."""
    beside = []

    def rows() -> Iterator[Rows]:
        for block, proximity in pairs:
            beside.append(proximity[block[2].squeeze(1) > 0])
            yield block

    return kept_rows(rows(), unweighted), torch.cat(beside)


def _sample_sums(
    scheme: Scheme, rows: Rows, proximity: Tensor, n_proximity_bins: int, ties: Ties
) -> tuple[Tensor, Tensor]:
    """Sums over bins of equal mass of proximity and of confidence, (2, P, B, 2), and edges of proximity, (P + 1,)."""
    weight = rows[2].squeeze(1)
    index = equal_mass_index(proximity, weight, n_proximity_bins, ties)
    return (
        grouped_sums(scheme, [(rows, index)], n_proximity_bins),
        equal_mass_edges(index, proximity, n_proximity_bins),
    )


def _told(owner: str, bins: Tensor, edges: Tensor, return_parts: bool, warn: bool = True) -> Tensor | dict[str, Tensor]:
    weight, score, hit = BinSums.of(bins)
    gaps, count = (hit - score).abs().sum(1), weight.sum(1)
    error = mean_or_nan(owner, gaps.sum(), count.sum(), warn=warn)
    if not return_parts:
        return error
    return {
        "error": error,
        "per_bin": gaps / count,
        "gap": (hit - score).sum(1) / count,
        "count": count,
        "edges": edges,
    }


@torch.no_grad()
def proximity_informed_ece(
    logits: Tensor,
    target: Tensor,
    *,
    proximity: Tensor,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    n_bins: int = 10,
    n_proximity_bins: int = 10,
    proximity_edges: Sequence[float] | None = None,
    reduce: OneRow | None = None,
    closed: Closed = "left",
    ties: Ties = "split",
    return_parts: bool = False,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`ProximityInformedECE`."""
    owner = "proximity_informed_ece"
    _check(owner, n_proximity_bins, proximity_edges, ties, return_parts)
    scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
    pairs = _pairs(owner, scheme, logits, target, proximity, weight, validate_args)
    if proximity_edges is not None:
        bins = _frozen_sums(scheme, pairs, proximity_edges)
        return _told(owner, bins, bins.new_tensor(proximity_edges), return_parts)
    rows, proximities = _kept(pairs, weight is None)
    bins, edges = _sample_sums(scheme, rows, proximities, n_proximity_bins, ties)
    return _told(owner, bins, edges, return_parts)


class ProximityInformedECE(RowMetric):
    r"""Mean distance of confidence and accuracy over bins of confidence and of proximity to the training data.

    Use it where rare inputs matter: models tend to be too sure far from their training data and not sure enough near
    to it, and in an ECE the two cancel. :class:`~trainkit.calibration.NeighborProximity` measures the proximity.

    .. math:: \mathrm{PIECE} = \sum_{m, h} \frac{W_{mh}}{\sum_i w_i} \big| \mathrm{acc}_{mh} - \mathrm{conf}_{mh} \big|

    over bins m of equal mass of proximity and bins h of equal width of confidence, with W the weights in both.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        n_bins: Number of bins of confidence.
        n_proximity_bins: Number of bins of proximity, P.
        proximity_edges: The P + 1 edges of the bins of proximity, as ``edges`` of the parts on other data gives them;
            the first and the last leave nothing out. None puts the same weight into each bin.
        reduce: ``"top_label"`` or ``"all"``, as in :class:`BinnedCalibrationError`. None is ``"top_label"`` for
            multiclass, else ``"all"``.
        closed: Where a score on an edge belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
        ties: Without edges: ``"split"`` parts equal proximities in the order they came, ``"together"`` keeps them in
            a bin.
        return_parts: Give a dict of the error and what each bin of proximity has in it, in place of the error.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target, proximity and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - proximity: one number in [0, 1] for each target
        - weight: one number >= 0 for each target, optional
        - output: () or, for ``return_parts``, a dict of ``error``, of ``per_bin`` (error inside), ``gap`` (accuracy
          less confidence) and ``count`` (weights) of each bin of proximity, (P,), and of ``edges``, (P + 1,); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import ProximityInformedECE
        >>> metric = ProximityInformedECE(task="binary", n_bins=5, n_proximity_bins=2, input_kind="probs")
        >>> near_to_far = torch.tensor([0.9, 0.8, 0.2, 0.1])
        >>> metric.update(torch.full((4,), 0.7), torch.tensor([1, 1, 1, 0]), proximity=near_to_far)
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)

    Note:
        Never below the ECE over the same bins of confidence. With ``proximity_edges`` the state is a fixed number of
        sums, exact over any split into batches and ranks. Without, the whole sample is kept and memory grows with it;
        exact too, except that ``ties="split"`` depends on the order of equal proximities, and that a weight moves its
        row as a whole, so that repeated rows may be parted where one of that weight is not. The paper's code has
        15 x 15 bins and lets a quantile be an edge of a bin of proximity, which is the same where none is tied. A bin
        of proximity without targets has nan parts. Sums are fp64 (fp32 on mps). Nothing to average gives nan and a
        warning. Without gradients.

    References:
        Xiong et al., "Proximity-Informed Calibration for Deep Neural Networks", NeurIPS 2023. arXiv:2306.04590
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    bins: Tensor
    scores: Tensor
    hits: Tensor
    weights: Tensor
    proximities: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        n_bins: int = 10,
        n_proximity_bins: int = 10,
        proximity_edges: Sequence[float] | None = None,
        reduce: OneRow | None = None,
        closed: Closed = "left",
        ties: Ties = "split",
        return_parts: bool = False,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        owner = "ProximityInformedECE"
        _check(owner, n_proximity_bins, proximity_edges, ties, return_parts)
        self._scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
        self.task: Task = task
        self.n_bins = n_bins
        self.n_proximity_bins = n_proximity_bins
        self.proximity_edges = None if proximity_edges is None else [float(edge) for edge in proximity_edges]
        self.reduce: OneRow | None = reduce
        self.closed: Closed = closed
        self.ties: Ties = ties
        self.return_parts = return_parts
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        if self.proximity_edges is None:
            self.add_rows("scores", "hits", "weights", "proximities")
        else:
            self.add_sums("bins", shape=(2, n_proximity_bins, n_bins, 2))
        self.tell_apart(self._scheme, self.proximity_edges)

    def update(self, logits: Tensor, target: Tensor, *, proximity: Tensor, weight: Tensor | None = None) -> None:
        pairs = _pairs("ProximityInformedECE", self._scheme, logits, target, proximity, weight, self.validate_args)
        if self.proximity_edges is not None:
            self.bins = self.bins + _frozen_sums(self._scheme, pairs, self.proximity_edges)
            return
        rows, proximities = _kept(pairs, weight is None)
        for name, values in zip(("scores", "hits", "weights", "proximities"), (*rows, proximities), strict=True):
            self.append(name, values)

    def compute(self) -> Tensor | dict[str, Tensor]:
        if self.proximity_edges is not None:
            bins, edges = self.bins, self.bins.new_tensor(self.proximity_edges)
        else:
            rows = self.scores, self.hits, self.weights
            if not len(self.scores):
                rows = (self.scores.new_zeros(0, 1),) * 3
            bins, edges = _sample_sums(self._scheme, rows, self.proximities, self.n_proximity_bins, self.ties)
        return _told("ProximityInformedECE", bins, edges, self.return_parts, warn=self.update_called)
