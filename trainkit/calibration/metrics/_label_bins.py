"""What the metrics on bins of labels share: the bins, the tests of predictions in them, and the state."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainkit._core.binning import equal_mass_index, equal_width_edges, equal_width_index
from trainkit._core.checks import check_choice, check_flag, check_integer, check_values, reject, values_checked
from trainkit._core.figures import Axes, Bars, Line, Points, numbers
from trainkit._core.isotonic import constrained_blocks, pool_adjacent_violators
from trainkit._core.metric import mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit._core.rasters import Plotted
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._binned import BinnedMetric, Reduce, Rows, Scheme, chosen_class, sample_once

__all__ = [
    "Bins",
    "LabelBinning",
    "LabelBinsMetric",
    "Strategy",
    "Test",
    "bins_once",
    "check_parts",
    "label_scheme",
    "reduced",
]

Strategy: TypeAlias = Literal["pavabc", "pava", "uniform", "quantile"]
Test: TypeAlias = Literal["binom", "t"]
Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

CHUNK = 4_000_000
"""Probabilities of counts that exist at once."""

CLOSE = 1e-7
"""How much likelier than the count that was seen another may be, relative, and still be as extreme."""


class LabelBinning(NamedTuple):
    """How labels are put into bins."""

    strategy: Strategy = "pavabc"
    n_min: int = 10
    n_max: int = 1000
    n_bins: int = 10
    official_compat: bool = False

    def check(self, owner: str) -> None:
        check_choice(owner, "strategy", self.strategy, ("pavabc", "pava", "uniform", "quantile"))
        check_integer(owner, "n_min", self.n_min, minimum=1)
        check_integer(owner, "n_max", self.n_max)
        if self.n_max < 2 * self.n_min:
            reject(owner, "n_max", f"be at least twice n_min={self.n_min}", self.n_max)
        check_integer(owner, "n_bins", self.n_bins, minimum=1)
        check_flag(owner, official_compat=self.official_compat)

    def sizes(self, scores: Floats, hits: Integers) -> Integers:
        """Labels of each bin, for labels in the order of their scores."""
        count, compat = len(scores), self.official_compat
        if self.strategy == "uniform":
            index = equal_width_index(torch.from_numpy(scores), self.n_bins).numpy()
            return np.bincount(index, minlength=self.n_bins)
        if self.strategy == "quantile":
            if compat:
                places = (np.linspace(0, 1, self.n_bins + 1) * count).astype(np.int64)
                return places[1:] - places[:-1]
            ones = torch.ones(count, dtype=torch.float64)
            index = equal_mass_index(torch.from_numpy(scores), ones, self.n_bins, "together").numpy()
            return np.bincount(index, minlength=self.n_bins)
        # Labels of one score in an order of their own would be pooled, or parted, by accident.
        starts = np.arange(count) if compat else np.flatnonzero(np.diff(scores, prepend=-1.0))
        each = np.diff(starts, append=count)
        own = np.add.reduceat(hits, starts)
        if self.strategy == "pava":
            _, blocks = pool_adjacent_violators(own / each, each.astype(np.float64))
        elif count <= self.n_min:
            blocks = np.array([len(each)], dtype=np.int64)
        else:
            blocks = constrained_blocks(own, each, self.n_min, self.n_max, count_last_twice=compat)
        ends: Integers = np.append(starts, count)[np.append(0, blocks.cumsum())]
        return ends[1:] - ends[:-1]


@dataclass(frozen=True)
class Bins:
    """Bins in the order of the scores, with what fell into each.

    Args:
        scores: All scores, ascending, (n,).
        edges: (B + 1,)
        count: Labels, (B,).
        positives: Labels that are one, (B,).
    """

    scores: Floats
    edges: Floats
    count: Integers
    positives: Integers

    @classmethod
    def of(cls, owner: str, rows: Rows, binning: LabelBinning) -> "Bins":
        scores, hits, weight = (part.detach().cpu().double().numpy() for part in rows)
        times = weight.astype(np.int64)
        if not ((hits == 0) | (hits == 1)).all() or not (times == weight).all():
            reject(owner, "target", "be zeros and ones with whole weights, since labels are counted", rows[1])
        # By label where scores are equal, so that nothing depends on the order of rows.
        order = np.lexsort((hits, scores))
        scores, labels = (np.repeat(part[order], times[order]) for part in (scores, hits.astype(np.int64)))
        if not len(scores):
            none = np.zeros(1, dtype=np.int64)
            return cls(scores, np.array([0.0, 1.0]), none, none)
        count = binning.sizes(scores, labels)
        ends = count.cumsum()
        if binning.strategy == "uniform":
            edges = equal_width_edges(binning.n_bins).numpy()
        else:
            above, below = (scores[np.clip(ends[:-1] - shift, 0, len(scores) - 1)] for shift in (0, 1))
            edges = np.concatenate([[0.0], (above + below) / 2, [1.0]])
        return cls(scores, edges, count, np.diff(np.append(0, labels.cumsum())[np.append(0, ends)]))

    def each(self) -> Iterable[tuple[Floats, int]]:
        """Scores of each bin and its labels that are one."""
        return zip(np.split(self.scores, self.count.cumsum()[:-1]), self.positives.tolist(), strict=True)

    @property
    def means(self) -> Floats:
        """Mean score of each bin, nan where there is none."""
        return np.array([own.mean() if len(own) else math.nan for own, _ in self.each()])

    @property
    def rates(self) -> Floats:
        """Share of labels that are one, nan where there is none."""
        return np.where(self.count > 0, self.positives / np.maximum(self.count, 1), math.nan)

    def rejected(self, siglevel: float, test: Test, compat: bool) -> Integers:
        """Scores of each bin that the test rejects as the rate of its labels."""
        found = []
        for own, hits in self.each():
            distinct, times = np.unique(own, return_counts=True)
            if test == "binom":
                wrong = _binomial_rejects(distinct, hits, len(own), siglevel)
            else:
                wrong = _t_rejects(distinct, hits, len(own), siglevel, compat)
            found.append(int(times[wrong].sum()))
        return np.array(found, dtype=np.int64)

    def parts(self, value: Tensor) -> dict[str, Tensor]:
        """What is in the bins, beside the value."""
        told = {"edges": self.edges, "count": self.count, "positives": self.positives, "conf": self.means}
        return {"value": value, **{name: torch.from_numpy(part).to(value) for name, part in told.items()}}

    def axes(self, title: str) -> Axes:
        """Mean score and rate of each bin over its width."""
        left, right = numbers(self.edges[:-1]), numbers(self.edges[1:])
        marks = (
            Bars(left, right, numbers(self.rates), label="rate of labels"),
            Line((0.0, 1.0), (0.0, 1.0), label="calibrated", dashed=True),
            Points(numbers(self.means), numbers(self.rates), label="mean score"),
        )
        unit = (0.0, 1.0)
        return Axes(marks, title=title, x_label="score", y_label="rate", x_range=unit, y_range=unit, share=2.0)

    def gaps(self) -> Floats:
        """Distance of mean score and rate times the labels, for each bin."""
        return np.array([abs(own.sum() - hits) for own, hits in self.each()])


def _log_binomial(p: Tensor, k: Tensor, n: int) -> Tensor:
    """Log-probability of each count at each rate, (P, J)."""
    ways = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    p = p.unsqueeze(1)
    logs: Tensor = ways + torch.special.xlogy(k, p) + torch.special.xlog1py(n - k, -p)
    return logs


def _binomial_rejects(p: Floats, hits: int, n: int, siglevel: float) -> npt.NDArray[np.bool_]:
    """Whether the exact two-sided test of ``hits`` in ``n`` has a p-value of at most ``siglevel`` at each rate.

    The p-value is the probability of all counts that are no likelier than the one that was seen.
    """
    rates = torch.from_numpy(p)
    limit = _log_binomial(rates, torch.tensor([float(hits)], dtype=torch.float64), n) + math.log1p(CLOSE)
    # No count in the sum is likelier than the limit: most rates are decided by that alone.
    rejects = (limit[:, 0] + math.log(n + 1) <= math.log(siglevel)).numpy()
    open_rates = np.flatnonzero(~rejects)
    start = 0
    while start < len(open_rates):
        # Counts further from n p than twelve deviations and a hundred have a probability below 1e-30 together.
        first = p[open_rates[start]]
        stop = min(len(open_rates), start + max(1, CHUNK // (n + 1)))
        last = p[open_rates[stop - 1]]
        spread = 6 * math.sqrt(n) + 100
        k = torch.arange(max(0, int(n * first - spread)), min(n, int(n * last + spread)) + 1, dtype=torch.float64)
        chosen = open_rates[start:stop]
        logs = _log_binomial(rates[chosen], k, n)
        value = torch.where(logs <= limit[chosen], logs.exp(), 0).sum(1)
        rejects[chosen] = (value <= siglevel).numpy()
        start = stop
    return rejects


def _t_rejects(p: Floats, hits: int, n: int, siglevel: float, compat: bool) -> npt.NDArray[np.bool_]:
    """Whether the two-sided t-test of the labels' mean has a p-value of at most ``siglevel`` at each rate."""
    rate = hits / n if n else 0.0
    if 0 < rate < 1:
        return np.asarray(np.abs(p - rate) * math.sqrt(n / (rate * (1 - rate))) >= _t_quantile(n - 1, siglevel))
    # Labels without variance: any other rate is infinitely far off.
    return np.full(len(p), True) if compat else (p != rate) & (n > 1)


