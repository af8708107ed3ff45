"""Calibration metrics of probabilities over 100 classes, fp32, in chunks of 10,000 rows that are views of the whole.

A step is what an epoch is: reset, an update a chunk, compute. Peers take what they can: metrics the chunks, functions
the whole arrays. One that is not installed leaves a line without a ratio.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassCalibrationError

from tests.benchmarks.measure import Case, Step
from trainkit.calibration import metrics as tk

CLASSES = 100
CHUNK = 10_000
FEW, MANY = 10 * CHUNK, 100 * CHUNK
"""Rows of a quick and of a long case."""
AGREE = 1e-6
STATE = 1023
"""Bytes of the state of a metric of 15 bins, which is less than 1024."""


def equal_width() -> MetricCollection:
    """All that is computed from top-label bins of equal width, which share one state."""
    variant = partial(tk.BinnedCalibrationError, input_kind="probs")
    return MetricCollection(
        {
            "ECE": tk.ECE(input_kind="probs"),
            "MCE": tk.MCE(input_kind="probs"),
            "debiased": variant(norm="l2", debias=True),
            "l2": variant(norm="l2"),
            "squared": variant(norm="l2", squared=True),
            "uniform": variant(weighting="uniform"),
            "diagram": tk.ReliabilityDiagram(input_kind="probs"),
        },
        compute_groups=True,
    )


METRICS: dict[str, Callable[[], Metric | MetricCollection]] = {
    "ECE": partial(tk.ECE, input_kind="probs"),
    "torchmetrics": partial(MulticlassCalibrationError, CLASSES, n_bins=15, norm="l1"),
    "equal width": equal_width,
    "BootstrapInterval(ECE)": lambda: tk.BootstrapInterval(tk.ECE(input_kind="probs")),
    "ClasswiseECE": partial(tk.ClasswiseECE, num_classes=CLASSES, input_kind="probs"),
    "BrierScore": partial(tk.BrierScore, input_kind="probs"),
    "NegativeLogLikelihood": partial(tk.NegativeLogLikelihood, input_kind="probs"),
    "AURC": partial(tk.AURC, input_kind="probs"),
    "AURC cells": partial(tk.AURC, input_kind="probs", exact=False),
    "KS": partial(tk.KSCalibrationError, input_kind="probs"),
    "KS cells": partial(tk.KSCalibrationError, input_kind="probs", exact=False),
}


def data(rows: int) -> tuple[Tensor, Tensor]:
    """Overconfident probabilities and their targets, made in place."""
    draw = torch.Generator().manual_seed(0)
    probs, target = torch.empty(rows, CLASSES), torch.empty(rows, dtype=torch.int64)
    for p, t in zip(probs.split(CHUNK), target.split(CHUNK), strict=True):
        torch.softmax(p.normal_(generator=draw).mul_(2), 1, out=p)
        top, first = p.max(1)
        hit = torch.rand(len(p), generator=draw) < 0.6 * top
        torch.where(hit, first, torch.randint(CLASSES, (len(p),), generator=draw), out=t)
    return probs, target


def value_of(computed: Any) -> float:
    """The figure that two sides are compared by."""
    if isinstance(computed, Mapping):
        computed = computed["ECE"] if "ECE" in computed else computed["value"]
    return float(computed)


class Epoch:
    """A metric over all chunks; with ``part="compute"`` or ``"update"`` only that of it."""

    def __init__(self, name: str, rows: int, part: str = "") -> None:
        probs, target = data(rows)
        self.chunks = list(zip(probs.split(CHUNK), target.split(CHUNK), strict=True))
        self.metric = METRICS[name]()
        self.part = part
        if part == "compute":
            self.update()

    def update(self) -> None:
        self.metric.reset()
        for probs, target in self.chunks:
            self.metric.update(probs, target)

    def __call__(self) -> float:
        if self.part != "compute":
            self.update()
        return value_of(self.metric.compute()) if self.part != "update" else 0.0

    def state_bytes(self) -> int:
        """Of all states as they are now."""
        single = not isinstance(self.metric, MetricCollection)
        states = [s for m in ([self.metric] if single else self.metric.values()) for s in m.metric_state.values()]
        tensors = [t for state in states for t in (state if isinstance(state, list) else [state])]
        return sum(t.numel() * t.element_size() for t in tensors)


def netcal_ece(probs: Tensor, target: Tensor) -> float:
    from netcal.metrics import ECE

    return ECE(bins=15).measure(probs.numpy(), target.numpy())


def probmetrics(name: str, probs: Tensor, target: Tensor) -> float:
    from probmetrics.metrics import Metrics

    return float(Metrics.from_names([name]).compute_all_from_labels_probs(target, probs)[name])


def sklearn(name: str, probs: Tensor, target: Tensor) -> float:
    import sklearn.metrics

    return getattr(sklearn.metrics, name)(target.numpy(), probs.numpy(), labels=range(CLASSES))


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "netcal": netcal_ece,
    "probmetrics ece-15": partial(probmetrics, "ece-15"),
    "probmetrics brier": partial(probmetrics, "brier"),
    "probmetrics logloss": partial(probmetrics, "logloss"),
    "scikit-learn brier_score_loss": partial(sklearn, "brier_score_loss"),
    "scikit-learn log_loss": partial(sklearn, "log_loss"),
}


def whole(name: str, rows: int) -> Callable[[], float]:
    """A function of all rows at once."""
    return partial(FUNCTIONS[name], *data(rows))


def epoch(name: str, rows: int, part: str = "") -> Step:
    return Step("tests.benchmarks.calibration:Epoch", {"name": name, "rows": rows, "part": part}, {"rows": CHUNK})


def installed(package: str, name: str, rows: int) -> dict[str, Any]:
    """The label of a function of a package and its step, if there is one here."""
    if not find_spec(package):
        return {"peer": f"{name} (not installed)"}
    step = Step("tests.benchmarks.calibration:whole", {"name": name, "rows": rows}, {"rows": CHUNK})
    return {"peer": name, "theirs": step, "agree": AGREE}


def shown(rows: int) -> str:
    return f"{rows} x {CLASSES}"


def of_bins(rows: int) -> list[Case]:
    """What has targets; the peer's memory is mostly its sample, so that only many rows show what it takes."""
    ece, many = epoch("ECE", rows), rows == MANY
    peer, memory = epoch("torchmetrics", rows), 0.05 if many else None
    together = epoch("equal width", rows)
    limits: dict[str, Any] = {"megabytes": 10.0, "state": STATE, "agree": AGREE, "long": many}
    return [
        Case(f"ECE {shown(rows)}", ece, "torchmetrics", peer, 0.20, memory, **limits),
        Case(f"all of equal width {shown(rows)}", together, "ours ECE", ece, 1.3, agree=AGREE, long=many),
    ]


