"""Runs as pages: one self-contained HTML file each, several side by side, and all of a folder."""

from pathlib import Path

from fedstill.files import write_atomically
from fedstill.report.index_page import write_index
from fedstill.report.page import report_page
from fedstill.report.source import open_run
from fedstill.runs.place import runs_in

__all__ = ["write_report"]


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the run's page, by default ``report.html`` in its folder. Of a folder of runs it is the
    page of all of them, by default ``index.html``."""
    if runs_in(folder):
        return write_index(folder, out)
    path = out or folder / "report.html"
    write_atomically(path, report_page(open_run(folder)).encode())
    return path
