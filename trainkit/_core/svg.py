"""Figures as SVG: one string without references to anything outside, readable on light and dark backgrounds."""

import base64
import math
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise
from typing import NamedTuple

from trainkit._core.figures import Axes, Bars, Figure, Image, Line, Mark, Matrix, Points

__all__ = ["escaped", "to_svg"]

COLOURS = ("#4a78d6", "#e0852b", "#3fa35a", "#d25a6f", "#9a6dd0", "#2fa3a8")
"""Of middle lightness, so that they stand out from white and from black."""

GUIDE = "currentColor"

STYLE = (
    ".tk{color:#1f2328;font:11px system-ui,sans-serif}.tk text{fill:currentColor}"
    ".tk .axis{stroke:currentColor;stroke-opacity:.55;fill:none}.tk .grid{stroke:currentColor;stroke-opacity:.12}"
    ".tk .guide{stroke:currentColor;stroke-opacity:.7;stroke-dasharray:4 3;fill:none}"
    ".tk .line{fill:none;stroke-width:1.8}"
    ".tk .title{font-weight:600;font-size:13px}"
    "@media (prefers-color-scheme:dark){.tk{color:#e6e6e6}}"
)
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 10, 38
TITLE = 22
TICKS, SPACE = 6, 30
"""Most steps between ticks along an axis, and least pixels of one."""
DIGITS = 3
LETTER, ROW = 6.0, 16
"""Width of a letter, about, and height of a row of the legend."""
PLAIN = (1e-4, 1e7)
"""Bounds of the largest of ticks that are written without a power of ten."""
MARGIN = 1e-300
"""Distance of ticks below which there are no round numbers to speak of."""


