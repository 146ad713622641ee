"""The frontier's page, used as a reader would."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedstill.frontier.grid import Cell
from fedstill.frontier.page import write_frontier
from fedstill.frontier.points import Measured
from fedstill.frontier.result import Frontier
from tests.browser.test_pages import opened
from tests.report.folders import NASTY

if TYPE_CHECKING:
    from playwright.sync_api import Page, expect
else:  # `make browser` makes sure that it is there
    sync_api = pytest.importorskip("playwright.sync_api", reason="run by `make browser`")
    Page, expect = sync_api.Page, sync_api.expect

pytestmark = pytest.mark.browser


def point(line: str, group: str, up: float, accuracy: float, records: bool = False) -> Measured:
    cell = Cell(line, "", group, {}, 1.0, records)
    return Measured(cell, 1, True, up, (accuracy, accuracy + 0.01), None)


@pytest.fixture
def frontier(page: Page, tmp_path: Path) -> Page:
    points = (
        point(NASTY, "records", 1e3, 0.8, records=True),
        point("sets", "sets", 2e3, 0.6),
        point("more sets", "sets", 1e5, 0.9),
        point("weights", "weights", 1e6, 0.7),
    )
    found = Frontier("A frontier", points, ("slow: no time left",), 0, tmp_path / "frontier.html")
    write_frontier(found)
    return opened(page, found.page)


def letters(page: Page, which: str) -> list[str]:
    path = page.locator(f"#front .c7 path{which}").get_attribute("d")
    return [letter for letter in path or "" if letter.isalpha()]


def test_fronts_go_in_steps_and_follow_what_is_shown(frontier: Page) -> None:
    assert letters(frontier, ":not(.dashed)") == ["M", "H", "V"]  # sets, then more sets
    assert letters(frontier, ".dashed") == ["M", "H", "V"]  # records, then more sets
    frontier.locator("[data-line='2']").click()  # the best is hidden: weights take its place
    assert letters(frontier, ":not(.dashed)") == ["M", "H", "V"]
    expect(frontier.locator("#front .c7 path.dashed")).to_have_count(0)  # one point has no steps
    frontier.locator("[data-group='1']").click()
    expect(frontier.locator("[data-line='1']")).to_have_attribute("aria-pressed", "false")
    for group in (0, 2):
        frontier.locator(f"[data-group='{group}']").click()
    expect(frontier.locator("#front .empty")).to_have_text("all lines are hidden")
    frontier.locator("[data-group='1']").click()
    expect(frontier.locator("[data-line='2']")).to_have_attribute("aria-pressed", "true")


def test_the_scale_and_the_table(frontier: Page, shots: Path) -> None:
    name = frontier.locator("#front .name")
    expect(name).to_have_text("uploaded (logarithmic)")
    frontier.screenshot(path=shots / "frontier.png", full_page=True)
    frontier.locator("#scale").select_option("linear")
    expect(name).to_have_text("uploaded")
    frontier.locator("#table th button", has_text="accuracy").click()
    expect(frontier.locator("#table tbody tr").first).to_contain_text("more sets")
    expect(frontier.locator("#left-out")).to_contain_text("slow: no time left")