@lru_cache(maxsize=2048)
def _t_quantile(freedom: int, siglevel: float) -> float:
    """The t statistic whose two-sided p-value is ``siglevel``, by bisection."""
    low, high = -50.0, 700.0
    for _ in range(100):
        middle = (low + high) / 2
        x = 1 / (1 + math.exp(2 * middle) / freedom) if middle < 350 else 0.0
        low, high = (middle, high) if _incomplete_beta(x, freedom / 2, 0.5) > siglevel else (low, middle)
    return math.exp(high)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Share of the Beta(a, b) distribution below x, by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny, value, c, d = 1e-300, 1.0, 1.0, 0.0
    for step in range(10_000):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(front) / a * (value - 1)


def check_parts(owner: str, return_parts: bool, reduce: Reduce | None) -> None:
    """Check the hyper-parameter that asks for bins."""
    check_flag(owner, return_parts=return_parts)
    if return_parts and reduce == "classwise":
        reject(owner, "return_parts", "be False for reduce='classwise', where each class has bins of its own", True)


def label_scheme(
    task: Task, num_classes: int | None, reduce: Reduce | None, input_kind: InputKind, ignore_index: int
) -> Scheme:
    """The sample, as for one bin of equal mass."""
    return Scheme(task, num_classes, 1, "equal_mass", reduce, 0.0, "left", "split", True, input_kind, ignore_index)


