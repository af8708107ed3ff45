"""What the metrics of binned scores share: which scores they look at, their bins, and the state that holds them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.binning import (
    Binning,
    BinSums,
    Closed,
    Ties,
    cell_sums,
    equal_mass_edges,
    equal_mass_index,
    equal_width_edges,
    equal_width_index,
    top_and_hits,
)
from trainkit._core.checks import check_choice, check_flag, check_integer, check_number, reject
from trainkit._core.metric import RowMetric
from trainkit._core.numerics import sum_dtype
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Predictions, Task, canonicalized_blocks, check_classes, check_task

__all__ = ["BinnedMetric", "BinnedScores", "Reduce", "Rows", "Scheme", "binned_once", "chosen_class", "sample_once"]

Reduce: TypeAlias = Literal["top_label", "classwise", "all"]
Rows: TypeAlias = tuple[Tensor, Tensor, Tensor]

CELLS = 2**14
"""Cells of the histogram that stands in for the sample where that is not kept."""


@dataclass(frozen=True)
class BinnedScores:
    """Sums over bins and the edges between these.

    Args:
        sums: Of shape (B,), or (G, B) for one row of bins a class.
        edges: (B + 1,) or (G, B + 1).
    """

    sums: BinSums
    edges: Tensor


@dataclass(frozen=True)
class Scheme:
    """Which scores are looked at, and how they are put into bins: all that the states of a binned metric depend on."""

    task: Task
    num_classes: int | None
    n_bins: int
    binning: Binning
    reduce: Reduce | None
    threshold: float
    closed: Closed
    ties: Ties
    exact: bool
    input_kind: InputKind
    ignore_index: int
    top_k: int = 1

    def check(self, owner: str) -> None:
        check_task(owner, self.task, self.input_kind, self.ignore_index)
        check_integer(owner, "n_bins", self.n_bins, minimum=1)
        check_choice(owner, "binning", self.binning, ("equal_width", "equal_mass"))
        if self.reduce is not None:
            check_choice(owner, "reduce", self.reduce, ("top_label", "classwise", "all"))
        check_number(owner, "threshold", self.threshold, minimum=0, maximum=1, open_maximum=True)
        check_choice(owner, "closed", self.closed, ("left", "right"))
        check_choice(owner, "ties", self.ties, ("split", "together"))
        check_flag(owner, exact=self.exact)
        check_integer(owner, "top_k", self.top_k, minimum=1)
        if self.top_k > 1 and not self.looks_at_top:
            reject(owner, "top_k", f"be 1 for reduce={self.reduce!r}, which looks at single classes", self.top_k)
        if self.num_classes is not None:
            check_integer(owner, "num_classes", self.num_classes, minimum=1)
        elif self.reduce == "classwise" and self.task != "binary":
            reject(owner, "num_classes", "be given for reduce='classwise'", self.num_classes)
        if self.binning == "equal_width" and not self.exact:
            reject(owner, "exact", "be True for binning='equal_width', which is exact without the sample", self.exact)

    @property
    def keeps_rows(self) -> bool:
        """Whether the whole sample is needed."""
        return self.binning == "equal_mass" and self.exact

    @property
    def looks_at_top(self) -> bool:
        """Whether the scores are those of the largest probabilities of each row."""
        return self.reduce == "top_label" or (self.reduce is None and self.task == "multiclass")

    @property
    def groups(self) -> int | None:
        """Number of classes that have bins of their own; None if all scores share one row of bins."""
        if self.reduce != "classwise":
            return None
        return 1 if self.task == "binary" or self.num_classes is None else self.num_classes

    @property
    def cells(self) -> int:
        """Cells of equal width that sums are kept of."""
        return CELLS if self.binning == "equal_mass" else self.n_bins

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one number for every cell."""
        return (self.cells,) if self.groups is None else (self.groups, self.cells)

    @property
    def powers(self) -> int:
        """Powers of the scores that are summed; squares cost little in one row of bins, and other metrics need them."""
        return 3 if self.binning == "equal_width" and self.groups is None else 2

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of the sums that are kept."""
        return (self.powers, *self.shape, 2)

    def rows(
        self, owner: str, logits: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
    ) -> Iterator[Rows]:
        """Scores, (M, G), hits as the scores, and weights, (M, G) or (M, 1), in blocks that together are the batch."""
        for block in canonicalized_blocks(
            owner,
            logits,
            target,
            weight,
            task=self.task,
            input_kind=self.input_kind,
            ignore_index=self.ignore_index,
            validate_args=validate_args,
            with_tops=self.looks_at_top and self.top_k == 1,
        ):
            check_classes(owner, logits, self.task, self.num_classes)
            classes = block.values.shape[1]
            if self.top_k > classes:
                reject(owner, "top_k", f"be <= {classes}, the number of classes", self.top_k)
            yield self._reduced(block)

    def cell_sums(self, rows: Iterable[Rows]) -> Tensor:
        """Sums of a batch over cells of equal width, of shape ``state_shape``."""
        groups = self.groups or 1
        total: Tensor | None = None
        for scores, hits, weight in rows:
            index = equal_width_index(scores, self.cells, self.closed)
            if groups > 1:
                index += torch.arange(groups, device=index.device) * self.cells
            own = cell_sums(index, groups * self.cells, scores, hits, self._kept(scores, weight), self.powers)
            total = own if total is None else total.add_(own)
        if total is None:
            raise ValueError("a batch is at least one block of rows, got none")
        return total.view(self.state_shape)

    def sample(self, scores: Tensor, hits: Tensor, weight: Tensor) -> Iterator[Rows]:
        """Rows, as :meth:`rows` gives them, class by class: scores, hits and weights above zero, each (n,)."""
        return _by_class(scores.T, hits.T, self._kept(scores, weight).T)

    def sample_of_cells(self, bins: Tensor) -> Iterator[Rows]:
        """Each cell in one piece, as a row of its weight, class by class."""
        weight, scores, hits = (part.reshape(-1, self.cells) for part in BinSums.of(bins))
        return _by_class(scores / weight, hits / weight, weight)

    def binned(self, sample: Iterable[Rows]) -> BinnedScores:
        """Bins of equal mass for each class of a sample in turn."""
        sums, edges = [], []
        for s, a, w in sample:
            index = equal_mass_index(s, w, self.n_bins, self.ties)
            sums.append(torch.stack(BinSums.of(cell_sums(index, self.n_bins, s, a, w))))
            edges.append(equal_mass_edges(index, s, self.n_bins))
        shape = self.shape[:-1]
        return BinnedScores(
            BinSums(*torch.stack(sums, 1).view(3, *shape, self.n_bins)), torch.stack(edges).view(*shape, -1)
        )

    def rebinned(self, bins: Tensor) -> BinnedScores:
        """Bins from cells: those of equal width as they are, those of equal mass with each cell in one piece."""
        if self.binning == "equal_width":
            edges = equal_width_edges(self.n_bins, bins.device)
            return BinnedScores(BinSums.of(bins), edges.expand(*self.shape[:-1], -1))
        return self.binned(self.sample_of_cells(bins))

    def _reduced(self, inputs: Predictions) -> Rows:
        values, target, weight = inputs.values, inputs.target, inputs.weight.unsqueeze(1)
        soft = target.is_floating_point()
        if self.looks_at_top and self.top_k == 1 and not soft:
            top, hits = inputs.tops or top_and_hits(values, target, negative=inputs.logarithmic)
            return (top.exp() if inputs.logarithmic else top).unsqueeze(1), hits.unsqueeze(1), weight
        if self.looks_at_top:
            values, top = self._top(values, inputs.logarithmic)
            hits = target.gather(1, top).sum(1, True) if soft else (target.unsqueeze(1) == top).any(1, True)
            return values, hits, weight
        if self.task == "multiclass":
            hits = target if soft else target.unsqueeze(1) == torch.arange(values.shape[1], device=values.device)
            if self.reduce != "classwise":
                weight = weight.expand_as(values).reshape(-1, 1)
                values, hits = values.reshape(-1, 1), hits.reshape(-1, 1)
        else:
            shape = (-1, self.groups or 1)
            hits = (target[:, 1] if soft else target == 1).reshape(shape)
            values, weight = values[:, 1].reshape(shape), weight.reshape(shape)
        return values.exp() if inputs.logarithmic else values, hits, weight

    def _top(self, values: Tensor, logarithmic: bool) -> tuple[Tensor, Tensor]:
        """Sum of the largest probabilities of each row, (M, 1), and which they are; of equal ones the first."""
        if self.top_k == 1:
            values, top = values.max(1, keepdim=True)
            return values.exp() if logarithmic else values, top
        values, order = values.sort(dim=1, descending=True, stable=True)
        values = values[:, : self.top_k].exp() if logarithmic else values[:, : self.top_k]
        return values.sum(1, keepdim=True).clamp_max(1), order[:, : self.top_k]

    def _kept(self, scores: Tensor, weight: Tensor) -> Tensor:
        """Weights as the scores, zero for those that the threshold leaves out."""
        weight = weight.to(sum_dtype(scores.device)).expand_as(scores)
        return torch.where(scores > self.threshold, weight, 0) if self.threshold else weight


def _by_class(scores: Tensor, hits: Tensor, weight: Tensor) -> Iterator[Rows]:
    """What weighs something in each row of tensors of shape (G, n)."""
    for s, a, w in zip(scores, hits, weight, strict=True):
        kept = w > 0
        yield s[kept], a[kept], w[kept]


class BinnedMetric(RowMetric):
    """A metric of binned scores; those with the same :class:`Scheme` have the same states and may share them.

    Args:
        scheme: Which scores are looked at, and their bins.
        validate_args: Whether values of the inputs are checked.
    """

    bins: Tensor
    scores: Tensor
    hits: Tensor
    weights: Tensor

    def __init__(self, scheme: Scheme, validate_args: bool = True) -> None:
        super().__init__(validate_args)
        scheme.check(type(self).__name__)
        self._scheme = scheme
        for setting in fields(scheme):
            setattr(self, setting.name, getattr(scheme, setting.name))
        if scheme.keeps_rows:
            self.add_rows("scores", "hits", "weights")
        else:
            self.add_sums("bins", shape=scheme.state_shape)
        self.tell_apart(scheme, family="BinnedMetric")

    def update(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        scheme = self._scheme
        rows = scheme.rows(type(self).__name__, logits, target, weight, self.validate_args)
        if scheme.keeps_rows:
            for name, parts in zip(("scores", "hits", "weights"), kept_rows(rows, weight is None), strict=True):
                self.append(name, parts)
            return
        self.bins = self.bins + scheme.cell_sums(rows)

    def binned(self) -> BinnedScores:
        """What has come so far, in bins."""
        if not self._scheme.keeps_rows:
            return self._scheme.rebinned(self.bins)
        return self._scheme.binned(self.sample())

    def sample(self) -> Iterator[Rows]:
        """What has come so far, class by class, for a scheme of equal mass: the rows, or cells where none are kept."""
        if not self._scheme.keeps_rows:
            return self._scheme.sample_of_cells(self.bins)
        if not len(self.scores):
            empty = self.scores.new_zeros(0, self._scheme.groups or 1)
            return self._scheme.sample(empty, empty, empty)
        return self._scheme.sample(self.scores, self.hits, self.weights)


def kept_rows(rows: Iterable[Rows], unweighted: bool) -> Rows:
    """Rows of a batch in one piece without those that weigh nothing, in dtypes that take the least memory."""
    parts = []
    for scores, hits, weight in rows:
        kept = (weight > 0).any(1)
        short = weight[kept].to(torch.uint8) if unweighted else weight[kept]
        parts.append((scores[kept], hits[kept].to(torch.uint8 if hits.dtype == torch.bool else hits.dtype), short))
    scores, hits, weights = (torch.cat(part) for part in zip(*parts, strict=True))
    return scores, hits, weights


def binned_once(
    owner: str, scheme: Scheme, logits: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> BinnedScores:
    """Bins of one batch, the same to the last bit as those of a metric after one update."""
    scheme.check(owner)
    rows = scheme.rows(owner, logits, target, weight, validate_args)
    if scheme.keeps_rows:
        return scheme.binned(scheme.sample(*kept_rows(rows, weight is None)))
    return scheme.rebinned(scheme.cell_sums(rows))


def sample_once(
    owner: str, scheme: Scheme, logits: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool
) -> Iterator[Rows]:
    """:meth:`BinnedMetric.sample` after one update, the same to the last bit."""
    scheme.check(owner)
    rows = scheme.rows(owner, logits, target, weight, validate_args)
    if scheme.keeps_rows:
        return scheme.sample(*kept_rows(rows, weight is None))
    return scheme.sample_of_cells(scheme.cell_sums(rows))


def chosen_class(owner: str, classes: int | None, class_index: int | None) -> int:
    """Class that a figure shows; it need not be named where there is one, or where classes are not told apart.

    Args:
        owner: Class that errors name.
        classes: Number of classes; None if all scores are looked at together.
        class_index: What the user asked for.
    """
    if classes is None:
        if class_index is not None:
            reject(owner, "class_index", "be None: all scores are looked at together", class_index)
        return 0
    if class_index is None and classes > 1:
        reject(owner, "class_index", f"name one of {classes} classes", class_index)
    chosen = class_index or 0
    check_integer(owner, "class_index", chosen, minimum=0)
    if chosen >= classes:
        reject(owner, "class_index", f"be < {classes}", chosen)
    return chosen
