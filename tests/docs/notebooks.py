"""Notebooks of the tutorials: run them, and store the outputs that the site shows.

python -m tests.docs.notebooks      # after a change of a notebook
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent.parent.parent / "docs" / "tutorials"
FORMS = ("text/html", "image/svg+xml", "image/png", "text/plain")  # the first that there is
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def executed(file: Path, folder: Path) -> Any:
    """The notebook after all its cells ran, top to bottom, in a kernel of this environment."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(file, as_version=4)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # a warning that says nothing about us
    client = NotebookClient(book, timeout=900, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return book


def stored(book: Any) -> Any:
    """As it is kept: of each output the richest form, and no traces of the machine or the time."""
    book.metadata.language_info = {"name": "python"}
    for number, cell in enumerate(book.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [_slim(o) for o in cell.outputs if o.get("name") != "stderr"]
    return book


def _slim(output: Any) -> Any:
    if "data" in output:
        form = next(form for form in FORMS if form in output.data)
        output.data = {form: output.data[form]}
    if "execution_count" in output:
        output.execution_count = None
    return output


def main() -> None:
    """Run all notebooks, and store them with their outputs."""
    import nbformat

    for file in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(stored(executed(file, Path(folder))), file)
        print(f"{file.name}: {file.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
