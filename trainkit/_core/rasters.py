"""Figures drawn by matplotlib, for those who have it: rasters for loggers, and axes to work on."""

from typing import Any, Protocol

from trainkit._core.checks import reject
from trainkit._core.figures import Axes, Bars, Figure, Image, Line, Matrix

__all__ = ["Plotted", "to_matplotlib"]


class _Drawable(Protocol):
    def figure(self) -> Figure: ...


class Plotted:
    """Draws the ``figure()`` of a metric with matplotlib."""

    def plot(self: _Drawable, ax: Any = None) -> tuple[Any, Any]:
        """Draw the figure with matplotlib, which the extra ``plots`` installs.

        Args:
            ax: Has to be None: the figure has axes of its own.
        """
        name = type(self).__name__
        if ax is not None:
            reject(name, "ax", "be None, since the figure has axes of its own", ax)
        return to_matplotlib(name, self.figure())


def to_matplotlib(owner: str, figure: Figure) -> tuple[Any, Any]:
    """A matplotlib figure and its axes, one or a list of them.

    Args:
        owner: Class that the error names where matplotlib is missing.
        figure: What is drawn.
    """
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        message = f"{owner}: plot needs matplotlib (pip install 'trainkit[plots]'); figure() and its SVG need nothing"
        raise ModuleNotFoundError(message) from error
    canvas = Canvas(figsize=(figure.width / 100, figure.height / 100), layout="constrained")
    canvas.suptitle(figure.title)
    heights = [axes.share for axes in figure.axes]
    places = canvas.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, place in zip(figure.axes, places, strict=True):
        _draw(axes, place)
    return canvas, places[0] if len(places) == 1 else list(places)


def _draw(axes: Axes, place: Any) -> None:
    for mark in axes.marks:
        if isinstance(mark, Bars):
            widths = [right - left for left, right in zip(mark.left, mark.right, strict=True)]
            place.bar(mark.left, mark.height, widths, align="edge", alpha=0.6, edgecolor="k", label=mark.label)
        elif isinstance(mark, Line):
            style = {"linestyle": "--", "color": "0.5"} if mark.dashed else {}
            place.plot(mark.x, mark.y, label=mark.label, **style)
        elif isinstance(mark, Image):
            rows = [[row[i : i + mark.channels] for i in range(0, len(row), mark.channels)] for row in mark.pixels]
            place.imshow(rows if mark.channels == 3 else mark.pixels, cmap="gray", vmin=0, vmax=1)
        elif isinstance(mark, Matrix):
            place.imshow(mark.values)
            place.set_yticks(range(len(mark.rows)), mark.rows)
            place.set_xticks(range(len(mark.columns)), mark.columns)
        else:
            place.plot(mark.x, mark.y, "o", label=mark.label)
            if mark.low is not None and mark.high is not None:
                place.vlines(mark.x, mark.low, mark.high)
    place.set(title=axes.title, xlabel=axes.x_label, ylabel=axes.y_label)
    for ends, limit in ((axes.x_range, place.set_xlim), (axes.y_range, place.set_ylim)):
        if ends is not None:
            limit(*ends)
    if axes.legend and any(getattr(mark, "label", "") for mark in axes.marks):
        place.legend()