def beside(rows: int) -> list[Case]:
    """Functions of other packages."""
    pairs = [
        ("ECE", "netcal", "netcal"),
        ("ECE", "probmetrics", "probmetrics ece-15"),
        ("BrierScore", "sklearn", "scikit-learn brier_score_loss"),
        ("BrierScore", "probmetrics", "probmetrics brier"),
        ("NegativeLogLikelihood", "sklearn", "scikit-learn log_loss"),
        ("NegativeLogLikelihood", "probmetrics", "probmetrics logloss"),
    ]
    return [
        Case(f"{name} {shown(rows)}", epoch(name, rows), **installed(package, function, rows))
        for name, package, function in pairs
    ]


def among_ours(rows: int) -> list[Case]:
    """What ours cost beside one another."""

    def case(name: str, other: str, part: str = "", agree: float | None = None) -> Case:
        sides = [epoch(side, rows, part) for side in (name, other)]
        what = f"{name} {part}".strip()
        equal = agree is not None
        return Case(f"{what} {shown(rows)}", sides[0], f"ours {other}", sides[1], agree=agree, equal=equal)

    return [
        case("ClasswiseECE", "ECE"),
        case("BootstrapInterval(ECE)", "ECE", "update"),
        case("BootstrapInterval(ECE)", "ECE", "compute", AGREE),
        case("AURC cells", "AURC"),
        case("KS cells", "KS"),
    ]


def cases() -> list[Case]:
    return [*of_bins(FEW), *of_bins(MANY), *beside(FEW), *among_ours(FEW)]
