"""The page of a frontier, its table in other forms, and its figure for papers."""

import math
from typing import Any

import msgspec

from fedstill.draw.canvas import Place
from fedstill.draw.figures import Figure, Series, write_figure
from fedstill.draw.numbers import in_bytes, in_percent
from fedstill.files import write_atomically
from fedstill.frontier.points import Measured
from fedstill.frontier.result import (
    BUDGET_HEAD,
    BUDGET_NOTE,
    HEAD,
    Frontier,
    as_csv,
    as_document,
)
from fedstill.report.compare_page import staircase
from fedstill.report.embed import page
from fedstill.version import VERSION

SCRIPTS = ("scales.js", "chart.js", "save.js", "link.js", "tables.js", "frontier.js")


def write_frontier(found: Frontier) -> None:
    """Write ``frontier.html`` and, beside it, the table as Markdown, CSV and JSON, and the figure
    as SVG and PNG. Files of an earlier command are replaced: it was about the same runs."""
    texts = {
        ".html": frontier_page(found),
        ".md": as_document(found),
        ".csv": as_csv(found.records()),
        ".json": msgspec.json.encode(found.records()).decode(),
    }
    for suffix, content in texts.items():
        write_atomically(found.page.with_suffix(suffix), content.encode())
    write_figure(figure(found), found.page.with_suffix(""))


def frontier_page(found: Frontier) -> str:
    """The frontier as one HTML page."""
    groups = found.groups
    lines: dict[str, dict[str, Any]] = {}
    for point in found.points:
        cell = point.cell
        line = lines.setdefault(
            cell.line,
            {
                "name": cell.line,
                "group": groups.index(cell.group),
                "records": cell.sends_records,
                "points": [],
            },
        )
        line["points"].append(_drawn(point))
    legend = [
        {"name": group, "lines": [(n, e) for n, e in enumerate(lines.values()) if e["group"] == g]}
        for g, group in enumerate(groups)
    ]
    return page(
        "frontier.html",
        found.title,
        SCRIPTS,
        {"lines": list(lines.values()), "csv": as_csv(found.records())},
        lead=_lead(found),
        left_out=found.left_out,
        legend=legend,
        head=HEAD,
        rows=found.rows,
        budget_head=[BUDGET_HEAD, *groups],
        budget_rows=found.budget_rows,
        budget_note=BUDGET_NOTE,
        version=VERSION,
    )


def _drawn(point: Measured) -> dict[str, Any]:
    place = {"x": point.up_bytes, "y": point.accuracy, "note": point.reveals, "name": point.name}
    if point.interval is not None:
        place["low"], place["high"] = point.interval
    return place


def _lead(found: Frontier) -> str:
    best = max(found.points, key=lambda p: p.accuracy)
    said = f"The highest accuracy is {in_percent(best.accuracy)}: “{best.name}”"
    said += f", {in_bytes(best.up_bytes)} uploaded ({best.reveals})."
    if found.front:
        first, last = found.front[0], found.front[-1]
        said += (
            f" Without sending records, the front begins at {in_bytes(first.up_bytes)} with "
            f"{in_percent(first.accuracy)} (“{first.name}”) and ends at {in_bytes(last.up_bytes)} "
            f"with {in_percent(last.accuracy)} (“{last.name}”)."
        )
    return said


def figure(found: Frontier) -> Figure:
    """All points by group with intervals, and both fronts, over the logarithm of the bytes."""
    dots = [_dots(found, group, number) for number, group in enumerate(found.groups)]
    fronts = [Series("front without records", _steps(found.front), colour=7, dots=False)]
    if found.front_with_records != found.front:
        fronts.append(
            Series("front with records", _steps(found.front_with_records), dashed=True, colour=7)
        )
    return Figure(
        found.title,
        "uploaded (logarithmic)",
        "accuracy",
        [*fronts, *dots],
        _bytes_of_logarithm,
        x_log=True,
    )


def _dots(found: Frontier, group: str, colour: int) -> Series:
    points = [point for point in found.points if point.cell.group == group]
    intervals = [point.interval or (point.accuracy, point.accuracy) for point in points]
    return Series(group, [_place(point) for point in points], intervals, line=False, colour=colour)


def _steps(points: list[Measured]) -> list[Place]:
    return staircase([_place(point) for point in points])


def _place(point: Measured) -> Place:
    return math.log10(max(1.0, point.up_bytes)), point.accuracy


def _bytes_of_logarithm(value: float) -> str:
    return in_bytes(round(10.0**value)).replace(".0 ", " ")
