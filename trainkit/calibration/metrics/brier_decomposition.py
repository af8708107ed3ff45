"""The Brier score in parts: reliability, resolution, uncertainty, and what is lost inside of bins."""

import torch
from torch import Tensor

from trainkit._core.binning import BinSums, Closed
from trainkit._core.figures import Axes, Bars, Figure, Line, Points, numbers
from trainkit._core.metric import mean_or_nan
from trainkit._core.rasters import Plotted
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task
from trainkit.calibration.metrics._binned import BinnedMetric
from trainkit.calibration.metrics._grouped import OneRow, one_row_scheme

__all__ = ["BrierDecomposition", "brier_decomposition"]


def _parts(owner: str, bins: Tensor, warn: bool = True) -> dict[str, Tensor]:
    """The parts, of sums over misses and hits of powers 0, 1 and 2 of the score, (3, B, 2)."""
    weight, score, hit = BinSums.of(bins)
    square, both = bins[2].sum(1), bins[1, :, 1]
    filled, total = weight > 0, weight.sum()
    rate = hit.sum() / total

    def inside(values: Tensor) -> Tensor:
        return torch.where(filled, values, 0).sum()

    # Signs of rounding are taken off where a part cannot be below zero.
    sums = {
        "brier": (square - 2 * both + hit).sum().clamp_min(0),
        "reliability": inside((score - hit).square() / weight),
        "resolution": inside(weight * (hit / weight - rate).square()),
        "uncertainty": total * rate * (1 - rate),
        "within_variance": inside((square - score.square() / weight).clamp_min(0)),
        "within_covariance": inside(2 * (both - score * hit / weight)),
    }
    values = mean_or_nan(owner, torch.stack(list(sums.values())), total, warn=warn)
    return dict(zip(sums, values, strict=True))


@torch.no_grad()
def brier_decomposition(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    n_bins: int = 15,
    reduce: OneRow | None = None,
    closed: Closed = "left",
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> dict[str, Tensor]:
    """Functional form of :class:`BrierDecomposition`."""
    owner = "brier_decomposition"
    scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
    return _parts(owner, scheme.cell_sums(scheme.rows(owner, logits, target, weight, validate_args)))


class BrierDecomposition(Plotted, BinnedMetric):
    r"""The Brier score of binned scores as a sum of reliability, resolution, uncertainty and two parts inside of bins.

    Use it to see why a score is good: by probabilities that can be taken at their word (low reliability) or by telling
    rows apart (high resolution). The uncertainty is that of the targets, which no prediction changes.

    .. math:: \mathrm{BS} = \underbrace{\sum_b \omega_b (\bar s_b - \bar a_b)^2}_{\text{reliability}}
        - \underbrace{\sum_b \omega_b (\bar a_b - \bar a)^2}_{\text{resolution}}
        + \underbrace{\bar a (1 - \bar a)}_{\text{uncertainty}}
        + \underbrace{\overline{(s - \bar s_b)^2}}_{\text{within variance}}
        - \underbrace{2\, \overline{(s - \bar s_b)(a - \bar a_b)}}_{\text{within covariance}}

    with s the score, a what happened (see ``reduce``) and :math:`\omega_b` the share of weight in bin b.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        n_bins: Number of bins of equal width.
        reduce: ``"top_label"`` or ``"all"``, as in :class:`BinnedCalibrationError`. None is ``"top_label"`` for
            multiclass, else ``"all"``.
        closed: Where a score on an edge belongs: ``"left"`` for bins [a, b), ``"right"`` for (a, b].
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1
        - weight: one number >= 0 for each target, optional
        - output: a dict of ``brier``, ``reliability``, ``resolution``, ``uncertainty``, ``within_variance`` and
          ``within_covariance``, each (); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import BrierDecomposition
        >>> metric = BrierDecomposition(task="binary", n_bins=2, input_kind="probs")
        >>> metric.update(torch.tensor([0.25, 0.25, 0.75, 0.75]), torch.tensor([0, 0, 1, 0]))
        >>> {name: round(value.item(), 4) for name, value in metric.compute().items()}["resolution"]
        0.0625
        >>> metric.figure().axes[1].title
        'Brier score 0.1875'

    Note:
        The identity holds to rounding for any scores, which the three classical parts alone do not give unless all
        scores of a bin are equal. ``brier`` is that of single probabilities: of the predicted class for multiclass, as
        ``form="top_label"`` of :class:`BrierScore`, and (s - a)^2 for binary targets and labels, half of its full
        form. With few rows a bin, reliability and resolution are both too high by about the variance of an accuracy
        over so many. A target of probabilities counts as so many hits. State: sums over misses and hits of three
        powers of the score in every bin in fp64 (fp32 on mps), exact over any split into batches and ranks; in a
        MetricCollection it is shared with calibration errors over the same bins. :meth:`figure` gives the figure as
        data; ``plot`` draws it and needs the extra ``plots``. Nothing to average gives nan and a warning. Without
        gradients.

    References:
        Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review 1950.
    """

    is_differentiable = False
    higher_is_better = None

    def __init__(
        self,
        task: Task = "multiclass",
        n_bins: int = 15,
        reduce: OneRow | None = None,
        closed: Closed = "left",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        owner = "BrierDecomposition"
        scheme = one_row_scheme(owner, task, n_bins, reduce, closed, input_kind, ignore_index)
        super().__init__(scheme, validate_args)

    def compute(self) -> dict[str, Tensor]:
        return _parts("BrierDecomposition", self.bins, warn=self.update_called)

    def figure(self, title: str = "") -> Figure:
        """Accuracy against confidence beside the base rate, and below it the parts; all ranks call it together.

        Args:
            title: Above the figure.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            bins = self.bins.cpu()
        return _figure(BinSums.of(bins), _parts("BrierDecomposition", bins, warn=False), title)


def _figure(sums: BinSums, parts: dict[str, Tensor], title: str) -> Figure:
    weight, score, hit = sums
    rate = float(hit.sum() / weight.sum())
    above = Axes(
        marks=(
            Line((0.0, 1.0), (0.0, 1.0), label="calibrated", dashed=True),
            # On it, a bin takes by reliability what it gives by resolution.
            Line((0.0, 1.0), (rate / 2, (1 + rate) / 2), label="no gain over the base rate"),
            Line((0.0, 1.0), (rate, rate), label="base rate"),
            Points(numbers((score / weight).tolist()), numbers((hit / weight).tolist()), label="bins"),
        ),
        title=f"Attributes ({float(weight.sum()):g} scores)",
        x_label="mean confidence",
        y_label="accuracy",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        share=1.6,
    )
    signs = {"resolution": -1, "within_covariance": -1}
    bars = [
        Bars(
            (place - 0.4,),
            (place + 0.4,),
            (signs.get(name, 1) * float(parts[name]),),
            label=("less " if name in signs else "") + name.replace("_", " "),
        )
        for place, name in enumerate(parts)
        if name != "brier"
    ]
    below = Axes(marks=tuple(bars), title=f"Brier score {float(parts['brier']):.4f}", y_label="part of the score")
    return Figure((above, below), title=title, height=560)