def _check_labels(owner: str, target: Tensor, weight: Tensor | None, ignore_index: int, validate_args: bool) -> None:
    """Labels are counted: there are no parts of one."""
    if not values_checked(validate_args):
        return
    if isinstance(target, Tensor) and target.is_floating_point():
        whole = (target == 0) | (target == 1) | (target == ignore_index)
        check_values(owner, ("target", "be 0 or 1, since labels are counted", target, whole))
    if isinstance(weight, Tensor):
        check_values(owner, ("weight", "be whole, since labels are counted", weight, weight == weight.round()))


def bins_once(
    owner: str,
    scheme: Scheme,
    binning: LabelBinning,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    validate_args: bool,
) -> list[Bins]:
    """Bins of one batch, class by class, the same to the last bit as those of a metric after one update."""
    binning.check(owner)
    scheme.check(owner)
    _check_labels(owner, target, weight, scheme.ignore_index, validate_args)
    sample = sample_once(owner, scheme, logits, target, weight, validate_args)
    return [Bins.of(owner, rows, binning) for rows in sample]


def reduced(owner: str, errors: Sequence[float], bins: Sequence[Bins], device: torch.device, warn: bool) -> Tensor:
    """Mean of the errors of classes; nan, with a warning, if none has labels."""
    dtype = sum_dtype(device)
    some = torch.tensor(float(any(own.count.any() for own in bins)), dtype=dtype, device=device)
    return mean_or_nan(owner, torch.tensor(sum(errors) / len(errors), dtype=dtype, device=device), some, warn=warn)


class LabelBinsMetric(Plotted, BinnedMetric):
    """A metric on bins of labels; those with the same scores have the same states and may share them.

    Args:
        scheme: Which scores are looked at.
        binning: How labels are put into bins.
        return_parts: Whether the bins are given beside the value.
        validate_args: Whether values of the inputs are checked.
    """

    __test__ = False
    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0

    def __init__(self, scheme: Scheme, binning: LabelBinning, return_parts: bool, validate_args: bool) -> None:
        super().__init__(scheme, validate_args)
        name = type(self).__name__
        binning.check(name)
        check_parts(name, return_parts, scheme.reduce)
        for setting, value in binning._asdict().items():
            setattr(self, setting, value)
        self.return_parts = return_parts
        self._binning = binning
        # Other metrics of the same scores take probabilities as targets.
        self.tell_apart(scheme, family="LabelBinsMetric")

    def update(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        _check_labels(type(self).__name__, target, weight, self._scheme.ignore_index, self.validate_args)
        super().update(logits, target, weight=weight)

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        squeezed = super()._wrap_compute(compute)

        @wraps(squeezed)
        def computed(*args: Any, **kwargs: Any) -> Any:
            told = squeezed(*args, **kwargs)
            if not isinstance(told, dict):
                return told
            # One bin is a row of bins too, which torchmetrics takes for a number.
            return {name: part if name == "value" else part.reshape(-1) for name, part in told.items()}

        return computed

    def label_bins(self) -> list[Bins]:
        """What has come so far, class by class."""
        return [Bins.of(type(self).__name__, rows, self._binning) for rows in self.sample()]

    def shown(self, class_index: int | None) -> Bins:
        """Bins that a figure shows; all ranks call it together."""
        chosen = chosen_class(type(self).__name__, self._scheme.groups, class_index)
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            return self.label_bins()[chosen]
