"""Groups of inputs that are made without looking at the label."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainkit._core.checks import check_floating, check_integer, check_values, reject, values_checked
from trainkit._core.numerics import fp32_region, sum_dtype
from trainkit._core.typing import InputKind
from trainkit.calibration._common import check_task
from trainkit.calibration._value_rules import prediction_rules

__all__ = ["entropy_strata", "feature_strata", "size_strata"]


def _cut(
    owner: str, argument: str, values: Tensor, num_groups: int, edges: Tensor | Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """Group of each value, and the G - 1 edges between groups, each the least value of the group above it."""
    check_integer(owner, "num_groups", num_groups, minimum=1)
    values = values.detach().to(sum_dtype(values.device))
    if edges is None:
        if not values.numel():
            reject(owner, argument, "have at least one entry where no edges are given", values)
        ordered = values.flatten().sort().values
        ranks = torch.arange(1, num_groups, dtype=torch.float64) * len(ordered) / num_groups
        cuts = ordered[ranks.round().long().clamp_max(len(ordered) - 1).to(ordered.device)]
    else:
        cuts = torch.as_tensor(edges, dtype=values.dtype, device=values.device)
        if cuts.shape != (num_groups - 1,) or not bool((cuts.diff() >= 0).all()):
            reject(owner, "edges", f"be {num_groups - 1} numbers in ascending order, for {num_groups} groups", edges)
    return torch.searchsorted(cuts, values.contiguous(), right=True), cuts


@torch.no_grad()
@fp32_region
def entropy_strata(
    logits: Tensor,
    num_groups: int = 4,
    edges: Tensor | Sequence[float] | None = None,
    input_kind: InputKind = "logits",
    validate_args: bool = True,
) -> tuple[Tensor, Tensor]:
    """Groups of inputs by the entropy of what is predicted for them: from easy to hard, without the label.

    Args:
        logits: Predictions, (N, C, ...).
        num_groups: Number of groups, G, of the same size as far as equal entropies allow.
        edges: The G - 1 edges between groups, as found on other data; found in these if None.
        input_kind: What ``logits`` hold: ``"logits"``, ``"probs"`` or ``"log_probs"``.
        validate_args: Check the values of predictions.

    Returns:
        Groups, int64 (N, ...), and edges, (G - 1,): keep these for other data. A value on an edge is above it.

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import entropy_strata
        >>> logits = torch.tensor([[9.0, 0.0], [1.0, 0.0], [3.0, 0.0], [0.0, 0.0]])
        >>> groups, edges = entropy_strata(logits, num_groups=2)
        >>> groups
        tensor([0, 1, 0, 1])
        >>> entropy_strata(torch.tensor([[5.0, 0.0]]), num_groups=2, edges=edges)[0]
        tensor([0])
    """
    owner = "entropy_strata"
    check_task(owner, "multiclass", input_kind, -1)
    check_floating(owner, logits=logits)
    if logits.dim() < 2:
        reject(owner, "logits", "have shape (N, C, ...)", logits)
    if values_checked(validate_args):
        rules = prediction_rules(logits, input_kind, rows=True)
        if rules:
            check_values(owner, *rules)
    if input_kind == "probs":
        entropy = torch.special.entr(logits).sum(1)
    else:
        log_p = logits.log_softmax(1) if input_kind == "logits" else logits
        entropy = torch.special.entr(log_p.exp()).sum(1)
    return _cut(owner, "logits", entropy, num_groups, edges)


def size_strata(
    size: Tensor, num_groups: int = 4, edges: Tensor | Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Groups of inputs by the size of their prediction sets.

    Args:
        size: How large each set is, (N, ...), integers or not.
        num_groups: Number of groups, G, of the same size as far as equal sizes allow.
        edges: The G - 1 edges between groups, such as [2, 3] for sets of one, of two and of more; found in these
            sizes if None.

    Returns:
        Groups, int64 (N, ...), and edges, (G - 1,): keep these for other data. A value on an edge is above it.

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import size_strata
        >>> size_strata(torch.tensor([1, 4, 2, 1]), num_groups=3, edges=[2, 3])[0]
        tensor([0, 2, 1, 0])
    """
    if not isinstance(size, Tensor):
        reject("size_strata", "size", "be a tensor", size, TypeError)
    check_values("size_strata", ("size", "be finite and >= 0", size, size.isfinite() & (size >= 0)))
    return _cut("size_strata", "size", size, num_groups, edges)


def feature_strata(
    features: Tensor, num_groups: int = 4, edges: Tensor | Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Groups of inputs by one number that is known of each, such as an age or a proximity to the training data.

    Args:
        features: One number for each input, (N, ...), integers or not.
        num_groups: Number of groups, G, of the same size as far as equal numbers allow.
        edges: The G - 1 edges between groups, as found on other data or chosen; found in these numbers if None.

    Returns:
        Groups, int64 (N, ...), and edges, (G - 1,): keep these for other data. A value on an edge is above it.

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import feature_strata
        >>> groups, edges = feature_strata(torch.tensor([30.0, 71.0, 45.0, 18.0]), num_groups=2)
        >>> groups.tolist(), edges.tolist()
        ([0, 1, 1, 0], [45.0])
    """
    if not isinstance(features, Tensor):
        reject("feature_strata", "features", "be a tensor", features, TypeError)
    check_values("feature_strata", ("features", "be finite", features, features.isfinite()))
    return _cut("feature_strata", "features", features, num_groups, edges)
