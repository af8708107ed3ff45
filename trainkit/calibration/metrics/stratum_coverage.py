"""Coverage of prediction sets inside of groups."""

import warnings

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_flag,
    check_integer,
    check_number,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.figures import Axes, Bars, Figure, Line, numbers
from trainkit._core.metric import StreamingMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit._core.rasters import Plotted
from trainkit.calibration.metrics._grouped import check_groups, extremes

__all__ = ["StratumCoverage", "stratum_coverage"]


def _check(owner: str, num_groups: int, alpha: float, min_count: float, return_parts: bool) -> None:
    check_integer(owner, "num_groups", num_groups, minimum=1)
    check_number(owner, "alpha", alpha, minimum=0, maximum=1, open_minimum=True, open_maximum=True)
    check_number(owner, "min_count", min_count, minimum=0, open_minimum=True)
    check_flag(owner, return_parts=return_parts)


def _sums(
    owner: str,
    covered: Tensor,
    groups: Tensor,
    size: Tensor | None,
    weight: Tensor | None,
    num_groups: int,
    validate_args: bool,
) -> Tensor:
    """Sums over each group of the weight, and of weight times: covered, a size is known, the size; (4, G)."""
    for name, value in (("covered", covered), ("groups", groups)):
        if not isinstance(value, Tensor):
            reject(owner, name, "be a tensor", value, TypeError)
    check_same_shape(owner, "covered", covered.shape, groups=groups, size=size, weight=weight)
    check_groups(owner, groups, num_groups, validate_args)
    if values_checked(validate_args):
        rules = []
        if covered.dtype != torch.bool:
            rules.append(("covered", "be True or False, or 1 or 0", covered, (covered == 0) | (covered == 1)))
        for name, given in (("size", size), ("weight", weight)):
            if given is not None:
                rules.append((name, "be finite and >= 0", given, given.isfinite() & (given >= 0)))
        if rules:
            check_values(owner, *rules)
    dtype = sum_dtype(covered.device)
    weights = torch.ones_like(covered, dtype=dtype) if weight is None else weight.to(dtype)
    shares = [torch.ones_like(weights), covered.to(dtype)]
    shares += [torch.zeros_like(weights)] * 2 if size is None else [torch.ones_like(weights), size.to(dtype)]
    kept = torch.where(groups >= 0, weights, 0)
    terms = (kept * torch.stack(shares)).flatten(1)
    return terms.new_zeros(4, num_groups).index_add(1, groups.clamp_min(0).flatten(), terms)


def _parts(owner: str, sums: Tensor, alpha: float, min_count: float, warn: bool = True) -> dict[str, Tensor]:
    count, covered, known, size = sums
    coverage, kept = covered / count, count >= min_count
    least, largest = extremes(coverage, kept)
    marginal = mean_or_nan(owner, covered.sum(), count.sum(), warn=warn)
    if warn and count.any() and not kept.any():
        message = f"{owner}: no group weighs min_count={min_count:g}, so that the worst coverage is nan"
        warnings.warn(message, UserWarning, stacklevel=3)
    return {
        "marginal": marginal,
        "per_group": coverage,
        "worst": least,
        "disparity": extremes((coverage - (1 - alpha)).abs(), kept)[1],
        "range": largest - least,
        "gap": extremes((coverage - marginal).abs(), kept)[1],
        "size": size / known,
        "count": count,
        "excluded": ((count > 0) & ~kept).to(count.dtype),
    }


