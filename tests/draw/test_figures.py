"""Figures for papers."""

import re

import pytest

from fedstill.draw.figures import COLOURS, HEIGHT, WIDTH, Figure, Plot, Series


@pytest.mark.parametrize(("busy", "side"), [("right", "left"), ("left", "right")])
def test_the_legend_covers_no_points_where_one_side_is_free(busy: str, side: str) -> None:
    low = [(8.0 + i / 10 if busy == "right" else i / 10, 0.1) for i in range(20)]
    high = [(0.0, 0.9), (10.0, 0.9)]
    figure = Figure("f", "x", "y", [Series("points", [*low, *high], line=False)])
    drawn = re.search(r'<text x="([\d.]+)"[^>]*>points</text>', Plot(figure).svg)
    assert drawn is not None
    assert ("left" if float(drawn[1]) < WIDTH / 2 else "right") == side


def test_a_line_has_dots_at_its_places_unless_it_has_none() -> None:
    places = [(0.0, 0.1), (1.0, 0.5)]
    with_dots = Plot(Figure("f", "x", "y", [Series("", places)])).svg
    without = Plot(Figure("f", "x", "y", [Series("", places, dots=False)])).svg
    assert with_dots.count("<circle") == 2
    assert without.count("<circle") == 0


def test_the_legend_is_above_where_points_are_below() -> None:
    low = [(i / 10, 0.1) for i in range(101)]
    figure = Figure("f", "x", "y", [Series("points", [*low, (5.0, 0.9)], line=False)])
    drawn = re.search(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>points</text>', Plot(figure).svg)
    assert drawn is not None
    assert float(drawn[1]) < HEIGHT / 2


def test_points_are_all_drawn_each_with_its_spread() -> None:
    places = [(i / 10, 0.5) for i in range(60)]
    spread = [(0.4, 0.7)] * 60
    drawn = Plot(Figure("f", "x", "y", [Series("", places, spread, line=False)])).svg
    assert drawn.count("<circle") == 60
    assert len(re.findall(rf'<polyline [^>]*stroke="{COLOURS[0]}"', drawn)) == 60
    assert "<polygon" not in drawn
