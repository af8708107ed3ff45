"""Calibration errors of predicted rankings: of pairs, of subsets, of the first places and of whole rankings."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_choice,
    check_flag,
    check_floating,
    check_integer,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.numerics import sum_dtype
from trainkit._core.typing import InputKind
from trainkit.calibration._common import BLOCK
from trainkit.calibration._value_rules import prediction_rules
from trainkit.calibration.metrics._bin_gaps import Norm
from trainkit.calibration.metrics._event_bins import EventMetric, check_bins, event_error, event_sums

__all__ = ["LabelRankingCalibrationError", "label_ranking_calibration_error"]

Events: TypeAlias = Literal["pairwise", "sub_ranking", "top_k", "full"]
Found: TypeAlias = tuple[Tensor, Tensor, Tensor]

ENUMERATED = 1000
"""Most subsets that are all looked at."""

MOST_ITEMS = 8
"""Most items whose rankings can each be given a probability."""

SLACK = 1e-12
"""How near to each other probabilities are equal, since rounding parts them."""


@dataclass(frozen=True)
class _Scheme:
    """Which events are looked at: all that the bins depend on."""

    events: Events
    k: int | None
    folded: bool
    n_subsets: int
    seed: int
    input_kind: InputKind

    def check(self, owner: str) -> None:
        check_choice(owner, "events", self.events, ("pairwise", "sub_ranking", "top_k", "full"))
        check_choice(owner, "input_kind", self.input_kind, ("logits", "probs", "log_probs"))
        check_flag(owner, folded=self.folded)
        check_integer(owner, "n_subsets", self.n_subsets, minimum=1)
        check_integer(owner, "seed", self.seed, minimum=0)
        if self.events in ("sub_ranking", "top_k"):
            check_integer(owner, "k", self.k, minimum=2 if self.events == "sub_ranking" else 1)
        elif self.k is not None:
            reject(owner, "k", f"be None for events={self.events!r}", self.k)
        if self.folded and self.events != "pairwise":
            reject(owner, "folded", f"be False for events={self.events!r}", True)

    def bins(
        self,
        owner: str,
        scores: Tensor,
        rankings: Tensor,
        weight: Tensor | None,
        n_bins: int,
        validate_args: bool,
    ) -> Tensor:
        """Sums over bins of the events of a batch."""
        self._check_inputs(owner, scores, rankings, weight, validate_args)
        dtype, items = sum_dtype(scores.device), rankings.shape[1]
        subsets = self._subsets(items, scores.device)
        step = max(1, BLOCK // max(scores.shape[1], subsets.numel(), 1))
        total = torch.zeros(2, n_bins, 2, dtype=dtype, device=scores.device)
        for start in range(0, len(scores), step):
            rows = slice(start, start + step)
            values, places = scores[rows].to(dtype), _places(rankings[rows].long())
            w = values.new_ones(len(values)) if weight is None else weight[rows].to(dtype)
            if self.input_kind == "logits":
                found = _of_scores(self, values, places, w, subsets)
            else:
                values = values.exp() if self.input_kind == "log_probs" else values
                found = _of_law(self, values / values.sum(1, keepdim=True), places, w, subsets)
            for confidence, hits, weights in found:
                total += event_sums(confidence.clamp_max(1), hits, weights, n_bins)
        return total

    def _subsets(self, items: int, device: torch.device) -> Tensor:
        """Items whose order among each other is looked at, (S, k); pairs too, and all items for whole rankings."""
        if self.events in ("top_k", "full"):
            return torch.arange(items, device=device).unsqueeze(0)
        size = self.k or 2
        if math.comb(items, size) <= max(ENUMERATED, self.n_subsets) or self.events == "pairwise":
            return torch.combinations(torch.arange(items), size).to(device)
        # Drawn on the CPU, so that all ranks draw the same on any device.
        keys = torch.rand(self.n_subsets, items, generator=torch.Generator().manual_seed(self.seed))
        return keys.argsort(1)[:, :size].sort(1).values.to(device)

    def _check_inputs(
        self, owner: str, scores: Tensor, rankings: Tensor, weight: Tensor | None, validate_args: bool
    ) -> None:
        check_floating(owner, scores=scores)
        if not isinstance(rankings, Tensor):
            reject(owner, "rankings", "be a tensor", rankings, TypeError)
        if rankings.is_floating_point() or rankings.dtype == torch.bool:
            reject(owner, "rankings", "hold integers", rankings, TypeError)
        if rankings.dim() != 2 or rankings.shape[1] == 0:
            reject(owner, "rankings", "have shape (N, L)", rankings)
        count, items = rankings.shape
        if self.input_kind == "logits":
            check_same_shape(owner, "rankings", rankings.shape, scores=scores)
        else:
            if items > MOST_ITEMS:
                reject(owner, "rankings", f"be of at most {MOST_ITEMS} items where each ranking has a value", rankings)
            check_same_shape(owner, "all orders of the items", (count, math.factorial(items)), scores=scores)
        check_same_shape(owner, "the rankings", (count,), weight=weight)
        if self.k is not None and self.k > items:
            reject(owner, "k", f"be <= {items}, the number of items", self.k)
        if not values_checked(validate_args):
            return
        rules = prediction_rules(scores, self.input_kind, True, "scores")
        inside = (rankings >= -1) & (rankings < items)
        rules.append(("rankings", f"hold items in [0, {items}), or -1 for none", rankings, inside))
        items_or_none = torch.where(inside & (rankings >= 0), rankings, items).long()
        times = torch.zeros(count, items + 1, dtype=torch.int64, device=rankings.device)
        times.scatter_add_(1, items_or_none, torch.ones_like(items_or_none))
        once = (times.gather(1, items_or_none) <= 1) | (items_or_none == items)
        rules.append(("rankings", "hold no item twice", rankings, once))
        if weight is not None:
            rules.append(("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))
        check_values(owner, *rules)


def _places(rankings: Tensor) -> Tensor:
    """Place of each item, (N, L), which is L for an item that is not ranked."""
    count, items = rankings.shape
    places = torch.full((count, items + 1), items, device=rankings.device)
    order = torch.arange(items, device=rankings.device).expand(count, items)
    places.scatter_(1, torch.where(rankings < 0, items, rankings), order)
    return places[:, :items]


def _pairs(scheme: _Scheme, before: Tensor, after: Tensor, places: Tensor, weight: Tensor, pairs: Tensor) -> Found:
    """Events of pairs, which are (P, 2), from the probability of either order, (N, P)."""
    first, second = places[:, pairs].unbind(-1)
    w = weight.unsqueeze(1) * (first.maximum(second) < places.shape[1])
    hits = first < second
    if scheme.folded:
        tied = (before - after).abs() <= SLACK
        hits = torch.where(tied, 0.5, (hits == (before > after)).to(before.dtype))
        before = before.maximum(after)
    return before.reshape(-1), hits.reshape(-1), w.reshape(-1)


def _of_scores(scheme: _Scheme, scores: Tensor, places: Tensor, weight: Tensor, subsets: Tensor) -> Iterator[Found]:
    """Events under Plackett-Luce laws; the law of some items is that of their scores."""
    if scheme.events == "pairwise":
        first, second = scores[:, subsets].unbind(-1)
        gap = first - second
        yield _pairs(scheme, gap.sigmoid(), (-gap).sigmoid(), places, weight, subsets)
        return
    size, items = subsets.shape[1], places.shape[1]
    w = weight.unsqueeze(1).expand(-1, len(subsets)).reshape(-1)
    values, places = scores[:, subsets].view(-1, size), places[:, subsets].view(-1, size)
    ranked = places < items
    counts = ranked.sum(1)
    length = counts if scheme.events == "full" else torch.full_like(counts, scheme.k or size)
    rows = (counts >= length) & (counts >= 2)
    yield (*_mode(*(part[rows] for part in (values, places, ranked, length))), w[rows])


def _mode(scores: Tensor, places: Tensor, ranked: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the likeliest first places, and whether they are those observed, for rows of L items.

    Of several that are equally likely each is taken with the same chance.
    """
    values = scores.masked_fill(~ranked, -math.inf)
    ordered = values.sort(1, descending=True).values
    left = ordered.flip(1).logcumsumexp(1).flip(1)
    rank = torch.arange(scores.shape[1], device=scores.device)
    head = rank < length.unsqueeze(1)
    log_p = torch.where(head, ordered - left, 0).sum(1)
    down = -ordered
    equal = torch.searchsorted(down, down, right=True) - rank
    modes = torch.where(head, equal.to(scores.dtype).log(), 0).sum(1)
    same = (values.gather(1, places.argsort(1)) == ordered) | ~head
    return log_p.exp(), same.all(1) * (-modes).exp()


