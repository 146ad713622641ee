"""Pages of the documentation that are notebooks, with the outputs that are stored in them.

``tutorials/notebook.ipynb`` becomes the page ``tutorials/notebook.md``; the notebook itself is
copied beside it, to be downloaded.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def page(notebook: Path) -> Iterator[str]:
    """The notebook as Markdown."""
    cells = json.loads(notebook.read_text())["cells"]
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # Other notebooks are pages here.
            yield re.sub(r"\(([\w-]+)\.ipynb\)", r"(\1.md)", text)
        else:
            yield f"```python\n{text}\n```"
            yield from map(_output, cell["outputs"])
        if number == 0:
            yield f"[Download this page as a notebook]({notebook.name})."


def _output(output: dict[str, Any]) -> str:
    """What a cell gave, in a block that Markdown leaves alone."""
    forms = {form: "".join(lines) for form, lines in output.get("data", {}).items()}
    if "text/html" in forms:
        shown = forms["text/html"]
    elif "image/svg+xml" in forms:
        shown = forms["image/svg+xml"]
    elif "image/png" in forms:
        encoded = forms["image/png"].replace("\n", "")
        shown = f'<img src="data:image/png;base64,{encoded}" alt="What the cell draws">'
    else:
        text = forms.get("text/plain") or "".join(output.get("text", []))
        shown = f"<pre>{escape(text.rstrip())}</pre>"
    return f'<div class="output">{_no_blank_lines(shown)}</div>'


def _no_blank_lines(text: str) -> str:
    """A blank line would end the block."""
    return re.sub(r"\n\s*\n", "\n", text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls it when it has read the documents: a page for each notebook is added."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = str(PurePosixPath(notebook.src_uri).with_suffix(".md"))
        text = "\n\n".join(page(Path(notebook.abs_src_path or "")))
        files.append(File.generated(config, path, content=text + "\n"))
    return files
