"""The documentation site: it builds without a warning and loads nothing from other hosts."""

import dataclasses
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedstill.methods import METHODS
from tests.waiting import FOREVER

ROOT = Path(__file__).parent.parent.parent
_LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
_HARMLESS_LINKS = {"canonical", "prev", "next", "alternate"}


class Loaded(HTMLParser):
    """Collects the addresses that a page loads by itself: a link to click is none."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "link" and known.get("rel") in _HARMLESS_LINKS:
            return
        if address := known.get(_LOADS.get(tag, "")):
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra `docs`: run by `make docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=4 * FOREVER,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.docs
def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        for address in Loaded(page.read_text()).addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", style.read_text()), style.name


@pytest.mark.docs
def test_every_setting_of_every_method_is_in_it(site: Path) -> None:
    page = (site / "reference" / "settings.html").read_text()
    for name, method in METHODS.items():
        assert f"<code>{name}</code>" in page
        for setting in dataclasses.fields(method()):  # type: ignore[arg-type]
            assert f"<code>method.{setting.name}</code>" in page
    assert "fedstill.run" in (site / "reference" / "api.html").read_text()