def _of_law(scheme: _Scheme, probs: Tensor, places: Tensor, weight: Tensor, subsets: Tensor) -> Iterator[Found]:
    """Events under any law, from the probabilities of all rankings in lexicographic order."""
    items = places.shape[1]
    orders = torch.tensor(list(permutations(range(items))), device=probs.device).argsort(1)
    if scheme.events == "pairwise":
        first, second = orders[:, subsets].unbind(-1)
        before = (first < second).to(probs.dtype)
        yield _pairs(scheme, probs @ before, probs @ (1 - before), places, weight, subsets)
        return
    ranked = places < items
    if scheme.events == "sub_ranking":
        for chosen in subsets:
            rows = ranked[:, chosen].all(1)
            yield (*_marginal_mode(probs[rows], orders, places[rows], chosen, len(chosen)), weight[rows])
        return
    for mask in ranked.unique(dim=0):
        chosen = mask.nonzero().squeeze(1)
        length = len(chosen) if scheme.k is None else scheme.k
        if len(chosen) >= max(2, length):
            rows = (ranked == mask).all(1)
            yield (*_marginal_mode(probs[rows], orders, places[rows], chosen, length), weight[rows])


def _marginal_mode(probs: Tensor, orders: Tensor, places: Tensor, chosen: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """As :func:`_mode`, for the items ``chosen``; ``orders`` holds the places of items in each ranking, (R, L)."""
    base = orders.shape[1] ** torch.arange(length, device=probs.device)
    mine, theirs = ((chosen[p[:, chosen].argsort(1)[:, :length]] * base).sum(1) for p in (places, orders))
    codes, index = theirs.unique(return_inverse=True)
    marginal = probs.new_zeros(len(probs), len(codes)).index_add_(1, index, probs)
    largest = marginal.amax(1, keepdim=True)
    modes = marginal >= largest - SLACK
    own = modes.gather(1, torch.searchsorted(codes, mine).unsqueeze(1))
    return largest.squeeze(1), own.squeeze(1).to(probs.dtype) / modes.sum(1)


@torch.no_grad()
def label_ranking_calibration_error(
    scores: Tensor,
    rankings: Tensor,
    *,
    weight: Tensor | None = None,
    events: Events = "pairwise",
    k: int | None = None,
    folded: bool = False,
    n_bins: int = 15,
    norm: Norm = "l1",
    n_subsets: int = 256,
    seed: int = 0,
    input_kind: InputKind = "logits",
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`LabelRankingCalibrationError`."""
    owner = "label_ranking_calibration_error"
    check_bins(owner, n_bins, norm)
    scheme = _Scheme(events, k, folded, n_subsets, seed, input_kind)
    scheme.check(owner)
    return event_error(owner, scheme.bins(owner, scores, rankings, weight, n_bins, validate_args), norm)


class LabelRankingCalibrationError(EventMetric):
    r"""Mean distance between the probability of an event in a predicted ranking and how often it happens.

    Use it to say how far the probabilities of a ranker, such as the Plackett-Luce law of its scores, can be taken at
    their word. Calibration of whole rankings implies that of every part, and not the other way round: report several
    ``events``.

    .. math:: \mathrm{CE}_q = \Big( \sum_b \frac{W_b}{\sum_j W_j} \Big| \frac{A_b - S_b}{W_b} \Big|^q \Big)^{1/q}
        \quad P(\pi) = \prod_t \frac{e^{s_{\pi_t}}}{\sum_{u \ge t} e^{s_{\pi_u}}}

    with W, S and A the sums over bin b of the weights, of the probabilities of events and of the hits (see ``events``),
    and q = 1 or 2; ``norm="max"`` is the largest gap of any bin.

    Args:
        events: ``"pairwise"``: item i before item j, for every i < j; ``"sub_ranking"``: the likeliest order of ``k``
            items, for every set of them; ``"top_k"``: the likeliest first ``k`` places; ``"full"``: the likeliest
            ranking.
        k: Number of items of ``"sub_ranking"``, or of places of ``"top_k"``; None for the others.
        folded: Of each pair take the order that is more likely, so that the numbers of items do not matter. Only for
            ``"pairwise"``.
        n_bins: Number of bins of equal width.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.
        n_subsets: How many sets of items are drawn where there are more than that and more than 1000.
        seed: Of that draw, which is the same on every rank.
        input_kind: What ``scores`` holds: ``"logits"`` of Plackett-Luce laws, or ``"probs"`` or ``"log_probs"`` of all
            rankings, for any law.
        validate_args: Check the values of scores, rankings and weight.

    Shape:
        - scores: (N, L), one logit an item; for ``input_kind="probs"`` and ``"log_probs"`` (N, L!), one number for each
          ranking in lexicographic order, as ``itertools.permutations(range(L))`` gives them, for L up to 8
        - rankings: (N, L) items, the best first, and -1 in place of items that are not ranked
        - weight: one number >= 0 for each ranking, optional
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import LabelRankingCalibrationError
        >>> metric = LabelRankingCalibrationError("top_k", k=1)
        >>> metric.update(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([[0, 1, 2], [2, 1, -1]]))
        >>> metric.compute()
        tensor(0.4720, dtype=torch.float64)
        >>> metric.figure().axes[0].title
        'Reliability (2 scores)'

    Note:
        Defined from the abstract of the reference. An item that a row does not rank says nothing: the law is that of
        the ranked items among each other, which Plackett-Luce scores give without a change; rows of fewer than two
        items, or than ``k``, are left out. Every event weighs as its row. Where several orders are equally likely, as
        for equal scores, each is taken with the same chance, so that a law that tells nothing apart is calibrated.
        Probabilities within 1e-12 are equal. A bin is [a, b), the last one closed. Under Plackett-Luce laws nothing is
        enumerated but sets of items. The value is exact except for ``"sub_ranking"`` with drawn sets, where it is an
        estimate of that over all sets. State: fp64 sums of constant size (fp32 on mps), the same over any split into
        batches and ranks. :meth:`figure` gives the reliability diagram as data; ``plot`` draws it and needs the extra
        ``plots``. Nothing to average gives nan and a warning. Without gradients.

    References:
        Thies et al., "Calibrated Preference Learning: The Case of Label Ranking", 2026. arXiv:2605.30447
    """

    def __init__(
        self,
        events: Events = "pairwise",
        k: int | None = None,
        folded: bool = False,
        n_bins: int = 15,
        norm: Norm = "l1",
        n_subsets: int = 256,
        seed: int = 0,
        input_kind: InputKind = "logits",
        validate_args: bool = True,
    ) -> None:
        super().__init__(n_bins, norm, validate_args)
        self.events: Events = events
        self.k = k
        self.folded = folded
        self.n_subsets = n_subsets
        self.seed = seed
        self.input_kind: InputKind = input_kind
        self._scheme = _Scheme(events, k, folded, n_subsets, seed, input_kind)
        self._scheme.check("LabelRankingCalibrationError")
        self.tell_apart(self._scheme, n_bins)

    def extra_repr(self) -> str:
        if self.events != "sub_ranking":
            return super().extra_repr()
        return f"{super().extra_repr()}, exact for up to {max(ENUMERATED, self.n_subsets)} sets of items"

    def update(self, scores: Tensor, rankings: Tensor, *, weight: Tensor | None = None) -> None:
        self.bins = self.bins + self._scheme.bins(
            "LabelRankingCalibrationError", scores, rankings, weight, self.n_bins, self.validate_args
        )

    def compute(self) -> Tensor:
        return self.error()
