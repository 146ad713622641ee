"""The page of a search, used as a reader would."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pytest

from fedstill.tune.page import write_page
from tests.browser.test_pages import opened
from tests.report.folders import NASTY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:  # `make browser` makes sure that it is there
    sync_api = pytest.importorskip("playwright.sync_api", reason="run by `make browser`")
    Browser, Page, expect = sync_api.Browser, sync_api.Page, sync_api.expect

pytestmark = pytest.mark.browser


def searched(path: Path) -> Path:
    """A study of twelve trials, one of them pruned, whose words are markup."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    rates, words = optuna.distributions.FloatDistribution(1e-3, 1.0, log=True), ("a", NASTY)
    for number in range(12):
        params: dict[str, Any] = {"rate": 10 ** (-number / 4), "name": words[number % 2]}
        choices = optuna.distributions.CategoricalDistribution(words)
        states = optuna.trial.TrialState
        state = states.PRUNED if number == 5 else states.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions={"rate": rates, "name": choices},
                value=0.5 + number / 40,
                state=state,
            )
        )
    write_page(path, study, f"Search on {NASTY}", ["Best: trial 11.", NASTY])
    return path


def test_the_search(page: Page, tmp_path: Path, shots: Path) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script of the data ran: {dialog.message}"))
    file = searched(tmp_path / "tune.html")
    assert file.stat().st_size < 150_000
    opened(page, file)
    assert page.locator("#by-trial circle").count() == 11 * 2  # each trial, and the best so far
    assert page.locator("#importance-0 .bar").count() == 2
    lines = page.locator("#settings-0 .trial")
    assert lines.count() == 11
    lines.last.dispatch_event("pointerenter")
    expect(page.locator("#settings-0-text")).to_contain_text("Trial 11: 77.50%")
    expect(page.locator("#settings-0")).to_contain_text("<script>")
    first = page.locator("#trials tbody tr").first
    expect(first).to_contain_text("77.50%")
    page.locator("#trials th button", has_text="trial").click()
    expect(first).to_contain_text("50.00%")
    page.screenshot(path=shots / "tune.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_search_on_a_phone(browser: Browser, tmp_path: Path, shots: Path, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page = opened(context.new_page(), searched(tmp_path / "tune.html"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=shots / f"tune-390-{scheme}.png", full_page=True)
    context.close()
