"""Runs as pages: one self-contained HTML file each, and several side by side."""

from pathlib import Path

from fedstill.files import write_atomically
from fedstill.report.page import report_page
from fedstill.report.source import open_run

__all__ = ["write_report"]


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the run's page, by default ``report.html`` in its folder."""
    path = out or run_folder / "report.html"
    write_atomically(path, report_page(open_run(run_folder)).encode())
    return path