@torch.no_grad()
def stratum_coverage(
    covered: Tensor,
    *,
    groups: Tensor,
    size: Tensor | None = None,
    weight: Tensor | None = None,
    num_groups: int,
    alpha: float = 0.1,
    min_count: float = 30,
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`StratumCoverage`."""
    owner = "stratum_coverage"
    _check(owner, num_groups, alpha, min_count, return_parts)
    sums = _sums(owner, covered, groups, size, weight, num_groups, validate_args)
    parts = _parts(owner, sums, alpha, min_count)
    return parts if return_parts else parts["worst"]


class StratumCoverage(Plotted, StreamingMetric):
    r"""How often prediction sets hold the true label in every group of inputs, and in the worst.

    Use it beside the coverage over all inputs, which a conformal predictor keeps on average only: sets that are too
    small for the hard inputs and too large for the easy ones have the right coverage over both. Groups must not be
    made from the label; :func:`entropy_strata`, :func:`size_strata` and :func:`feature_strata` make some.

    .. math:: \mathrm{cov}_g = \frac{\sum_{i \in g} w_i [y_i \in C_i]}{\sum_{i \in g} w_i}, \quad
        \mathrm{worst} = \min_{g : W_g \ge m} \mathrm{cov}_g, \quad
        \mathrm{disparity} = \max_{g : W_g \ge m} |\mathrm{cov}_g - (1 - \alpha)|

    with C the prediction sets, W the weights and m ``min_count``.

    Args:
        num_groups: Number of groups, G.
        alpha: Share of labels that sets may miss, in (0, 1); of use for ``disparity`` and the figure.
        min_count: Least weight of a group that counts in ``worst``, ``disparity``, ``range`` and ``gap``: in small
            groups chance alone makes the coverage low.
        return_parts: Give a dict of all numbers, in place of the worst coverage.
        validate_args: Check the values of covered, groups, size and weight.

    Shape:
        - covered: (N, ...), whether the set of each input holds its label; bool, or zeros and ones
        - groups: int64, the group of each input, -1 for one that is left out
        - size: one number >= 0 for each input, optional: how large its set is
        - weight: one number >= 0 for each input, optional
        - output: () or, for ``return_parts``, a dict of ``marginal`` (coverage over all groups), ``worst``,
          ``disparity``, ``range`` (largest less least coverage) and ``gap`` (largest distance from marginal), and of
          ``per_group``, ``size`` (mean), ``count`` (weights) and ``excluded`` (1 for a group below min_count), (G,);
          float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import StratumCoverage
        >>> metric = StratumCoverage(num_groups=2, min_count=2)
        >>> metric.update(torch.tensor([True, True, True, False]), groups=torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
        >>> metric.figure().axes[0].title
        'Coverage 0.75, worst group 0.5'

    Note:
        The work that it follows is known by its abstract only, which leaves open whether its disparity is taken to the
        target, to the marginal coverage or between groups: all three are given, as ``disparity``, ``gap`` and
        ``range``. A group without inputs has coverage nan. Mean sizes are over the inputs whose size was given. No
        direction is better for the worst coverage: above 1 - alpha, sets are larger than they need be. State: four
        sums for each group in fp64 (fp32 on mps), exact over any split into batches and ranks. :meth:`figure` gives
        the figure as data; ``plot`` draws it and needs the extra ``plots``. Nothing to average gives nan and a
        warning, and so does a worst group where none weighs ``min_count``. Without gradients.

    References:
        Gao et al., "On the Burden of Achieving Fairness in Conformal Prediction", 2026. arXiv:2605.14260
    """

    is_differentiable = False
    higher_is_better = None
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    sums: Tensor

    def __init__(
        self,
        num_groups: int,
        alpha: float = 0.1,
        min_count: float = 30,
        return_parts: bool = False,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        _check("StratumCoverage", num_groups, alpha, min_count, return_parts)
        self.num_groups = num_groups
        self.alpha = float(alpha)
        self.min_count = float(min_count)
        self.return_parts = return_parts
        self.add_sums("sums", shape=(4, num_groups))
        self.tell_apart(num_groups)

    def update(
        self, covered: Tensor, *, groups: Tensor, size: Tensor | None = None, weight: Tensor | None = None
    ) -> None:
        self.sums = self.sums + _sums(
            "StratumCoverage", covered, groups, size, weight, self.num_groups, self.validate_args
        )

    def compute(self) -> Tensor | dict[str, Tensor]:
        parts = _parts("StratumCoverage", self.sums, self.alpha, self.min_count, warn=self.update_called)
        return parts if self.return_parts else parts["worst"]

    def figure(self, title: str = "") -> Figure:
        """Coverage of each group beside the target; all ranks call it together.

        Args:
            title: Above the figure.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            sums = self.sums.cpu()
        parts = _parts("StratumCoverage", sums, self.alpha, self.min_count, warn=False)
        return _figure(parts, 1 - self.alpha, title)


def _figure(parts: dict[str, Tensor], target: float, title: str) -> Figure:
    marginal, worst = float(parts["marginal"]), float(parts["worst"])
    places = torch.arange(len(parts["count"]), dtype=torch.float64)
    left, right = numbers(places - 0.4), numbers(places + 0.4)
    ends = (-0.5, len(places) - 0.5)
    marks: list[Bars | Line] = []
    for label, excluded in (("groups", 0), ("too small to count", 1)):
        shown = parts["excluded"] == excluded
        heights = torch.where(shown, parts["per_group"], torch.nan)
        if not heights.isnan().all():
            marks.append(Bars(left, right, numbers(heights), label=label))
    marks += [
        Line(ends, (target, target), label="target", dashed=True),
        Line(ends, (marginal, marginal), label="all groups"),
    ]
    above = Axes(
        tuple(marks),
        title=f"Coverage {marginal:.4g}, worst group {worst:.4g}",
        x_label="group",
        y_label="coverage",
        x_range=ends,
        y_range=(0.0, 1.0),
        share=1.6,
    )
    if parts["size"].isnan().all():
        return Figure((above,), title=title)
    sizes = Bars(left, right, numbers(parts["size"]))
    below = Axes((sizes,), x_label="group", y_label="mean size of sets", x_range=ends)
    return Figure((above, below), title=title)
