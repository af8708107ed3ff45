"""A straight line through points, and how well it fits."""

from dataclasses import dataclass

from torch import Tensor

from trainkit._core.checks import check_number, reject
from trainkit._core.figures import Axes, Figure, Line, Numbers, Points

__all__ = ["LineFit", "fit_line"]


@dataclass(frozen=True)
class LineFit:
    """Accuracy as a linear function of a score.

    Args:
        slope: Change of the accuracy with the score.
        intercept: Accuracy at a score of zero.
        r_squared: Share of the variance of the accuracies that the line explains; nan if they are all equal.
        scores: Scores that it was fitted to.
        accuracies: Accuracies that it was fitted to.
    """

    slope: float
    intercept: float
    r_squared: float
    scores: Numbers
    accuracies: Numbers

    def predict(self, scores: Tensor) -> Tensor:
        """Accuracy on the line, which may lie outside of [0, 1] far from the scores that it was fitted to."""
        return self.intercept + self.slope * scores

    def figure(self, title: str = "") -> Figure:
        """The points and the line.

        Args:
            title: Above the figure.
        """
        ends = min(self.scores), max(self.scores)
        line = tuple(self.intercept + self.slope * end for end in ends)
        axes = Axes(
            (Points(self.scores, self.accuracies, label="labelled set"), Line(ends, line, label="fit")),
            title=f"R² {self.r_squared:.4f}",
            x_label="score",
            y_label="accuracy",
        )
        return Figure((axes,), title=title)


def fit_line(owner: str, scores: Numbers, accuracies: Numbers) -> LineFit:
    """Least squares.

    Args:
        owner: Function that errors name.
        scores: One number a point.
        accuracies: One number a point, in [0, 1].
    """
    count = len(scores)
    if count < 3:
        reject(owner, "scores", "hold at least 3 numbers, one a labelled set", scores)
    if len(accuracies) != count:
        reject(owner, "accuracies", f"hold {count} numbers, as scores", accuracies)
    for score, accuracy in zip(scores, accuracies, strict=True):
        check_number(owner, "scores", score)
        check_number(owner, "accuracies", accuracy, minimum=0, maximum=1)
    if min(scores) == max(scores):
        reject(owner, "scores", "hold two different numbers", scores)
    x, y = sum(scores) / count, sum(accuracies) / count
    square = sum((s - x) ** 2 for s in scores)
    slope = sum((s - x) * (a - y) for s, a in zip(scores, accuracies, strict=True)) / square
    left = sum((a - y - slope * (s - x)) ** 2 for s, a in zip(scores, accuracies, strict=True))
    constant = min(accuracies) == max(accuracies)
    r_squared = float("nan") if constant else 1 - left / sum((a - y) ** 2 for a in accuracies)
    return LineFit(slope, y - slope * x, r_squared, scores, accuracies)
