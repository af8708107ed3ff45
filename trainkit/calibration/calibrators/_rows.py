"""What calibrators are fitted to: predictions as logits, read in blocks, with sums over blocks and ranks."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit._core.checks import check_floating, reject
from trainkit._core.numerics import sum_dtype
from trainkit._core.typing import InputKind
from trainkit.calibration._common import FLOOR, Task, blocks, by_label, checked, flat
from trainkit.distributed import all_reduce_sum

__all__ = ["Block", "FitRows", "Solution", "as_logits", "fit_region", "warn_of"]


class Block(NamedTuple):
    """Some rows in the dtype of sums; binary and multilabel targets are rows of two.

    Args:
        logits: (M, K), defined up to a constant a row; equal where the target is ignored.
        target: Class indices (M,), zero where ignored, or class probabilities (M, K).
        weight: (M,), zero where the target is ignored.
    """

    logits: Tensor
    target: Tensor
    weight: Tensor


class Solution(NamedTuple):
    """What a solver found.

    Args:
        fitted: The fitted tensors, by the names that they are registered under.
        targets: Number of targets with a weight above zero.
        nll: Mean negative log-likelihood of the calibrated rows.
        iterations: How often the solver read the rows for a step.
        doubt: Why it is no optimum inside of the bounds; empty if it is one.
    """

    fitted: dict[str, Tensor]
    targets: int
    nll: Tensor
    iterations: int
    doubt: str


def warn_of(owner: str, solution: Solution) -> None:
    """Warn the caller's caller of a solution that is to be doubted."""
    if solution.doubt:
        warnings.warn(f"{owner}: {solution.doubt}", UserWarning, stacklevel=3)


@contextmanager
def fit_region(owner: str, logits: Tensor) -> Iterator[None]:
    """Neither gradients nor autocast nor inference mode, in which Lightning validates: a fit outlives it."""
    check_floating(owner, logits=logits)
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(logits.device.type, enabled=False):
        yield


def as_logits(values: Tensor, input_kind: InputKind, rows: bool) -> Tensor:
    """Predictions as logits of the same shape; probabilities below 1e-12 are raised to it, so that all are finite.

    Args:
        values: Predictions.
        input_kind: What they are.
        rows: Whether those over dimension 1 are one distribution; else each is the probability of class 1.
    """
    if input_kind == "logits":
        return values
    if input_kind == "probs":
        log_p = values.clamp(FLOOR, 1).log()
        return log_p if rows else log_p - (1 - values).clamp_min(FLOOR).log()
    log_p = values.clamp(math.log(FLOOR), 0)
    return log_p if rows else log_p - (-log_p.expm1()).clamp_min(FLOOR).log()


class FitRows:
    """The rows of a fit, read block by block as often as a solver asks, so that no copy of all of them is made.

    Args:
        owner: Class or function that errors name.
        logits: Predictions, as :func:`trainkit.calibration._common.canonicalize` takes them; a binary one is a number.
        target: Targets.
        weight: Weights of the targets.
        task: What the targets are.
        input_kind: What the predictions are.
        ignore_index: Target that is left out.
        validate_args: Whether values are checked, in the first reading.
        sync: Whether totals are over all ranks.
    """

    def __init__(
        self,
        owner: str,
        logits: Tensor,
        target: Tensor,
        weight: Tensor | None,
        *,
        task: Task,
        input_kind: InputKind,
        ignore_index: int,
        validate_args: bool,
        sync: bool,
    ) -> None:
        self.owner = owner
        self._inputs = (logits, target, weight)
        self._task: Task = task
        self._input_kind: InputKind = input_kind
        self._ignore_index = ignore_index
        self._validate_args = validate_args
        self._sync = sync

    def _block(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> Block:
        logits, target = (
            value.to(sum_dtype(value.device)) if isinstance(value, Tensor) and value.is_floating_point() else value
            for value in (logits, target)
        )
        inputs = checked(
            self.owner,
            logits,
            target,
            weight,
            self._task,
            self._input_kind,
            self._ignore_index,
            self._validate_args,
        )
        if inputs.rows and self._task == "binary":
            rule = "hold one number for each target of task='binary'; two classes are task='multiclass'"
            reject(self.owner, "logits", rule, logits)
        values = as_logits(inputs.logits, self._input_kind, inputs.rows)
        if inputs.rows:
            return Block(flat(values), inputs.target, inputs.weight)
        single = by_label(values, self._task)
        return Block(torch.stack([torch.zeros_like(single), single], 1), inputs.target, inputs.weight)

    def __iter__(self) -> Iterator[Block]:
        yield from blocks(self._block, *self._inputs)
        self._validate_args = False

    def total(self, figures: Callable[[Block], Tensor]) -> Tensor:
        """Sum of ``figures``, which has one shape, over all blocks and ranks; the same on every rank."""
        own = sum(figures(block) for block in self)
        if not isinstance(own, Tensor):
            raise RuntimeError(f"{self.owner}: a reading of no block has no total")
        return all_reduce_sum(own, call=f"{self.owner}.fit") if self._sync else own
