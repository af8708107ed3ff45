"""Figures as data: what is drawn, apart from how; :func:`trainkit._core.svg.to_svg` draws it without a dependency."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

from trainkit._core.checks import check_choice, check_number, reject

__all__ = ["Axes", "Bars", "Figure", "Image", "Line", "Mark", "Matrix", "Points", "numbers"]

Numbers: TypeAlias = tuple[float, ...]
Range: TypeAlias = tuple[float, float]


def numbers(values: Iterable[Any]) -> Numbers:
    """Numbers as a tuple of floats; None, which is JSON's word for what is no number, becomes nan."""
    return tuple(math.nan if value is None else float(value) for value in values)


def _same_length(owner: str, **columns: Sequence[Any] | None) -> None:
    """Require every column that is given to be as long as the first."""
    (first, column), *others = columns.items()
    for name, other in others:
        if other is not None and len(other) != len(column or ()):
            reject(owner, name, f"have {len(column or ())} entries, as {first}", other)


class _Columns:
    """Turns the sequences of numbers that a mark is given into tuples, and checks that they are equally long."""

    _columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self._columns}
        for name, values in given.items():
            if values is not None:
                object.__setattr__(self, name, numbers(values))
        _same_length(type(self).__name__, **given)


@dataclass(frozen=True)
class Line(_Columns):
    """A line through points; it breaks where one is no finite number.

    Args:
        x: Places along the horizontal axis.
        y: Places along the vertical axis.
        label: Name in the legend; none if empty.
        dashed: Whether it is a guide rather than data: dashed, in the colour of the text.
    """

    _columns = ("x", "y")

    x: Numbers
    y: Numbers
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Points(_Columns):
    """Points, with intervals where they are known.

    Args:
        x: Places along the horizontal axis.
        y: Places along the vertical axis.
        low: Lower ends of the intervals.
        high: Upper ends of the intervals.
        label: Name in the legend; none if empty.
    """

    _columns = ("x", "y", "low", "high")

    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    label: str = ""


@dataclass(frozen=True)
class Bars(_Columns):
    """Upright bars that stand on zero.

    Args:
        left: Left edges.
        right: Right edges.
        height: Heights; a bar whose height is no finite number is left out.
        label: Name in the legend; none if empty.
    """

    _columns = ("left", "right", "height")

    left: Numbers
    right: Numbers
    height: Numbers
    label: str = ""


def _table(owner: str, name: str, rows: Iterable[Iterable[Any]]) -> tuple[Numbers, ...]:
    table = tuple(numbers(row) for row in rows)
    if len({len(row) for row in table}) > 1:
        reject(owner, name, "have rows of one length", [len(row) for row in table])
    return table


@dataclass(frozen=True)
class Image:
    """A picture in shades of grey, or in colours.

    Args:
        pixels: Rows from top to bottom of shades in [0, 1]; of three a pixel, one after another, for colours.
        channels: 1 or 3.
    """

    pixels: tuple[Numbers, ...]
    channels: int = 1

    def __post_init__(self) -> None:
        check_choice("Image", "channels", str(self.channels), ("1", "3"))
        object.__setattr__(self, "pixels", _table("Image", "pixels", self.pixels))
        if any(len(row) % self.channels for row in self.pixels):
            reject("Image", "pixels", f"have {self.channels} numbers a pixel", self.pixels)


@dataclass(frozen=True)
class Matrix:
    """A table of numbers, the larger the stronger in colour.

    Args:
        values: Rows from top to bottom.
        rows: Names of the rows.
        columns: Names of the columns.
    """

    values: tuple[Numbers, ...]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _table("Matrix", "values", self.values))
        for name, count in (("rows", len(self.values)), ("columns", len(self.values[0]) if self.values else 0)):
            names = tuple(map(str, getattr(self, name)))
            object.__setattr__(self, name, names)
            if names and len(names) != count:
                reject("Matrix", name, f"have {count} entries", names)


Mark: TypeAlias = Line | Points | Bars | Image | Matrix
KINDS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in (Line, Points, Bars, Image, Matrix)}


@dataclass(frozen=True)
class Axes:
    """Marks over one pair of axes; a picture or a matrix has them to itself.

    Args:
        marks: What is drawn, the first at the back.
        title: Above the axes.
        x_label: Under the horizontal axis.
        y_label: Beside the vertical axis.
        x_range: Ends of the horizontal axis; those of the data if None.
        y_range: Ends of the vertical axis; those of the data if None.
        legend: Whether the labels of marks are shown.
        share: Height, as a share of the sum over the axes of the figure.
    """

    marks: tuple[Mark, ...]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_range: Range | None = None
    y_range: Range | None = None
    legend: bool = True
    share: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", tuple(self.marks))
        check_number("Axes", "share", self.share, minimum=0, open_minimum=True)
        for name in ("x_range", "y_range"):
            ends = getattr(self, name)
            if ends is None:
                continue
            low, high = numbers(ends)
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                reject("Axes", name, "be two finite numbers in ascending order", ends)
            object.__setattr__(self, name, (low, high))


@dataclass(frozen=True)
class Figure:
    """Axes below one another.

    Args:
        axes: From top to bottom.
        title: Above all.
        width: Width in pixels.
        height: Height in pixels.
    """

    axes: tuple[Axes, ...]
    title: str = ""
    width: int = 480
    height: int = 420

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))

    def to_json(self) -> str:
        """The figure as JSON; what is no finite number is null."""
        return json.dumps(_plain(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Figure":
        """The figure that :meth:`to_json` wrote."""
        told = json.loads(text)
        axes = []
        for one in told.pop("axes"):
            marks = [{**mark} for mark in one.pop("marks")]
            axes.append(Axes(marks=tuple(KINDS[mark.pop("kind")](**mark) for mark in marks), **one))
        return cls(axes=tuple(axes), **told)


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and numbers as what JSON holds."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if is_dataclass(value):
        kind = type(value).__name__.lower()
        told = {"kind": kind} if kind in KINDS else {}
        return {**told, **{field.name: _plain(getattr(value, field.name)) for field in fields(value)}}
    return value
