"""Figures as data and as SVG, for metrics and callbacks of one's own: see :func:`trainkit.callbacks.publish_figure`."""

from trainkit._core.figures import Axes as Axes
from trainkit._core.figures import Bars as Bars
from trainkit._core.figures import Figure as Figure
from trainkit._core.figures import Image as Image
from trainkit._core.figures import Line as Line
from trainkit._core.figures import Matrix as Matrix
from trainkit._core.figures import Points as Points
from trainkit._core.svg import to_svg as to_svg
