"""Figures as data, and the SVG they become."""

import base64
import itertools
import json
import math
import re
import struct
import xml.etree.ElementTree as ET
import zlib

import pytest

from trainkit._core.figures import Axes, Bars, Figure, Image, Line, Matrix, Points
from trainkit._core.rasters import to_matplotlib
from trainkit._core.svg import to_svg

EVERYTHING = Figure(
    (
        Axes(
            (
                Bars((0, 1), (1, 2), (3, math.nan), label="bars"),
                Line((0, 1, 2), (1, math.inf, 2), label="line"),
                Points((0, 1), (1, 2), (0, 1), (2, None), label="points"),
                Line((0, 2), (0, 2), dashed=True, label="guide"),
            ),
            title="all",
            x_label="x",
            y_label="y",
            x_range=(0, 2),
        ),
        Axes((Matrix(((1, 2.5), (math.nan, 4)), ("a", "b"), ("c", "d")),), share=2),
        Axes((Image(((0, 0.5, 1), (2, -1, math.nan))),)),
    ),
    title="Everything",
    height=900,
)


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_json_gives_the_figure_back():
    text = EVERYTHING.to_json()
    json.loads(text, parse_constant=pytest.fail)
    again = Figure.from_json(text)
    assert again.to_json() == text
    assert again.axes[0].marks[3] == EVERYTHING.axes[0].marks[3]
    assert math.isnan(again.axes[0].marks[0].height[1])


def test_svg_is_well_formed_and_needs_nothing_from_outside():
    svg = to_svg(EVERYTHING)
    assert {"Everything", "all", "x", "y", "bars", "line", "points", "guide", "a", "d", "2.5"} <= set(texts(svg))
    addresses = re.findall(r'(?:href|src|url)\W*["(]([^")]*)', svg)
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    assert "prefers-color-scheme:dark" in svg
    assert "<script" not in svg


def test_text_is_escaped():
    words = "<script>alert('&\")</script>\x00\x0b"
    figure = Figure((Axes((Line((0,), (0,), label=words),), title=words, x_label=words, y_label=words),), title=words)
    svg = to_svg(figure)
    assert "<script" not in svg
    assert texts(svg).count(words[:-2]) == 5


VALUES = (0.0, -0.0, 5e-324, 1e-310, 1.0, 1 + 2**-52, 1e16, 1e308, -1.7e308, 1.7e308, math.inf, math.nan)


@pytest.mark.parametrize(("a", "b"), [*itertools.product(VALUES, VALUES)])
def test_no_number_spoils_the_svg(a, b):
    marks = (Line((a, b), (b, a)), Points((a,), (b,), (a,), (b,)), Bars((a,), (b,), (a,)))
    svg = to_svg(Figure((Axes(marks), Axes((Matrix(((a, b),)),)))))
    ET.fromstring(svg)
    assert not re.search(r"\b(nan|inf)\b", svg)


def test_a_figure_without_data_is_drawn():
    for figure in (Figure(()), Figure((Axes(()),)), Figure((Axes((Line((), ()), Matrix(()), Image(()))),))):
        ET.fromstring(to_svg(figure))


def test_a_line_breaks_where_there_is_no_number():
    svg = to_svg(Figure((Axes((Line((0, 1, 2, 3, 4), (0, 1, math.nan, 1, 0)),)),)))
    (path,) = re.findall(r'class="line"[^>]* d="([^"]*)"', svg)
    assert re.sub(r"[^ML]", "", path) == "MLML"


