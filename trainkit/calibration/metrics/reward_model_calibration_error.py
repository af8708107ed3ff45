"""Calibration error of the preferences that a reward model predicts."""

import torch
from torch import Tensor

from trainkit._core.checks import (
    check_flag,
    check_floating,
    check_same_shape,
    check_values,
    values_checked,
)
from trainkit._core.numerics import softplus, sum_dtype
from trainkit.calibration.metrics._bin_gaps import Norm
from trainkit.calibration.metrics._event_bins import EventMetric, check_bins, event_error, event_sums

__all__ = ["RewardModelCalibrationError", "reward_model_calibration_error"]


def _sums(
    owner: str,
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    weight: Tensor | None,
    n_bins: int,
    validate_args: bool,
) -> tuple[Tensor, Tensor]:
    """Sums over bins, and those of negative log likelihood and squared distance."""
    check_floating(owner, chosen_scores=chosen_scores, rejected_scores=rejected_scores)
    check_same_shape(owner, "chosen_scores", chosen_scores.shape, rejected_scores=rejected_scores, weight=weight)
    if values_checked(validate_args):
        rules = [
            ("chosen_scores", "be finite", chosen_scores, chosen_scores.isfinite()),
            ("rejected_scores", "be finite", rejected_scores, rejected_scores.isfinite()),
        ]
        if weight is not None:
            rules.append(("weight", "be finite and >= 0", weight, weight.isfinite() & (weight >= 0)))
        check_values(owner, *rules)
    dtype = sum_dtype(chosen_scores.device)
    gap = (chosen_scores.to(dtype) - rejected_scores.to(dtype)).reshape(-1)
    w = torch.ones_like(gap) if weight is None else weight.to(dtype).reshape(-1)
    hits = (gap > 0).to(dtype) + (gap == 0).to(dtype) / 2
    scores = torch.stack([softplus(-gap), torch.sigmoid(-gap).square()])
    return event_sums(torch.sigmoid(gap.abs()), hits, w, n_bins), (w * scores).sum(1)


def _told(error: Tensor, bins: Tensor, scores: Tensor, return_parts: bool) -> Tensor | dict[str, Tensor]:
    if not return_parts:
        return error
    weights = bins[0].sum(0)
    nll, brier = scores / weights.sum()
    return {"error": error, "accuracy": weights[1] / weights.sum(), "nll": nll, "brier": brier}


@torch.no_grad()
def reward_model_calibration_error(
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    *,
    weight: Tensor | None = None,
    n_bins: int = 15,
    norm: Norm = "l1",
    return_parts: bool = False,
    validate_args: bool = True,
) -> Tensor | dict[str, Tensor]:
    """Functional form of :class:`RewardModelCalibrationError`."""
    owner = "reward_model_calibration_error"
    check_bins(owner, n_bins, norm)
    check_flag(owner, return_parts=return_parts)
    bins, scores = _sums(owner, chosen_scores, rejected_scores, weight, n_bins, validate_args)
    return _told(event_error(owner, bins, norm), bins, scores, return_parts)


class RewardModelCalibrationError(EventMetric):
    r"""Mean distance between the confidence of a reward model in its preferences and how often these are right.

    Use it to say whether the margin of a reward can be read as a probability, as the Bradley-Terry model has it. That
    one of each pair is called chosen says nothing: confidence is that in the answer with the larger score.

    .. math:: \mathrm{CE}_q = \Big( \sum_b \frac{W_b}{\sum_j W_j} \Big| \frac{A_b - S_b}{W_b} \Big|^q \Big)^{1/q}
        \quad c_i = \max(p_i, 1 - p_i), \; p_i = \sigma(r_i^{\text{chosen}} - r_i^{\text{rejected}}), \;
        a_i = [p_i > \tfrac{1}{2}]

    with W, S and A the sums over bin b of the weights, of the confidences c and of the hits a, and q = 1 or 2;
    ``norm="max"`` is the largest gap of any bin.

    Args:
        n_bins: Number of bins of equal width.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.
        return_parts: Give a dict with the error, the accuracy, the negative log likelihood and the Brier score.
        validate_args: Check the values of scores and weight.

    Shape:
        - chosen_scores: score of the answer that was preferred, of any shape (N, ...)
        - rejected_scores: score of the other answer, as chosen_scores
        - weight: one number >= 0 for each pair, optional
        - output: () or, for ``return_parts``, a dict of ``error``, ``accuracy``, ``nll`` (mean of :math:`-\ln p`) and
          ``brier`` (mean of :math:`(1 - p)^2`); float64

    Example:
        >>> import torch
        >>> from trainkit.calibration.metrics import RewardModelCalibrationError
        >>> metric = RewardModelCalibrationError()
        >>> metric.update(torch.tensor([1.0, 0.5, 2.0]), torch.tensor([0.0, 1.5, 1.0]))
        >>> metric.compute()
        tensor(0.0644, dtype=torch.float64)
        >>> metric.figure().axes[0].title
        'Reliability (3 scores)'

    Note:
        Defined from the abstract of the reference. The error of p itself against a label that is always one would
        measure accuracy, and is not what is taken. A pair of equal scores has the confidence 1/2 and is half a hit, so
        that a model that does not tell answers apart is calibrated, and no model is right by giving equal scores. A
        bin is [a, b), the last one closed. State: fp64 sums of constant size (fp32 on mps), exact over any split into
        batches and ranks. :meth:`figure` gives the reliability diagram as data; ``plot`` draws it and needs the extra
        ``plots``. Nothing to average gives nan and a warning. Without gradients.

    References:
        Thies et al., "Calibrated Preference Learning: The Case of Label Ranking", 2026. arXiv:2605.30447
    """

    scores: Tensor

    def __init__(
        self, n_bins: int = 15, norm: Norm = "l1", return_parts: bool = False, validate_args: bool = True
    ) -> None:
        super().__init__(n_bins, norm, validate_args)
        check_flag("RewardModelCalibrationError", return_parts=return_parts)
        self.return_parts = return_parts
        self.add_sums("scores", shape=(2,))
        self.tell_apart(n_bins)

    def update(self, chosen_scores: Tensor, rejected_scores: Tensor, *, weight: Tensor | None = None) -> None:
        bins, scores = _sums(
            "RewardModelCalibrationError", chosen_scores, rejected_scores, weight, self.n_bins, self.validate_args
        )
        self.bins = self.bins + bins
        self.scores = self.scores + scores

    def compute(self) -> Tensor | dict[str, Tensor]:
        return _told(self.error(), self.bins, self.scores, self.return_parts)
