"""Base class of the calibrators."""

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from trainkit._core.buffers import ExactBuffers
from trainkit._core.checks import check_flag, check_floating, check_values, reject, values_checked
from trainkit._core.numerics import fp32_region
from trainkit._core.repr import hyper_parameters
from trainkit._core.typing import InputKind
from trainkit.calibration._common import Task, check_task
from trainkit.calibration._value_rules import prediction_rules
from trainkit.calibration.calibrators._rows import FitRows, Solution, as_logits, fit_region, warn_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Calibrator", "NotFittedError"]


class NotFittedError(RuntimeError):
    """A calibrator was called before it was fitted or had a fit loaded."""


class Calibrator(ExactBuffers):
    """A module with a ``fit`` to held-out predictions; ``forward`` then corrects the logits of a model.

    A subclass registers what it fits with :meth:`register_fitted` and says how in ``_solve`` and ``_transform``. All of
    it is in the ``state_dict``: ``fitted``, ``n_fit`` (targets that counted), ``nll`` (after the fit, on the data of
    the fit), ``iterations``, ``converged`` and the fitted numbers, in float64 under any cast of the module.

    Args:
        task: ``"multiclass"``, ``"binary"`` or ``"multilabel"``.
        input_kind: What predictions are: ``"logits"``, ``"probs"`` or ``"log_probs"``.
        ignore_index: Target that a fit leaves out.
        sync: Whether a fit on several ranks is that of one process on all their rows.
        validate_args: Whether values of the inputs are checked.
    """

    argmax_preserving: ClassVar[bool] = False
    """Whether the class with the largest score stays the largest."""
    order_preserving: ClassVar[bool] = False
    """Whether the order of the scores of a row stays as it is."""
    translation_invariant: ClassVar[bool] = False
    """Whether a constant that is added to a row of logits changes no calibrated probability."""
    supports_soft_targets: ClassVar[bool] = False
    """Whether ``fit`` takes class probabilities as target."""

    fitted: Tensor
    n_fit: Tensor
    nll: Tensor
    iterations: Tensor
    converged: Tensor

    def __init__(
        self,
        task: Task = "multiclass",
        input_kind: InputKind = "logits",
        ignore_index: int = -100,
        sync: bool = True,
        validate_args: bool = True,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_task(owner, task, input_kind, ignore_index)
        check_flag(owner, sync=sync, validate_args=validate_args)
        self.task: Task = task
        self.input_kind: InputKind = input_kind
        self.ignore_index = ignore_index
        self.sync = sync
        self.validate_args = validate_args
        # The buffers are the truth; forward reads this, since a compiler can't branch on a tensor.
        self._is_fitted = False
        self._shown: tuple[str, ...] = ()
        self.register_exact("fitted", torch.tensor(False), persistent=True)
        self.register_exact("n_fit", torch.tensor(0), persistent=True)
        self.register_exact("nll", torch.tensor(torch.nan, dtype=torch.float64), persistent=True)
        self.register_exact("iterations", torch.tensor(0), persistent=True)
        self.register_exact("converged", torch.tensor(False), persistent=True)

    def register_fitted(self, name: str, identity: Tensor) -> None:
        """Register a tensor that a fit determines.

        Args:
            name: Name of the buffer.
            identity: Its value before any fit; a fit may give another shape, which a loaded ``state_dict`` brings too.
        """
        self.register_exact(name, identity.double(), persistent=True)
        self._shown = (*self._shown, name)

    def _solve(self, rows: FitRows) -> Solution:
        """Fit to the rows."""
        raise NotImplementedError

    def _transform(self, logits: Tensor) -> Tensor:
        """Calibrated logits; classes are in dimension 1, and a binary or multilabel logit is that of class 1."""
        raise NotImplementedError

    def fit(self, logits: Tensor, target: Tensor, *, weight: Tensor | None = None) -> "Self":
        """Fit to held-out predictions; what an earlier fit found is replaced.

        On several ranks every rank calls it with its own rows, possibly none.

        Args:
            logits: Predictions, of the kind and shape that the class says.
            target: What happened.
            weight: One number >= 0 for each target.

        Returns:
            The calibrator itself.

        Raises:
            ValueError: If no target counts on any rank, or the inputs break a rule.
        """
        owner = type(self).__name__
        soft = isinstance(target, Tensor) and target.is_floating_point() and self.task == "multiclass"
        if soft and not self.supports_soft_targets:
            reject(owner, "target", "hold class indices", target, TypeError)
        with fit_region(owner, logits):
            rows = FitRows(
                owner,
                logits,
                target,
                weight,
                task=self.task,
                input_kind=self.input_kind,
                ignore_index=self.ignore_index,
                validate_args=self.validate_args,
                sync=self.sync,
            )
            solution = self._solve(rows)
            found = {
                **solution.fitted,
                "fitted": torch.tensor(True),
                "n_fit": torch.tensor(solution.targets),
                "nll": solution.nll,
                "iterations": torch.tensor(solution.iterations),
                "converged": torch.tensor(not solution.doubt),
            }
            for name, value in found.items():
                # A new tensor: a state_dict that was taken before keeps the fit that it was taken of.
                setattr(self, name, value.to(getattr(self, name)))
        self._is_fitted = True
        warn_of(owner, solution)
        return self

    def _check_input(self, logits: Tensor) -> None:
        owner = type(self).__name__
        if not self._is_fitted:
            raise NotFittedError(f"{owner}: fit must be called before forward, or a fitted state_dict be loaded")
        check_floating(owner, logits=logits)
        rows = self.task == "multiclass"
        if logits.dim() < (2 if rows else 1):
            reject(owner, "logits", f"have shape {'(N, C, ...)' if rows else '(N, ...)'}", logits)
        if values_checked(self.validate_args):
            rules = prediction_rules(logits, self.input_kind, rows)
            if rules:
                check_values(owner, *rules)

    def forward(self, logits: Tensor) -> Tensor:
        self._check_input(logits)
        return self._calibrated(logits)

    @fp32_region
    def _calibrated(self, logits: Tensor) -> Tensor:
        return self._transform(as_logits(logits, self.input_kind, self.task == "multiclass"))

    def predict_proba(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities, in the shape of ``logits``; for binary and multilabel those of class 1."""
        calibrated = self(logits)
        probs: Tensor = calibrated.softmax(1) if self.task == "multiclass" else calibrated.sigmoid()
        return probs

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._shown:
            stored = state_dict.get(prefix + name)
            if isinstance(stored, Tensor) and stored.shape != getattr(self, name).shape:
                setattr(self, name, getattr(self, name).new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._is_fitted = bool(self.fitted)

    def extra_repr(self) -> str:
        shown = [hyper_parameters(self)]
        if self._is_fitted:
            shown += [f"{name}={_text(getattr(self, name))}" for name in self._shown]
            shown += [f"n_fit={int(self.n_fit)}, nll={float(self.nll):.6g}, converged={bool(self.converged)}"]
        else:
            shown.append("not fitted")
        return ", ".join(shown)


def _text(value: Tensor) -> str:
    return f"{value.item():.6g}" if value.numel() == 1 else f"tensor{tuple(value.shape)}"