def test_bars_stand_on_zero_and_keep_to_the_axes():
    svg = to_svg(Figure((Axes((Bars((0,), (1,), (5,)),), x_range=(0, 1), y_range=(0, 1)),), height=200))
    (top, height) = re.findall(r'<rect[^>]* y="([\d.]*)"[^>]* height="([\d.]*)"', svg)[0]
    assert float(top) >= 0
    assert float(top) + float(height) <= 200


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_png_files(channels):
    row = (0.0, 1.0, 0.5) * channels
    svg = to_svg(Figure((Axes((Image((row, row), channels),)),)))
    file = base64.b64decode(re.search(r"base64,([^\"]*)", svg)[1])
    width, height, depth, colour = struct.unpack(">IIBB", file[16:26])
    assert (width, height, depth, colour) == (3, 2, 8, {1: 0, 3: 2}[channels])
    size = struct.unpack(">I", file[33:37])[0]
    assert zlib.decompress(file[41 : 41 + size])[: 1 + len(row)] == bytes([0, *[0, 255, 128] * channels])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Line((0, 1), (1,)), "Line: y must have 2 entries, as x"),
        (lambda: Points((0,), (1,), low=(1, 2)), "Points: low must have 1 entries"),
        (lambda: Bars((0,), (1,), ()), "Bars: height must have 1 entries"),
        (lambda: Matrix(((1, 2), (3,))), "Matrix: values must have rows of one length"),
        (lambda: Matrix(((1, 2),), rows=("a", "b")), "Matrix: rows must have 1 entries"),
        (lambda: Image(((1, 2),), channels=3), "Image: pixels must have 3 numbers a pixel"),
        (lambda: Image((), channels=2), "Image: channels must be one of '1', '3'"),
        (lambda: Axes((), x_range=(1, 1)), "Axes: x_range must be two finite numbers in ascending order"),
        (lambda: Axes((), share=0), "Axes: share must be > 0, got 0"),
    ],
)
def test_wrong_figures_say_so(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_matplotlib_draws_every_mark():
    pytest.importorskip("matplotlib", reason="drawing with matplotlib needs the extra plots")
    canvas, axes = to_matplotlib("Test", EVERYTHING)
    assert len(axes) == 3
    canvas.canvas.draw()


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((0, 1), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0, 30_000), ["0", "5,000", "10,000", "15,000", "20,000", "25,000", "30,000"]),
        ((0.12345, 0.12346), ["0.123450", "0.123452", "0.123454", "0.123456", "0.123458", "0.123460"]),
        ((0, 2e-6), ["0", "5e-07", "1e-06", "1.5e-06", "2e-06"]),
        ((-0.25, 0.25), ["-0.2", "-0.1", "0.0", "0.1", "0.2"]),
    ],
)
def test_ticks_are_told_apart_in_few_digits(ends, expected):
    assert texts(to_svg(Figure((Axes((), x_range=ends),))))[: len(expected)] == expected


def test_no_two_ticks_of_an_axis_read_the_same():
    for low, high in itertools.product((-1e300, -3.3, 0, 1e-9, 7, 1e9), (1e-8, 1.1, 7.00001, 1e9 + 1, 1e300)):
        if low < high:
            svg = to_svg(Figure((Axes((), x_range=(low, high), y_range=(0, 1)),)))
            told = [t for t in texts(svg) if t not in ("0.0", "0.2", "0.4", "0.6", "0.8", "1.0")]
            assert len(told) == len(set(told)), (low, high, told)


def test_a_legend_lies_above_the_axes_in_as_many_rows_as_it_needs():
    marks = [Line((0, 1), (0, 1), label=f"a metric with a long name, number {i}") for i in range(4)]
    root = ET.fromstring(to_svg(Figure((Axes(marks),))))
    labels = [e for e in root.iter() if (e.text or "").startswith("a metric")]
    top = float(re.match(r"M[\d.]+ ([\d.]+)V", root.find(".//*[@class='axis']").get("d"))[1])
    assert len(labels) == 4
    assert all(float(e.get("y")) < top for e in labels)
    assert len({(e.get("x"), e.get("y")) for e in labels}) == 4
    plain = ET.fromstring(to_svg(Figure((Axes(marks, legend=False),))))
    assert not [e for e in plain.iter() if (e.text or "").startswith("a metric")]
