"""All runs of a folder on one page: a table to sort and filter, with a link to each report."""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from fedstill.draw.canvas import Place
from fedstill.errors import RequestError
from fedstill.files import write_atomically
from fedstill.report.embed import page
from fedstill.report.source import RunView, open_run, report_link, tag_of
from fedstill.runs.place import runs_in
from fedstill.version import VERSION

SCRIPTS = ("scales.js", "chart.js", "link.js", "tables.js", "index.js")
MARK = b'<meta name="generator" content="fedstill">'
_CURVE = 64, 18  # the small picture of a run's accuracy, in pixels


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    run: RunView
    changed: datetime
    curve: str  # the points of a line in a picture of the size _CURVE


def write_index(folder: Path, out: Path | None = None) -> Path:
    """Write the page of all runs in a folder, by default its ``index.html``."""
    path = out or folder / "index.html"
    if path.exists() and MARK not in path.read_bytes()[:4000]:
        raise RequestError(f"{path}: not a page of fedstill; name another file by --out")
    write_atomically(path, index_page(folder, path.parent).encode())
    return path


def index_page(folder: Path, beside: Path | None = None) -> str:
    """The runs of a folder. The page will be in the folder ``beside``; without one it is live, and
    leads to live pages."""
    rows, unreadable = index_rows(folder)
    links = [report_link(row.run, beside) if beside else f".{address(row.name)}" for row in rows]
    states = Counter(row.run.status for row in rows)
    live = beside is None
    number = len(rows)
    return page(
        "index.html",
        f"{number} {'run' if number == 1 else 'runs'} in {folder.resolve().name}",
        (*SCRIPTS, "live.js") if live else SCRIPTS,
        None,
        live=live,
        rows=list(zip(rows, links, strict=True)),
        notes=unreadable,
        states=states,
        private=any(row.run.summary.get("epsilon") is not None for row in rows),
        width=_CURVE[0],
        height=_CURVE[1],
        version=VERSION,
    )


def index_rows(folder: Path) -> tuple[list[Row], list[str]]:
    """The runs of a folder, the newest first, and what cannot be read."""
    rows, unreadable = [], []
    for path in runs_in(folder):
        try:
            rows.append(_row(path, str(path.relative_to(folder)), tag_of(path)))
        except (RequestError, OSError) as error:  # being written, moved or removed
            unreadable.append(str(error))
    return sorted(rows, key=lambda row: (row.changed, row.name), reverse=True), unreadable


@functools.lru_cache(maxsize=4096)
def _row(path: Path, name: str, _tag: str) -> Row:
    """A run's line. Cached: a live page asks again and again."""
    run = open_run(path)
    files = [path / "metrics.jsonl", path / "summary.json", path / "config.toml"]
    changed = max(file.stat().st_mtime for file in files if file.exists())
    accuracies = [(m.round, m.accuracy) for m in run.rounds if m.accuracy is not None]
    return Row(name, run, datetime.fromtimestamp(changed, UTC), _points(accuracies))


def _points(places: Sequence[Place]) -> str:
    """A line through the places: as wide as the rounds, from 0 to 1 in height."""
    if len(places) < 2:
        return ""
    first, last = places[0][0], places[-1][0]
    width, height = _CURVE
    shown = places[:: max(1, len(places) // width)]
    return " ".join(
        f"{(x - first) / (last - first) * (width - 2) + 1:.1f},{height - 1 - y * (height - 2):.1f}"
        for x, y in shown
    )


def address(name: str) -> str:
    """Where a live index has the page of a run: its name as one part of a path."""
    return f"/run/{quote(name, safe='')}/"