class _Frame(NamedTuple):
    """Rectangle of the axes in pixels, and the ranges it shows."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        return self.left + self.width * _part(value, self.x)

    def down(self, value: float) -> float:
        return self.top + self.height * (1 - _part(value, self.y))


def _part(value: float, ends: tuple[float, float]) -> float:
    """Where a value lies between the ends, held within them."""
    low, high = ends
    # Halves, since the distance of the largest numbers would be infinite.
    distance = high / 2 - low / 2
    return min(max((value / 2 - low / 2) / distance, 0.0), 1.0) if distance else 0.5


def escaped(value: str) -> str:
    """Text for an element or attribute; characters that XML forbids are left out."""
    return escape(re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", value))


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _tag(name: str, content: str | None = None, /, **attributes: str | float) -> str:
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{value if isinstance(value, str) else _n(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{told}/>" if content is None else f"<{name}{told}>{content}</{name}>"


def _label(x: float, y: float, value: str, anchor: str = "middle", **attributes: str | float) -> str:
    return _tag("text", escaped(value), x=x, y=y, text_anchor=anchor, **attributes)


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _extent(values: Iterable[float]) -> tuple[float, float]:
    """Ends of an axis that shows the values, a little wider than they are except where they end at zero."""
    kept = [value for value in values if math.isfinite(value)]
    if not kept:
        return 0.0, 1.0
    low, high = min(kept), max(kept)
    margin = 0.04 * (high - low) if low < high else 0.5 * (abs(low) or 1.0)
    ends = (low - margin if low else low, high + margin if high else high)
    if ends[0] == ends[1]:
        return -1.0, 1.0
    return ends if _finite(*ends) else (low, high) if low < high else (0.9 * low, low) if low > 0 else (low, 0.9 * low)


def _along(mark: Mark) -> tuple[list[float], list[float]]:
    """Places of a mark along both axes."""
    if isinstance(mark, Bars):
        return [*mark.left, *mark.right], [0.0, *mark.height]
    if isinstance(mark, Points):
        return [*mark.x], [*mark.y, *(mark.low or ()), *(mark.high or ())]
    if isinstance(mark, Line):
        return [*mark.x], [*mark.y]
    return [], []


def _ticks(ends: tuple[float, float], length: float) -> list[float]:
    """Round numbers within the ends of an axis of that many pixels."""
    low, high = ends
    steps = min(max(length // SPACE, 2), TICKS)
    raw = high / steps - low / steps
    if raw < MARGIN:
        return [low, high]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _numbers(ticks: list[float]) -> list[str]:
    """The ticks in as few digits as tell them apart, all in one form."""
    step = min((abs(b - a) for a, b in pairwise(ticks)), default=0.0)
    top = max(map(abs, ticks), default=0.0)
    if PLAIN[0] <= top < PLAIN[1]:
        for digits in range(7):
            if all(abs(round(tick, digits) - tick) <= 1e-3 * step for tick in ticks):
                return [f"{tick + 0.0:,.{digits}f}" for tick in ticks]
    told = [f"{tick + 0.0:.4g}" for tick in ticks]
    digits = 4
    while len(set(told)) < len(set(ticks)):
        digits += 1
        told = [f"{tick + 0.0:.{digits}g}" for tick in ticks]
    return told


def _axis(axes: Axes, frame: _Frame) -> Iterator[str]:
    bottom, right = frame.top + frame.height, frame.left + frame.width
    ticks = _ticks(frame.x, frame.width)
    for tick, told in zip(ticks, _numbers(ticks), strict=True):
        x = frame.across(tick)
        yield _tag("line", class_="grid", x1=x, x2=x, y1=frame.top, y2=bottom)
        yield _label(x, bottom + 14, told)
    ticks = _ticks(frame.y, frame.height)
    for tick, told in zip(ticks, _numbers(ticks), strict=True):
        y = frame.down(tick)
        yield _tag("line", class_="grid", x1=frame.left, x2=right, y1=y, y2=y)
        yield _label(frame.left - 6, y + 4, told, "end")
    yield _tag("path", class_="axis", d=f"M{_n(frame.left)} {_n(frame.top)}V{_n(bottom)}H{_n(right)}")


def _names(axes: Axes, frame: _Frame, head: float) -> Iterator[str]:
    middle = frame.top + frame.height / 2
    if axes.title:
        yield _label(frame.left + frame.width / 2, head, axes.title, font_weight="600")
    if axes.x_label:
        yield _label(frame.left + frame.width / 2, frame.top + frame.height + 29, axes.x_label)
    if axes.y_label:
        yield _label(14, middle, axes.y_label, transform=f"rotate(-90 14 {_n(middle)})")


def _line(mark: Line, frame: _Frame, colour: str) -> Iterator[str]:
    path, pen = [], "M"
    for x, y in zip(mark.x, mark.y, strict=True):
        if not _finite(x, y):
            pen = "M"
            continue
        path.append(f"{pen}{_n(frame.across(x))} {_n(frame.down(y))}")
        pen = "L"
    if path and mark.dashed:
        yield _tag("path", class_="guide", d="".join(path))
    elif path:
        yield _tag("path", class_="line", stroke=colour, d="".join(path))


def _points(mark: Points, frame: _Frame, colour: str) -> Iterator[str]:
    nowhere = (math.nan,) * len(mark.x)
    for x, y, low, high in zip(mark.x, mark.y, mark.low or nowhere, mark.high or nowhere, strict=True):
        if _finite(x, low, high):
            place = frame.across(x)
            yield _tag("line", stroke=colour, x1=place, x2=place, y1=frame.down(low), y2=frame.down(high))
        if _finite(x, y):
            yield _tag("circle", fill=colour, cx=frame.across(x), cy=frame.down(y), r=2.6)


def _bars(mark: Bars, frame: _Frame, colour: str) -> Iterator[str]:
    for left, right, height in zip(mark.left, mark.right, mark.height, strict=True):
        if _finite(left, right, height):
            x, y, floor = frame.across(left), frame.down(height), frame.down(0.0)
            size = {"width": abs(frame.across(right) - x), "height": abs(floor - y)}
            yield _tag("rect", fill=colour, fill_opacity="0.6", stroke=colour, x=x, y=min(y, floor), **size)


def _png(mark: Image) -> str:
    """A picture as the text of a PNG file; what is no number is black."""
    rows = [bytes(round(255 * min(max(v, 0.0), 1.0)) if v == v else 0 for v in row) for row in mark.pixels]
    width = len(rows[0]) // mark.channels if rows else 0

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, len(rows), 8, 0 if mark.channels == 1 else 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return base64.b64encode(file).decode()


def _image(mark: Image, frame: _Frame) -> Iterator[str]:
    if mark.pixels and mark.pixels[0]:
        place = {"x": frame.left, "y": frame.top, "width": frame.width, "height": frame.height}
        style = "image-rendering:pixelated"
        yield _tag("image", href=f"data:image/png;base64,{_png(mark)}", style=style, **place)


def _matrix(mark: Matrix, frame: _Frame) -> Iterator[str]:
    columns = len(mark.values[0]) if mark.values else 0
    if not columns:
        return
    width, height = frame.width / columns, frame.height / len(mark.values)
    low, high = _extent(value for row in mark.values for value in row)
    for i, row in enumerate(mark.values):
        for j, value in enumerate(row):
            x, y = frame.left + j * width, frame.top + i * height
            if math.isfinite(value):
                shade = _n(0.08 + 0.72 * _part(value, (low, high)))
                yield _tag("rect", fill=COLOURS[0], fill_opacity=shade, x=x, y=y, width=width, height=height)
                yield _label(x + width / 2, y + height / 2 + 4, f"{value:.{DIGITS}g}")
    for i, name in enumerate(mark.rows):
        yield _label(frame.left - 6, frame.top + (i + 0.5) * height + 4, name, "end")
    for j, name in enumerate(mark.columns):
        yield _label(frame.left + (j + 0.5) * width, frame.top + frame.height + 14, name)


def _legend(named: list[tuple[str, str]], width: float) -> list[list[tuple[float, str, str]]]:
    """Rows of the legend: place, name and colour of each entry."""
    rows: list[list[tuple[float, str, str]]] = []
    x = 0.0
    for name, colour in named:
        size = 30 + LETTER * len(name)
        if not rows or x + size > width:
            rows.append([])
            x = 0.0
        rows[-1].append((x, name, colour))
        x += size
    return rows


def _entry(x: float, y: float, name: str, colour: str) -> Iterator[str]:
    if colour == GUIDE:
        yield _tag("line", class_="guide", x1=x, x2=x + 13, y1=y - 4, y2=y - 4)
    else:
        yield _tag("rect", fill=colour, x=x + 1, y=y - 8, width=11, height=8, rx=1.5)
    yield _label(x + 17, y, name, "start")


def _colours(marks: Iterable[Mark]) -> Iterator[tuple[Mark, str]]:
    """Marks and their colours; guides and pictures take none of the palette."""
    used = 0
    for mark in marks:
        plain = isinstance(mark, (Image, Matrix)) or (isinstance(mark, Line) and mark.dashed)
        yield mark, GUIDE if plain else COLOURS[used % len(COLOURS)]
        used += not plain


def _drawn(axes: Axes, top: float, width: float, height: float) -> Iterator[str]:
    xs, ys = zip(*(_along(mark) for mark in axes.marks), strict=True) if axes.marks else ((), ())
    x = axes.x_range or _extent(value for column in xs for value in column)
    y = axes.y_range or _extent(value for column in ys for value in column)
    across = max(width - LEFT - RIGHT, 1.0)
    coloured = [*_colours(axes.marks)]
    named = [(label, colour) for mark, colour in coloured if (label := getattr(mark, "label", ""))]
    # Above the axes, since any corner of them may hold data.
    rows = _legend(named, across) if axes.legend else []
    title = TITLE if axes.title else 0
    head = title + ROW * len(rows)
    frame = _Frame(LEFT, top + TOP + head, across, max(height - TOP - BOTTOM - head, 1.0), x, y)
    if not any(isinstance(mark, (Image, Matrix)) for mark in axes.marks):
        yield from _axis(axes, frame)
    for mark, colour in coloured:
        if isinstance(mark, Image):
            yield from _image(mark, frame)
        elif isinstance(mark, Matrix):
            yield from _matrix(mark, frame)
        else:
            draw = {Line: _line, Points: _points, Bars: _bars}[type(mark)]
            yield from draw(mark, frame, colour)  # type: ignore[operator]
    yield from _names(axes, frame, top + TOP + title - 6)
    for row, entries in enumerate(rows):
        for place, name, colour in entries:
            yield from _entry(LEFT + place, top + TOP + title + ROW * row + 8, name, colour)


def to_svg(figure: Figure) -> str:
    """The figure as one SVG element, to be written to a file or put into a page as it is.

    Text is escaped; what is no finite number is not drawn. Colours follow the reader's light or dark scheme.
    """
    parts = []
    top = float(TITLE + 6 if figure.title else 0)
    if figure.title:
        parts.append(_label(figure.width / 2, 18, figure.title, class_="title"))
    shares, rest = sum(axes.share for axes in figure.axes), figure.height - top
    for axes in figure.axes:
        height = rest * axes.share / shares
        parts += _drawn(axes, top, figure.width, height)
        top += height
    return _tag(
        "svg",
        _tag("style", STYLE) + "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        class_="tk",
        viewBox=f"0 0 {figure.width} {figure.height}",
        width=figure.width,
        height=figure.height,
        role="img",
        aria_label=escaped(figure.title or "figure"),
    )
