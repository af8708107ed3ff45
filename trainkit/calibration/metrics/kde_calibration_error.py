"""Calibration error by kernel density estimation: the accuracy at a prediction is that of similar predictions."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from trainkit._core.checks import check_choice, check_integer, check_number
from trainkit._core.kde import leave_one_out, select_bandwidth
from trainkit._core.metric import RowMetric, mean_or_nan
from trainkit._core.numerics import sum_dtype
from trainkit._core.seeds import mixed
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task, canonicalize, check_task

__all__ = ["KDECalibrationError", "kde_calibration_error"]

Reduce: TypeAlias = Literal["canonical", "classwise", "top_label"]
Rows: TypeAlias = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class _Settings:
    """All hyper-parameters; the states depend on the first four."""

    task: Task
    reduce: Reduce
    input_kind: InputKind
    ignore_index: int
    p: float
    bandwidth: float | None
    max_samples: int | None
    seed: int

    def check(self, owner: str) -> None:
        check_task(owner, self.task, self.input_kind, self.ignore_index)
        check_choice(owner, "reduce", self.reduce, ("canonical", "classwise", "top_label"))
        check_number(owner, "p", self.p, minimum=1)
        if self.bandwidth is not None:
            check_number(owner, "bandwidth", self.bandwidth, minimum=0, open_minimum=True)
        if self.max_samples is not None:
            check_integer(owner, "max_samples", self.max_samples, minimum=2)
        check_integer(owner, "seed", self.seed, minimum=0)

    def rows(self, owner: str, logits: Tensor, target: Tensor, weight: Tensor | None, validate_args: bool) -> Rows:
        """Scores and hits, (M, G), and weights, (M, 1) or (M, G); hits are bytes unless targets are probabilities."""
        inputs = canonicalize(
            owner,
            logits,
            target,
            weight,
            task=self.task,
            input_kind=self.input_kind,
            ignore_index=self.ignore_index,
            validate_args=validate_args,
        )
        scores, hits, weights = inputs.probs, inputs.target_probs, inputs.weight.unsqueeze(1)
        if self.reduce == "top_label":
            scores, top = scores.max(1, keepdim=True)
            hits = hits.gather(1, top)
        elif self.reduce == "classwise" and self.task != "multiclass":
            labels = logits.shape[1] if self.task == "multilabel" else 1
            scores, hits, weights = (part.reshape(-1, labels) for part in (scores[:, 1], hits[:, 1], weights))
        kept = (weights > 0).any(1)
        short = torch.uint8 if weight is None else weights.dtype
        counted = hits.dtype if inputs.target.is_floating_point() else torch.uint8
        return scores[kept], hits[kept].to(counted), weights[kept].to(short)

    def value(self, owner: str, rows: Rows, warn: bool = True) -> Tensor:
        """The error; nan, with a warning if nothing weighs, where no class has two rows."""
        dtype = sum_dtype(rows[0].device)
        errors = []
        groups = self._groups(*(part.to(dtype) for part in self._subsample(rows))) if len(rows[0]) else ()
        for scores, hits, weight in groups:
            if len(weight) < 2:
                continue
            bandwidth = select_bandwidth(scores, weight) if self.bandwidth is None else self.bandwidth
            found = leave_one_out(scores, hits, bandwidth, weight)
            gaps = (found - scores[:, -hits.shape[1] :]).abs().pow(self.p).sum(1)
            errors.append((weight * gaps).sum() / weight.sum())
        if errors:
            return torch.stack(errors).sum()
        weight_sum = rows[2].sum().to(dtype)
        return mean_or_nan(owner, weight_sum * torch.nan, weight_sum, warn=warn)

    def _groups(self, scores: Tensor, hits: Tensor, weights: Tensor) -> Iterator[Rows]:
        """Distributions, what is estimated of them, and weights above zero, for each error that is summed."""
        if self.reduce == "canonical":
            yield scores, hits, weights.flatten()
            return
        for s, a, w in zip(scores.T, hits.T, weights.T.expand(scores.shape[1], -1), strict=True):
            kept = w > 0
            yield torch.stack([1 - s[kept], s[kept]], 1), a[kept].unsqueeze(1), w[kept]

    def _subsample(self, rows: Rows) -> Rows:
        """At most ``max_samples`` of the rows, the same whatever their order."""
        count = len(rows[0])
        if self.max_samples is None or count <= self.max_samples:
            return rows
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(count, generator=generator)[: self.max_samples].to(rows[0].device)
        chosen = _content_order(rows)[drawn]
        scores, hits, weights = rows
        return scores[chosen], hits[chosen], weights[chosen]


@torch.no_grad()
def _content_order(rows: Rows) -> Tensor:
    """An order of the rows that depends on what is in each alone; equal rows follow one another."""
    words = torch.int32 if sum_dtype(rows[0].device) == torch.float32 else torch.int64
    hashes = torch.zeros(len(rows[0]), dtype=torch.int64, device=rows[0].device)
    for part in rows:
        # Adding zero makes minus zero plus zero.
        bits = (part.to(sum_dtype(part.device)) + 0.0).view(words).long()
        for column in bits.T:
            hashes = mixed(hashes ^ column)
    return hashes.argsort(stable=True)


def kde_calibration_error(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    task: Task = "multiclass",
    reduce: Reduce = "canonical",
    p: float = 1.0,
    bandwidth: float | None = None,
    max_samples: int | None = 2048,
    seed: int = 0,
    input_kind: InputKind = "logits",
    ignore_index: int = -100,
    validate_args: bool = True,
) -> Tensor:
    """Functional form of :class:`KDECalibrationError`, with gradients."""
    owner = "kde_calibration_error"
    settings = _Settings(task, reduce, input_kind, ignore_index, p, bandwidth, max_samples, seed)
    settings.check(owner)
    return settings.value(owner, settings.rows(owner, logits, target, weight, validate_args))


class KDECalibrationError(RowMetric):
    r"""Distance between predictions and the mean target of similar predictions, by kernels on the simplex.

    Use it to ask whether whole distributions are calibrated, which bins cannot say beyond a few classes, or where an
    error is wanted that has gradients. It is consistent, but reads differences of a few rows as errors: compare models
    on the same number of rows.

    .. math::
        \frac{1}{\sum_i w_i} \sum_i w_i \sum_k |r_{ik} - p_{ik}|^p, \quad
        r_i = \frac{\sum_{j \ne i} w_j \, k(p_i; p_j) \, e_{y_j}}{\sum_{j \ne i} w_j \, k(p_i; p_j)}

    with :math:`k(\cdot; p_j)` the density of the Dirichlet distribution of parameters :math:`p_j / h + 1`.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``; a label is a binary target of its own.
        reduce: ``"canonical"`` takes distributions whole, of two classes for a binary target; ``"top_label"`` takes the
            largest probability and whether its class came, and ``"classwise"`` sums over classes, of which a binary
            target has one, each with a Beta kernel on a single probability and a single term of the distance.
        p: Power of the distance, 1 or more; no root is taken.
        bandwidth: Width h of the kernels. None takes, of 20 between 1e-5 and 1, the one under which each row is
            likeliest given the others, for ``"classwise"`` for every class.
        max_samples: Rows that are looked at: a sample of so many if there are more. None for all.
        seed: Seed of that sample.
        input_kind: What the argument ``logits`` holds: ``"logits"``, ``"probs"`` or ``"log_probs"``; never guessed.
        ignore_index: Target that is left out.
        validate_args: Check the values of predictions, target and weight.

    Shape:
        - logits: (N, C, ...) for multiclass and multilabel; (N, ...), (N, 1, ...) or (N, 2, ...) for binary
        - target: (N, ...) class indices or (N, C, ...) probabilities for multiclass; (N, ...) for binary, (N, C, ...)
          for multilabel, zeros and ones or probabilities of class 1, such as the overlap of a detected box
        - weight: one number >= 0 for each target, optional
        - output: (), float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import KDECalibrationError
        >>> metric = KDECalibrationError(task="binary", reduce="classwise", bandwidth=0.1, input_kind="probs")
        >>> metric.update(torch.tensor([0.2, 0.25, 0.7, 0.8]), torch.tensor([0, 1, 1, 1]))
        >>> metric.compute()
        tensor(0.3828, dtype=torch.float64)

    Note:
        Departs from the paper's code: kernels are compared in the log domain, so that nothing underflows and a class
        with one member has finite gradients; logarithms are taken at least 1e-6 from 0 and 1; the likelihood of a
        bandwidth is that of the kernels, which are normalised already, and of equal ones the largest is taken. A weight
        is that of a row in the means; a row is left out of its own estimate with all of it, so that a weight of two is
        not two rows. State: all rows, so that memory grows with them, gathered over the ranks; any split into batches
        and ranks has the same value, since the sample is drawn by what is in the rows and not by their place. With
        more than ``max_samples`` rows the value is that of the sample: ``exact`` is False unless ``max_samples`` is
        None. The time grows with the square of the sample, the memory does not: the kernel matrix exists in blocks.
        Function and call have gradients, through kernels and distances and not through the choice of a bandwidth;
        what has been added up has none. Sums are fp64 (fp32 on mps). One row gives nan, nothing to average nan and a
        warning; a class with fewer than two rows adds nothing.

    References:
        Popordanoska et al., "A Consistent and Differentiable Lp Canonical Calibration Error Estimator", NeurIPS 2022.
        arXiv:2210.07810
        Popordanoska et al., "Beyond Classification: Definition and Density-Based Estimation of Calibration in Object
        Detection", WACV 2024. arXiv:2312.06645
    """

    is_differentiable = True
    higher_is_better = False
    plot_lower_bound = 0.0

    scores: Tensor
    hits: Tensor
    weights: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        reduce: Reduce = "canonical",
        p: float = 1.0,
        bandwidth: float | None = None,
        max_samples: int | None = 2048,
        seed: int = 0,
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        validate_args: bool = True,
    ) -> None:
        super().__init__(validate_args)
        self._settings = _Settings(task, reduce, input_kind, ignore_index, p, bandwidth, max_samples, seed)
        self._settings.check("KDECalibrationError")
        for setting in fields(self._settings):
            setattr(self, setting.name, getattr(self._settings, setting.name))
        self.add_rows("scores", "hits", "weights")
        self.tell_apart(task, reduce, input_kind, ignore_index)

    @property
    def exact(self) -> bool:
        """Whether all rows are looked at, however many come."""
        return self._settings.max_samples is None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, exact={self.exact}"

    def update(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> None:
        rows = self._settings.rows("KDECalibrationError", logits, target, weight, self.validate_args)
        for name, part in zip(("scores", "hits", "weights"), rows, strict=True):
            self.append(name, part)

    def forward(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Error of the batch, with gradients; the batch is added to what came before, without."""
        value: Tensor = super().forward(logits, target, weight=weight)
        # What a logger looks at later would keep the graph, and all activations in it, until the next call.
        logged: Any = value.detach()
        self._forward_cache = logged
        return value

    def compute(self) -> Tensor:
        rows = (self.scores, self.hits, self.weights)
        return self._settings.value("KDECalibrationError", rows, warn=self.update_called)
