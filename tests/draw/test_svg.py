"""SVG: well-formed whatever the text, and every point where its axes say."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from fedstill.draw.canvas import Axes, AxesStyle, log_ticks, ticks
from fedstill.draw.privacy import epsilon_figure
from fedstill.draw.svg import Svg

NAMES = {"s": "http://www.w3.org/2000/svg"}


def test_text_is_escaped() -> None:
    picture = Svg(100, 50, '<script>"&')
    picture.text(10, 20, "a < b & c", 10, "#000", "m")
    root = ElementTree.fromstring(picture.document())
    assert root.findtext("s:title", namespaces=NAMES) == '<script>"&'
    assert root.findtext("s:text", namespaces=NAMES) == "a < b & c"
    assert (root.get("width"), root.get("viewBox")) == ("100", "0 0 100 50")


def test_ticks_stand_where_the_axes_put_them() -> None:
    axes = Axes((0, 10), (0, 1), left=20, right=120, top=10, bottom=60)
    assert axes.at(0, 0) == (20, 60)
    assert axes.at(10, 1) == (120, 10)
    picture = Svg(140, 80, "")
    style = AxesStyle(grid="#ddd", label="#333", size=10, x_gap=8, y_gap=4, base="#000")
    axes.draw(picture, style, [5], [0.5], "{:g}".format, "{:.0%}".format)
    root = ElementTree.fromstring(picture.document())
    texts = {t.text: (t.get("x"), t.get("y")) for t in root.findall("s:text", NAMES)}
    assert texts == {"50%": ("16.0", "38.5"), "5": ("70.0", "71.5")}
    lines = [line.get("points") for line in root.findall("s:polyline", NAMES)]
    assert lines == ["20.0,35.0 120.0,35.0", "20.0,60.0 120.0,60.0"]


@pytest.mark.parametrize("points", [[(1, 2.79), (5, 6.1), (15, 10.18)], [(1, 0.0)]])
def test_epsilon_by_round(points: list[tuple[int, float]]) -> None:
    root = ElementTree.fromstring(epsilon_figure(points, "epsilon: sigma 1"))
    assert root.get("width") is None  # as large as the page allows
    assert len(root.findall("s:circle", NAMES)) == len(points)
    assert "round" in [t.text for t in root.findall("s:text", NAMES)]


def test_ticks_are_round() -> None:
    assert ticks(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(3.2, 17.0, 4) == [5.0, 10.0, 15.0]


def test_ticks_of_a_logarithmic_axis_are_round_too() -> None:
    def values(low: float, high: float) -> list[float]:
        marks = log_ticks(math.log10(low), math.log10(high), 7)
        return [round(10**mark, 6) for mark in marks]

    assert values(12_000, 190_000) == [20_000, 50_000, 100_000]
    assert values(1, 10_000) == [1, 10, 100, 1_000, 10_000]
    assert values(1, 100) == [1, 2, 5, 10, 20, 50, 100]
    assert values(2, 2_500) == [3, 10, 30, 100, 300, 1_000]
    assert values(1, 1e12) == [1, 100, 1e4, 1e6, 1e8, 1e10, 1e12]
    assert values(13, 17) == [13, 14, 15, 16, 17]
