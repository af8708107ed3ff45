"""What a classifier takes for what."""

from collections.abc import Sequence

from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from trainkit.figures import Axes, Bars, Figure, Matrix

__all__ = ["Accuracy", "BalancedAccuracy"]

SHOWN = 20
"""Classes of which the whole table can be read."""
LETTERS = 8
"""Letters of a name that there is room for."""


class Accuracy(MulticlassConfusionMatrix):
    """Share of rows whose largest logit is the right one."""

    def update(self, logits: Tensor, target: Tensor) -> None:
        super().update(logits, target)

    def compute(self) -> Tensor:
        counts = super().compute().double()
        return counts.diagonal().sum() / counts.sum()


class BalancedAccuracy(MulticlassConfusionMatrix):
    """Mean over the classes that came of the share of their rows that was found, the recall."""

    classes: Sequence[str] | None = None

    def update(self, logits: Tensor, target: Tensor) -> None:
        super().update(logits, target)

    def compute(self) -> Tensor:
        # Kept for the figure, since only here it is the sum over the ranks.
        self.shares = super().compute().double()
        self.shares = self.shares / self.shares.sum(1, keepdim=True)
        return self.shares.diagonal().nanmean()

    def figure(self) -> Figure:
        """Table of true against predicted classes and the recall of each; all ranks call it together."""
        self.compute()
        shares = self.shares.tolist()
        told = range(len(shares)) if self.classes is None else self.classes
        names = tuple(name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…" for name in map(str, told))
        places = range(len(shares))
        bars = Bars(tuple(i - 0.4 for i in places), tuple(i + 0.4 for i in places), tuple(shares[i][i] for i in places))
        recalls = Axes((bars,), title="Recall by class", x_label="class", y_label="recall", y_range=(0.0, 1.0))
        if len(shares) > SHOWN:
            return Figure((recalls,))
        table = Axes(
            (Matrix(tuple(map(tuple, shares)), names, names),),
            title="Share of each true class (row) by predicted class (column)",
            x_label="predicted",
            share=1.8,
        )
        return Figure((table, recalls), width=max(480, 56 * len(shares)), height=640)
