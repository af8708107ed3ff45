"""What calibration errors share that predict whether an event happens, and are not told classes."""

import torch
from torch import Tensor

from trainkit._core.binning import BinSums, cell_sums, equal_width_edges, equal_width_index
from trainkit._core.checks import check_integer
from trainkit._core.figures import Figure
from trainkit._core.metric import StreamingMetric
from trainkit._core.rasters import Plotted
from trainkit.calibration.metrics._bin_gaps import Measure, Norm, reliability, reliability_figure
from trainkit.calibration.metrics._binned import BinnedScores

__all__ = ["EventMetric", "check_bins", "event_error", "event_sums"]


def check_bins(owner: str, n_bins: int, norm: Norm) -> None:
    """Check the hyper-parameters of the bins."""
    check_integer(owner, "n_bins", n_bins, minimum=1)
    _measure(norm).check(owner, None)


def _measure(norm: Norm) -> Measure:
    return Measure(norm, "count", debias=False, squared=False, per_class=False)


def event_sums(confidence: Tensor, hits: Tensor, weight: Tensor, n_bins: int) -> Tensor:
    """Sums over bins of equal width, (2, B, 2), of events with their confidence and whether they happened, each (M,).

    A number between zero and one is the chance that an event happened.
    """
    return cell_sums(equal_width_index(confidence, n_bins), n_bins, confidence, hits, weight)


def event_error(owner: str, bins: Tensor, norm: Norm, warn: bool = True) -> Tensor:
    """Calibration error of such sums, nan and a warning if there are no events."""
    return _measure(norm).value(owner, BinSums.of(bins), warn=warn)


class EventMetric(Plotted, StreamingMetric):
    """A metric of the confidence in events.

    Args:
        n_bins: Number of bins.
        norm: As in :class:`trainkit.calibration.metrics.BinnedCalibrationError`.
        validate_args: Whether values of the inputs are checked.
    """

    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    bins: Tensor

    def __init__(self, n_bins: int, norm: Norm, validate_args: bool) -> None:
        super().__init__(validate_args)
        check_bins(type(self).__name__, n_bins, norm)
        self.n_bins = n_bins
        self.norm: Norm = norm
        self.add_sums("bins", shape=(2, n_bins, 2))

    def error(self) -> Tensor:
        """The calibration error of all events so far."""
        return event_error(type(self).__name__, self.bins, self.norm, warn=self.update_called)

    @torch.no_grad()
    def figure(self, title: str = "") -> Figure:
        """The reliability diagram of all events so far; all ranks call it together.

        Args:
            title: Above the figure.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            sums = BinSums.of(self.bins)
        return reliability_figure(
            reliability(BinnedScores(sums, equal_width_edges(self.n_bins, self.bins.device))), title
        )
