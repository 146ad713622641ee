"""The report, the comparison and the live page, used as a reader would."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedstill.report.compare_page import write_comparison
from fedstill.report.comparison import compare
from fedstill.report.serve import LiveServer, open_server
from tests.report.folders import NASTY, written_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:  # `make browser` makes sure that it is there
    sync_api = pytest.importorskip("playwright.sync_api", reason="run by `make browser`")
    Browser, Page, expect = sync_api.Browser, sync_api.Page, sync_api.expect

pytestmark = pytest.mark.browser


def opened(page: Page, file: Path) -> Page:
    page.goto(file.resolve().as_uri())
    expect(page.locator("html")).to_have_attribute("data-ready", "yes")
    return page


def painted(page: Page, what: str) -> None:
    """Wait until the canvas shows this: round, client and tone."""
    expect(page.locator("#images")).to_have_attribute("data-painted", what)


def set_slider(page: Page, name: str, value: float) -> None:
    page.locator(f"#{name}").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", value
    )


def points(page: Page, figure: str) -> list[float]:
    """The x places of a curve's points."""
    places: list[float] = page.locator(f"#{figure} .series circle").evaluate_all(
        "nodes => nodes.map((n) => Number(n.getAttribute('cx')))"
    )
    return places


def test_the_report_draws_everything(page: Page, run: Path, shots: Path) -> None:
    opened(page, run / "report.html")
    for figure in ("accuracy", "loss", "by-bytes", "by-minutes"):
        assert len(points(page, figure)) == 3
        label = page.locator(f"#{figure} svg").get_attribute("aria-label")
        assert label
        assert "at first" in label
    assert page.locator("#matrix rect.held").count() > 3
    assert page.locator("#bars svg").count() == 3
    assert page.locator("#contributions .bar").count() == 3
    assert page.locator("#detail-0 svg").count() == 1
    assert page.locator("#by-class .bar").count() == 4
    assert page.locator("#confusion rect").count() == 16
    assert page.locator("#by-client .bar").count() == 3
    painted(page, "3/all/clipped")
    page.screenshot(path=shots / "report.png", full_page=True)


def test_contents_lead_to_sections(page: Page, run: Path) -> None:
    opened(page, run / "report.html")
    page.locator(".contents a", has_text="Clients").click()
    expect(page.locator("#clients")).to_be_in_viewport()


def test_classes_are_across_in_all_pictures_of_clients(page: Page, run: Path) -> None:
    opened(page, run / "report.html")
    layout = page.evaluate(
        "() => { const found = JSON.parse(document.getElementById('data').textContent).synthetic;"
        " const plan = layoutOf(found, 'all');"
        " return [plan.rows, plan.clients.length, plan.labels.length,"
        " Math.max(...cellsOf(found.rounds[0], plan, 'all').map((c) => c[1]))]; }"
    )
    assert layout == [3, 3, 4, 3]  # a row per client; columns 0 to 3 are the classes
    page.locator("#image-client").select_option("1")
    painted(page, "3/1/clipped")
    expect(page.locator("#images-text")).to_contain_text("client 1")


def test_markup_in_names_is_text(page: Page, run: Path) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script of the data ran: {dialog.message}"))
    opened(page, run / "report.html")
    expect(page.locator("h1")).to_contain_text(NASTY)
    expect(page.locator("#matrix svg")).to_contain_text(NASTY)
    assert page.locator("main script").count() == 0


def test_sliders_change_the_simulated_time(page: Page, run: Path) -> None:
    opened(page, run / "report.html")
    before = page.locator("#by-minutes").inner_html()
    set_slider(page, "up", -1.5)
    expect(page.locator("#up-value")).to_have_text("32 kbit/s")
    slow = page.locator("#by-minutes").inner_html()
    assert slow != before
    page.locator("#computing").uncheck()
    assert page.locator("#by-minutes").inner_html() != slow
    page.locator("#latency").focus()
    page.keyboard.press("End")
    expect(page.locator("#latency-value")).to_have_text("3162 ms")


def test_figures_are_read_with_the_keyboard_and_the_mouse(page: Page, run: Path) -> None:
    opened(page, run / "report.html")
    figure = page.locator("#accuracy svg")
    figure.focus()
    page.keyboard.press("Home")
    expect(page.locator("#accuracy [aria-live]")).to_contain_text("round 1:")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#accuracy [aria-live]")).to_contain_text("round 2:")
    page.keyboard.press("Escape")
    expect(page.locator("#accuracy .tip")).to_be_hidden()
    figure.hover()
    expect(page.locator("#accuracy .tip")).to_contain_text("%")


