"""The page, the tables and the figures of a comparison."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstill.draw.canvas import Place
from fedstill.draw.figures import Figure, Series, whole, write_figure
from fedstill.draw.numbers import in_bytes, in_percent
from fedstill.errors import RequestError
from fedstill.files import write_atomically
from fedstill.report.comparison import Comparison, Entry
from fedstill.report.contents import round_contents
from fedstill.report.embed import page
from fedstill.report.source import report_link
from fedstill.report.table import as_csv, as_latex, as_markdown, shown
from fedstill.version import VERSION

SCRIPTS = ("scales.js", "chart.js", "save.js", "link.js", "tables.js", "compare.js")
_FIGURES = ("accuracy", "bytes", "front")


def free_name(out: Path, *, overwrite: bool = False) -> Path:
    """The name, or the next one with a number that no earlier comparison has."""
    if overwrite:
        return out
    names = itertools.chain([out], (out.with_stem(f"{out.stem}-{n}") for n in itertools.count(2)))
    return next(name for name in names if not any(path.exists() for path in _files(name)))


def _files(out: Path) -> list[Path]:
    """All files of a comparison."""
    tables = [out.with_suffix(suffix) for suffix in (".html", ".csv", ".md", ".tex")]
    stems = [f"{out.stem}-{name}" for name in _FIGURES]
    return tables + [out.with_name(f"{stem}.{kind}") for stem in stems for kind in ("svg", "png")]


def write_comparison(comparison: Comparison, out: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the page and, beside it, the table and the figures in other forms."""
    if out.suffix != ".html":
        raise RequestError(
            f"--out {out}: the page's name must end in .html; the other files go beside it"
        )
    taken = [path for path in _files(out) if path.exists()]
    if taken and not overwrite:
        raise RequestError(
            f"--out {out}: {taken[0].name} exists; name another page, or replace it by --overwrite"
        )
    head, rows = shown(comparison)
    texts = {
        ".html": compare_page(comparison, out.parent),
        ".csv": as_csv(comparison),
        ".md": as_markdown(head, rows),
        ".tex": as_latex(head, rows),
    }
    for suffix, content in texts.items():
        write_atomically(out.with_suffix(suffix), content.encode())
    for name, drawing in figures(comparison).items():
        write_figure(drawing, out.with_name(f"{out.stem}-{name}"))
    return _files(out)


def compare_page(comparison: Comparison, beside: Path) -> str:
    """The runs side by side, on one HTML page, which will be in the folder ``beside``."""
    head, rows = shown(comparison)
    data = {
        "entries": [_entry(entry) for entry in comparison.entries],
        "front": [comparison.entries.index(entry) for entry in comparison.front],
        "csv": as_csv(comparison),
    }
    runs = [
        {"entry": number, "label": entry.label, "run": run, "report": report_link(run, beside)}
        for number, entry in enumerate(comparison.entries)
        for run in entry.runs
    ]
    return page(
        "compare.html",
        _title(comparison),
        SCRIPTS,
        data,
        lead=_lead(comparison),
        comparison=comparison,
        head=head,
        rows=rows,
        runs=runs,
        version=VERSION,
    )


def _title(comparison: Comparison) -> str:
    number, methods = comparison.runs, {e.runs[0].summary["method"] for e in comparison.entries}
    of = f" of {methods.pop()}" if len(methods) == 1 else ""
    data = comparison.entries[0].runs[0].summary["data"]
    return f"{number} {'run' if number == 1 else 'runs'}{of} on {data}"


def _lead(comparison: Comparison) -> str:
    measured = [e for e in comparison.entries if e.mean("accuracy") is not None]
    if not measured:
        return "None of the runs has measured its accuracy yet."
    best = max(measured, key=lambda e: e.mean("accuracy") or 0.0)
    lead = f"The best at the end is “{best.label}” with {in_percent(best.mean('accuracy'))}."
    if (cheapest := comparison.cheapest) and comparison.target is not None:
        number, all_ = comparison.reaching, len(comparison.entries)
        who = f"all {all_}" if number == all_ else f"{number} of {all_}"
        point = cheapest.reached(comparison.target)
        lead += (
            f" To reach {100 * comparison.target:.4g}%, which {who} did, “{cheapest.label}” "
            f"uploaded the fewest bytes: {in_bytes(point.up_bytes if point else 0)}."
        )
    return lead


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "label": entry.label,
        "seeds": [[round_contents(metrics) for metrics in run.rounds] for run in entry.runs],
        "accuracy": entry.mean("accuracy"),
        "low": min((r.summary.get("accuracy") or 0.0 for r in entry.runs), default=None),
        "high": max((r.summary.get("accuracy") or 0.0 for r in entry.runs), default=None),
        "up": entry.mean("up_bytes"),
    }


def figures(comparison: Comparison) -> dict[str, Figure]:
    """The page's figures, for papers."""
    by_round, by_bytes, ends = [], [], []
    for number, entry in enumerate(comparison.entries):
        points = entry.points
        spread = [(p.low, p.high) for p in points] if len(entry.runs) > 1 else []
        rounds = [(float(p.round), p.accuracy) for p in points]
        sent = [(p.up_bytes, p.accuracy) for p in points]
        by_round.append(Series(entry.label, rounds, spread, colour=number))
        by_bytes.append(Series(entry.label, sent, spread, colour=number))
        ends.append(Series(entry.label, sent[-1:], line=False, colour=number))
    front = [e.points[-1] for e in comparison.front if e.points]
    steps = staircase([(p.up_bytes, p.accuracy) for p in front])
    line = Series("", steps, dashed=True, colour=7)
    drawn = (
        Figure("Accuracy by round", "round", "accuracy", by_round, whole),
        Figure("Accuracy by bytes uploaded", "uploaded", "accuracy", by_bytes, in_bytes),
        Figure("What the bytes buy", "uploaded", "accuracy", [line, *ends], in_bytes),
    )
    return dict(zip(_FIGURES, drawn, strict=True))


def staircase(places: Sequence[Place]) -> list[Place]:
    """Between two points of a front nothing better than the cheaper one was measured: its accuracy
    holds up to the bytes of the next."""
    corners = [(after[0], before[1]) for before, after in itertools.pairwise(places)]
    mixed = itertools.chain.from_iterable(itertools.zip_longest(places, corners))
    return [place for place in mixed if place is not None]
