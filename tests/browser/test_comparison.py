"""The comparison and the index of runs, used as a reader would."""

import csv
import io
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from fedstill.report import write_report
from fedstill.report.compare_page import write_comparison
from fedstill.report.comparison import compare
from fedstill.report.serve import open_server
from tests.browser.test_pages import opened
from tests.report.folders import NASTY, written_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:  # `make browser` makes sure that it is there
    sync_api = pytest.importorskip("playwright.sync_api", reason="run by `make browser`")
    Browser, Page, expect = sync_api.Browser, sync_api.Page, sync_api.expect

pytestmark = pytest.mark.browser


def runs(folder: Path) -> Path:
    written_run(folder / "cheap", accuracy=[0.5, 0.6], method="feddm", each={"up_bytes": 10})
    written_run(folder / "dear", accuracy=[0.6, 0.9], each={"up_bytes": 50_000})
    written_run(folder / "poor", accuracy=[0.2, 0.3], method=NASTY, each={"up_bytes": 2000})
    for run in ("cheap", "dear"):
        write_report(folder / run)
    return folder


@pytest.fixture
def comparison(page: Page, tmp_path: Path) -> Page:
    found = compare([runs(tmp_path / "runs")])
    return opened(page, write_comparison(found, tmp_path / "page.html")[0])


def test_the_legend_hides_and_shows(comparison: Page) -> None:
    series = comparison.locator("#accuracy .series")
    button = comparison.locator("[data-entry='1']")
    assert series.count() == 3
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert series.count() == 2
    for number in (0, 2):
        comparison.locator(f"[data-entry='{number}']").click()
    expect(comparison.locator("#accuracy .empty")).to_have_text("all runs are hidden")
    comparison.locator("#show-all").click()
    assert series.count() == 3


def test_the_scale_is_the_reader_s_choice(comparison: Page) -> None:
    name = comparison.locator("#by-bytes .name")
    expect(name).to_have_text("uploaded (logarithmic)")
    comparison.locator("#scale").select_option("linear")
    expect(name).to_have_text("uploaded")
    expect(comparison.locator("#front .name")).to_have_text("uploaded")
    comparison.locator("#scale").select_option("log")
    expect(name).to_have_text("uploaded (logarithmic)")


def test_the_front_goes_in_steps(comparison: Page) -> None:
    path = comparison.locator("#front .dashed").get_attribute("d")
    assert path
    assert [letter for letter in path if letter.isalpha()] == ["M", "H", "V"]


def saved(page: Page, button: str) -> tuple[str, bytes]:
    with page.expect_download() as download:
        page.locator(button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_tables_and_figures_are_saved(comparison: Page) -> None:
    name, data = saved(comparison, "#table-csv")
    assert name == "3-runs-on-digits.csv"
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert [row["run"] for row in rows] == ["feddm", "fedavg", NASTY]
    name, data = saved(comparison, "[data-save=csv][data-of=accuracy]")
    assert name == "3-runs-on-digits-accuracy.csv"
    points = list(csv.DictReader(io.StringIO(data.decode())))
    assert [(p["series"], p["round"], p["value"]) for p in points[:2]] == [
        ("feddm", "1", "0.5"),
        ("feddm", "2", "0.6"),
    ]
    _, data = saved(comparison, "[data-save=png][data-of=accuracy]")
    with Image.open(io.BytesIO(data)) as image:
        assert image.width > 800
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
        assert {(0x11, 0x70, 0x7E), (0xC2, 0x56, 0x2D)} <= colours  # the lines have their colours


def test_heads_sort_and_links_lead_to_reports(comparison: Page) -> None:
    first = comparison.locator("#table tbody tr").first
    comparison.locator("#table th button", has_text="accuracy").click()
    expect(first).to_contain_text("90.00%")
    comparison.locator("#table th button", has_text="accuracy").click()
    expect(first).to_contain_text("30.00%")
    comparison.locator("#table th button", has_text="down").first.focus()
    comparison.keyboard.press("Enter")
    expect(comparison.locator("#table [aria-sort]")).to_have_count(1)
    assert comparison.locator("#runs a").count() == 2
    comparison.locator("#runs a", has_text="cheap").click()
    expect(comparison.locator("h1")).to_contain_text("feddm on digits")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1200, "dark")])
def test_phone_and_dark(
    browser: Browser, tmp_path: Path, shots: Path, width: int, scheme: Any
) -> None:
    folder = runs(tmp_path / "runs")
    pages = {
        "comparison": write_comparison(compare([folder]), tmp_path / "page.html")[0],
        "index": write_report(folder),
    }
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    for name, file in pages.items():
        page = opened(context.new_page(), file)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        widths = "nodes => nodes.every((n) => n.scrollWidth <= n.clientWidth)"
        assert page.locator(".scroll").evaluate_all(widths)  # no table has to be scrolled either
        page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
    context.close()


def test_the_index_filters_and_sorts(page: Page, tmp_path: Path, shots: Path) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script of the data ran: {dialog.message}"))
    opened(page, write_report(runs(tmp_path / "runs")))
    shown = page.locator("#runs tbody tr:visible")
    assert shown.count() == 3
    page.locator("#filter").fill("DIGITS fedavg")
    expect(shown).to_have_count(1)
    expect(page.locator("#filter-count")).to_have_text("1 of 3")
    page.locator("#filter").fill("")
    expect(shown).to_have_count(3)
    page.locator("#order").select_option("up")
    expect(shown.first).to_contain_text("cheap")
    page.locator("#order").select_option("accuracy")
    expect(shown.first).to_contain_text("dear")
    page.locator("#runs th button", has_text="run").first.click()
    expect(shown.first).to_contain_text("cheap")
    expect(page.locator("#runs")).to_contain_text(NASTY)
    page.screenshot(path=shots / "index.png", full_page=True)


def test_the_live_index_follows_runs_and_keeps_the_filter(browser: Browser, tmp_path: Path) -> None:
    folder = runs(tmp_path / "runs")
    with open_server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        context = browser.new_context(viewport={"width": 1000, "height": 700})
        page = context.new_page()
        page.goto(server.address)
        expect(page.locator("#live")).to_have_text("live")
        page.locator("#filter").fill("fedavg")
        written_run(folder / "newest", accuracy=[0.75])
        metrics = folder / "dear" / "metrics.jsonl"
        last = json.loads(metrics.read_text().splitlines()[-1])
        with metrics.open("a") as file:
            file.write(json.dumps({**last, "round": 3, "accuracy": 0.9375}) + "\n")
        expect(page.locator("#runs")).to_contain_text("93.75%", timeout=10_000)
        expect(page.locator("#filter")).to_have_value("fedavg")
        expect(page.locator("#filter-count")).to_have_text("2 of 4")
        page.locator("#runs a", has_text="newest").click()
        expect(page.locator("h1")).to_contain_text("fedavg on digits")
        expect(page.locator("#live")).to_have_text("live")
        context.close()
        server.shutdown()