def test_images_by_round_client_and_tone(page: Page, run: Path) -> None:
    opened(page, run / "report.html")
    painted(page, "3/all/clipped")
    size = page.locator("#images").bounding_box()
    set_slider(page, "image-round", 0)
    painted(page, "1/all/clipped")
    assert page.locator("#images").bounding_box() == size  # nothing jumps
    page.locator("#image-client").select_option("1")
    painted(page, "1/1/clipped")
    grey = "() => { const c = document.getElementById('images'); return c.toDataURL(); }"
    clipped = page.evaluate(grey)
    page.locator("#tone").select_option("stretched")
    painted(page, "1/1/stretched")
    assert page.evaluate(grey) != clipped
    label = page.locator("#images").get_attribute("aria-label")
    assert label
    assert label.startswith("Round 1, client 1:")
    page.locator("#play").click()
    painted(page, "3/1/stretched")
    expect(page.locator("#play")).to_have_text("play", timeout=5000)


def test_copying_and_tables(page: Page, run: Path) -> None:
    opened(page, run / "report.html")
    page.locator(".copy").first.click()
    expect(page.locator(".copy").first).to_have_text(re.compile("copied|selected"))
    page.locator("#rounds summary").click()
    expect(page.locator("#rounds tbody tr")).to_have_count(3)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1200, "dark")])
def test_phone_and_dark(browser: Browser, run: Path, shots: Path, width: int, scheme: Any) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = opened(context.new_page(), run / "report.html")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(16, 23, 27)") == (scheme == "dark")
    page.screenshot(path=shots / f"report-{width}-{scheme}.png", full_page=True)
    context.close()


def test_nothing_moves_while_it_loads(page: Page, run: Path) -> None:
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver((list) => { for (const e of list.getEntries())"
        " window.shift += e.value; }).observe({ type: 'layout-shift', buffered: true });"
    )
    opened(page, run / "report.html")
    painted(page, "3/all/clipped")
    page.wait_for_timeout(200)
    assert page.evaluate("window.shift") < 0.05


def test_it_prints(page: Page, run: Path, shots: Path) -> None:
    opened(page, run / "report.html")
    page.emulate_media(media="print")
    expect(page.locator("#link")).to_be_hidden()
    expect(page.locator("#accuracy svg")).to_be_visible()
    assert len(page.pdf()) > 20_000


def test_a_run_without_rounds_or_images(page: Page, tmp_path: Path) -> None:
    from fedstill.report import write_report

    opened(page, write_report(written_run(tmp_path / "begun", accuracy=[])))
    expect(page.locator("#accuracy .empty")).to_be_visible()
    opened(page, write_report(written_run(tmp_path / "one", accuracy=[0.5])))
    assert len(points(page, "accuracy")) == 1
    opened(page, write_report(written_run(tmp_path / "long", accuracy=[0.5] * 300)))
    assert page.locator("#accuracy path").count() == 1


def test_the_comparison(page: Page, tmp_path: Path, shots: Path) -> None:
    folders = [
        written_run(tmp_path / "a", accuracy=[0.3, 0.5, 0.6]),
        written_run(tmp_path / "b", accuracy=[0.4, 0.6, 0.7], seed=1),
        written_run(tmp_path / "c", accuracy=[0.8, 0.9], method="<b>feddm", each={"up_bytes": 10}),
    ]
    opened(page, write_comparison(compare(folders), tmp_path / "page.html")[0])
    assert page.locator("#accuracy .series").count() == 2
    assert page.locator("#accuracy .spread").count() == 1
    assert page.locator("#front .dashed").count() == 0  # a single run is best in everything
    assert page.locator("#front circle").count() == 3
    expect(page.locator(".legend")).to_contain_text("<b>feddm")
    before = page.locator("#by-minutes").inner_html()
    set_slider(page, "down", -1.5)
    assert page.locator("#by-minutes").inner_html() != before
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=shots / "comparison.png", full_page=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with open_server(written_run(tmp_path / "run"), 0) as found:
        threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True).start()
        yield found
        found.shutdown()


def test_the_live_page_follows_the_run_and_its_restart(
    browser: Browser, server: LiveServer
) -> None:
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    page = context.new_page()
    page.goto(server.address)
    expect(page.locator("#live")).to_have_text("live")
    page.locator("#rounds summary").click()
    set_slider(page, "up", 2)
    page.locator("#up").focus()
    metrics = server.folder / "metrics.jsonl"
    last = json.loads(metrics.read_text().splitlines()[-1])
    away = server.folder.rename(server.folder.with_name("away"))
    expect(page.locator("#live")).to_have_text("waiting", timeout=10_000)
    with (away / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**last, "round": 4, "accuracy": 0.875}) + "\n")
    away.rename(server.folder)
    expect(page.locator(".tiles")).to_contain_text("87.50%", timeout=10_000)
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#rounds tbody tr")).to_have_count(4)
    assert (
        page.locator("#rounds details").get_attribute("open") is not None
    )  # as the reader left it
    expect(page.locator("#up-value")).to_have_text("100 Mbit/s")
    assert page.evaluate("document.activeElement.id") == "up"
    context.close()
