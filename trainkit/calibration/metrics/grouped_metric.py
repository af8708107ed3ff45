"""Any metric for each group of rows."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from trainkit._core.checks import check_integer, reject
from trainkit._core.figures import Axes, Bars, Figure, Line
from trainkit._core.rasters import Plotted
from trainkit.calibration.metrics._grouped import check_groups
from trainkit.calibration.metrics._slots import SlotMetric

__all__ = ["GroupedMetric"]


class GroupedMetric(Plotted, SlotMetric):
    r"""A metric for each group of rows: classes of patients, sources of images, bins of difficulty.

    Use it around a metric of this package where an average may hide a group that fares badly. The value of a group is
    that of the metric over its rows alone; :class:`PartitionedCalibrationError` gives the average over groups instead.

    .. math:: \theta_g = \theta(\{i : g_i = g\}), \quad g = 0, \dots, G - 1

    Args:
        metric: The metric; its states are sums, or rows of a sample. An interval goes around:
            ``BootstrapInterval(GroupedMetric(metric, num_groups))``.
        num_groups: Number of groups, G.

    Shape:
        - inputs: what ``update`` of the metric takes, each with a row for every row of the first
        - groups: (N,) int64 in [0, G), the group of each row; -1 leaves a row out
        - output: as the metric gives it, with a first dimension of G; nan for a group without rows

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import BrierScore, GroupedMetric
        >>> metric = GroupedMetric(BrierScore(task="binary", input_kind="probs"), num_groups=2)
        >>> metric.update(torch.tensor([1.0, 0.5, 0.0]), torch.tensor([1, 1, 1]), groups=torch.tensor([0, 0, 1]))
        >>> metric.compute()
        tensor([0.2500, 2.0000], dtype=torch.float64)

    Note:
        Exact over any split into batches and ranks where the metric is. An update calls that of the metric once for
        each group in it; the state takes G times that of the metric, or, for one that keeps the sample, 8 bytes a row
        more. :meth:`figure` gives the values as bars, or the metric's own figure of one group; ``plot`` draws it and
        needs the extra ``plots``. Without gradients. Described in no paper.
    """

    def __init__(self, metric: Metric, num_groups: int) -> None:
        check_integer("GroupedMetric", "num_groups", num_groups, minimum=1)
        super().__init__(metric, num_groups, "groups", required=True)
        self.num_groups = num_groups
        self.tell_apart(repr(metric), num_groups)

    def _refuse(self, metric: SlotMetric) -> None:
        name = type(metric).__name__
        reject("GroupedMetric", "metric", f"be inside of this, as in {name}(GroupedMetric(...))", metric, TypeError)

    def slots_of(self, own: Any, count: int) -> Tensor:
        if not isinstance(own, Tensor) or own.shape != (count,):
            reject("GroupedMetric", "groups", f"hold {count} integers, one for each row", own)
        # Always: a wrong group would put a row into the state of another, or of none.
        check_groups("GroupedMetric", own, self.num_groups, validate_args=True)
        return own.to(self.device)

    def compute(self) -> Any:
        values = [self.value(row) for row in torch.eye(self.num_groups, dtype=torch.int64)]
        if isinstance(values[0], Mapping):
            return {name: torch.stack([torch.as_tensor(value[name]) for value in values]) for name in values[0]}
        return torch.stack(values)

    def figure(self, group: int | None = None, title: str = "") -> Figure:
        """The value of each group as a bar, or the metric's own figure of one; all ranks call it together.

        Args:
            group: Group whose figure is shown; None for bars, where the metric gives one number.
            title: Above the figure.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            if group is not None:
                return self._figure_of(group, title)
            values = GroupedMetric.compute(self)
            whole = self.value(torch.ones(self.num_groups, dtype=torch.int64))
        if not isinstance(values, Tensor) or values.dim() > 1:
            reject(
                "GroupedMetric",
                "group",
                f"name one of {self.num_groups}: {type(self.metric).__name__} has many values",
                None,
            )
        name = type(self.metric).__name__
        places = torch.arange(self.num_groups, dtype=torch.float64)
        bars = Bars(tuple((places - 0.4).tolist()), tuple((places + 0.4).tolist()), tuple(values.tolist()), "group")
        line = Line((-0.5, self.num_groups - 0.5), (whole.item(),) * 2, label=f"all {whole.item():.4g}", dashed=True)
        return Figure((Axes((bars, line), title=f"{name} of each group", x_label="group", y_label=name),), title=title)

    def _figure_of(self, group: int, title: str) -> Figure:
        check_integer("GroupedMetric", "group", group, minimum=0)
        if group >= self.num_groups:
            reject("GroupedMetric", "group", f"be < {self.num_groups}", group)
        metric: Any = self.metric
        if not hasattr(metric, "figure"):
            reject("GroupedMetric", "group", f"be None: {type(self.metric).__name__} has no figure", group)
        self.load(torch.eye(self.num_groups, dtype=torch.int64)[group])
        # It has been updated, whatever it counted itself.
        metric._update_count = self._update_count
        try:
            figure: Figure = metric.figure(title=title)
        finally:
            metric.reset()
        return figure
