"""Whether the values of predictions are what they are said to be: looked at fast where they are, and named if not."""

from typing import TypeAlias

import torch
from torch import Tensor

from trainkit._core.binning import TILE, UNSURE, order_bits, without_ties
from trainkit._core.typing import InputKind

__all__ = [
    "BOUND_SLACK",
    "SUM_SLACK",
    "Rule",
    "Tops",
    "fine_distributions",
    "plainly_fine",
    "prediction_rules",
    "value_rules",
]

Tops: TypeAlias = tuple[Tensor, Tensor]
Rule: TypeAlias = tuple[str, str, Tensor, Tensor]

SUM_SLACK = 1e-2
"""How far from one a row of probabilities may sum: what rounding to bf16 can do."""

BOUND_SLACK = 1e-6
"""How far above one a probability may lie: what averaging in fp32 can do."""


def fine_distributions(probs: Tensor, target: Tensor | None = None) -> tuple[bool, Tops | None]:
    """:func:`plainly_fine` of distributions over dimension 1, and what :func:`top_and_hits` gives for targets (M,)."""
    # Where none is negative, which the sign bit tells fastest, none is above the largest sum. Results are written in
    # place: an autocast region refuses to join fp16 tensors.
    probs = probs.detach()
    ordered = order_bits(probs)
    step = max(1, TILE * len(probs) // probs.numel())
    sums, top = torch.empty_like(probs[:, 0]), torch.empty_like(ordered[:, 0])
    for part, bits, row_sums, row_top in zip(*(t.split(step) for t in (probs, ordered, sums, top)), strict=True):
        if not bits.amin().item() >= 0:
            return False, None
        torch.sum(part, 1, out=row_sums)
        if target is not None:
            torch.amax(bits, 1, out=row_top)
    least, most = sums.aminmax()
    if not (least.item() >= 1 - SUM_SLACK and most.item() <= 1 + BOUND_SLACK):
        return False, None
    if target is None:
        return True, None
    hits = ordered.gather(1, target.unsqueeze(1)).squeeze(1) == top
    found = top.view(probs.dtype)
    # Of a distribution, one above one half is alone.
    return True, (found, without_ties(ordered, target, top, hits, hits & (found <= UNSURE)))


def plainly_fine(logits: Tensor, input_kind: InputKind, rows: bool) -> bool:
    """Whether extremes and sums show that the values keep the rules, at a quarter of the cost; False says nothing."""
    if logits.device.type != "cpu" or not logits.numel() or input_kind == "log_probs":
        return False
    if input_kind == "probs" and rows:
        return fine_distributions(logits)[0]
    low, high = logits.aminmax()
    if input_kind == "logits":
        return bool(low.isfinite() & high.isfinite())
    return bool((low >= 0) & (high <= 1 + BOUND_SLACK))


def _value_rules(logits: Tensor, input_kind: InputKind, rows: bool) -> list[Rule]:
    """Rules for the values of predictions; ``rows`` if those over dimension 1 are one distribution."""
    if input_kind == "logits":
        return [("logits", "be finite", logits, logits.isfinite())]
    rules: list[Rule] = []
    # The logarithm of zero is a value like others; comparing its power leaves out nan and inf.
    p, words = (
        (logits, "probabilities in [0, 1]") if input_kind == "probs" else (logits.exp(), "log-probabilities <= 0")
    )
    given = f"for input_kind={input_kind!r}"
    rules.append(("logits", f"hold {words} {given}", logits, (p >= 0) & (p <= 1 + BOUND_SLACK)))
    if rows:
        sums = p.sum(1)
        rules.append(("logits", f"hold probabilities that sum to 1 {given}", sums, (sums - 1).abs() <= SUM_SLACK))
    return rules


def value_rules(logits: Tensor, input_kind: InputKind, rows: bool, argument: str) -> list[Rule]:
    """Rules of all values of predictions, which errors name as ``argument``."""
    return [(argument, *rule[1:]) for rule in _value_rules(logits, input_kind, rows)]


def prediction_rules(logits: Tensor, input_kind: InputKind, rows: bool, argument: str = "logits") -> list[Rule]:
    """What is left to check of the values of predictions, for :func:`trainkit._core.checks.check_values`.

    Args:
        logits: Predictions.
        input_kind: What they are.
        rows: Whether those over dimension 1 are one distribution.
        argument: Name of the predictions in errors.
    """
    if plainly_fine(logits, input_kind, rows):
        return []
    return value_rules(logits, input_kind, rows, argument)
