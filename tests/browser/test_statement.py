"""The privacy statement on paper: one page, as it says of itself."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedstill.evaluate.audited import kept_audit
from fedstill.report.statement import write_statement
from tests.report.test_statement import audit_file, private

if TYPE_CHECKING:
    from playwright.sync_api import Page, expect
else:  # `make browser` makes sure that it is there
    sync_api = pytest.importorskip("playwright.sync_api", reason="run by `make browser`")
    Page, expect = sync_api.Page, sync_api.expect

pytestmark = pytest.mark.browser


def test_it_fits_on_one_page_of_paper(page: Page, tmp_path: Path) -> None:
    folder = private(tmp_path / "run")
    audit_file(folder, bound=2.5)
    path, made = write_statement(folder, kept_audit(folder))
    page.goto(path.resolve().as_uri())
    expect(page.locator("h1")).to_contain_text(made.mark)
    expect(page.locator("section")).to_have_count(5)
    assert b"/Count 1" in page.pdf(format="A4")
