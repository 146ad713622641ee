"""Headless Chromium for the pages. Run by ``make browser``, which installs it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.folders import feddm_run

if TYPE_CHECKING:  # the fast tests are collected where Playwright is not installed
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

# The last ones switch off the browser's background requests.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert program, "no chromium: `make browser` installs it, or name one by CHROMIUM=..."
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A page on which every error and every request to elsewhere fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    found = context.new_page()
    problems: list[str] = []

    def on_console(message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def on_request(request: "Request") -> None:
        if not request.url.startswith(("file:", "data:", "http://127.0.0.1:")):
            problems.append(request.url)

    found.on("console", on_console)
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("request", on_request)
    yield found
    context.close()
    assert problems == []


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds of FedDM on pictures whose classes are called like markup."""
    return feddm_run(tmp_path_factory.mktemp("runs") / "run", rounds=3)


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where screenshots go, to be looked at."""
    folder = Path(os.environ.get("SCREENSHOTS", "build/screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
