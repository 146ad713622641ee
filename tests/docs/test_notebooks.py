"""The notebooks of the tutorials run from top to bottom, and give what their pages show."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.notebooks import FORMS, NOTEBOOKS, executed, stored

BY_NAME = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
LARGEST = 150_000  # bytes: a notebook is read, reviewed and downloaded


def outputs(book: Any) -> list[list[str]]:
    """The forms of what each cell gave; text that is printed counts as one."""
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    return [
        [form for output in cell["outputs"] for form in output.get("data", {"text": ""})]
        for cell in cells
    ]


def test_there_are_notebooks() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["notebook", "own-data-notebook"]


@BY_NAME
def test_what_is_stored_is_small_and_tells_nothing_of_the_machine(file: Path) -> None:
    assert file.stat().st_size < LARGEST
    book = json.loads(file.read_text())
    assert set(book["metadata"]) == {"kernelspec", "language_info"}
    for forms in outputs(book):
        assert set(forms) <= {*FORMS, "text"}
    for cell in book["cells"]:
        assert cell["metadata"] == {}
        assert "/home/" not in json.dumps(cell)
        assert "/tmp/" not in json.dumps(cell)
    assert any("image/png" in forms for forms in outputs(book))


@pytest.mark.docs
@BY_NAME
def test_a_notebook_runs_and_gives_what_its_page_shows(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="the extra `docs`: run by `make docs`")
    pytest.importorskip("ipykernel", reason="the extra `docs`: run by `make docs`")
    before = outputs(json.loads(file.read_text()))
    book = stored(executed(file, tmp_path))  # a cell that fails is an error here
    assert outputs(book) == before
    assert list((tmp_path / "runs").glob("*/report.html"))
