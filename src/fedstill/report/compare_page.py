"""The page, the tables and the figures of a comparison."""

from pathlib import Path
from typing import Any

from fedstill.draw.figures import Figure, Series, write_figure
from fedstill.draw.numbers import in_bytes, in_percent
from fedstill.errors import RequestError
from fedstill.files import write_atomically
from fedstill.report.comparison import Comparison, Entry
from fedstill.report.contents import round_contents
from fedstill.report.embed import data_script, document, table, text
from fedstill.report.page import LINK, figure, notes_list, section
from fedstill.report.table import as_csv, as_latex, as_markdown, shown
from fedstill.version import VERSION

SCRIPTS = ("scales.js", "chart.js", "link.js", "compare.js")


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Write the page and, beside it, the table and the figures in other forms."""
    if out.suffix != ".html":
        raise RequestError(
            f"--out {out}: the page's name must end in .html; the other files go beside it"
        )
    head, rows = shown(comparison)
    texts = {
        ".html": compare_page(comparison),
        ".csv": as_csv(comparison),
        ".md": as_markdown(head, rows),
        ".tex": as_latex(head, rows),
    }
    written = []
    for suffix, content in texts.items():
        path = out.with_suffix(suffix)
        write_atomically(path, content.encode())
        written.append(path)
    for name, drawing in figures(comparison).items():
        written += write_figure(drawing, out.with_name(f"{out.stem}-{name}"))
    return written


def compare_page(comparison: Comparison) -> str:
    """The runs side by side, on one HTML page."""
    head, rows = shown(comparison)
    data = {
        "entries": [_entry(entry) for entry in comparison.entries],
        "front": [comparison.entries.index(entry) for entry in comparison.front],
    }
    known = comparison.entries[0].runs[0].summary
    number = len(comparison.entries)
    title = f"{number} {'run' if number == 1 else 'runs'} on {known['data']}"
    legend = "".join(
        f'<li class="c{i % 8}"><i></i><span>{text(entry.label)}</span></li>'
        for i, entry in enumerate(comparison.entries)
    )
    curves = figure("accuracy", "Accuracy by round", "tall")
    costs = figure("by-bytes", "Accuracy by bytes uploaded", "tall")
    times = figure("by-minutes", "Accuracy by simulated minutes", "tall")
    front = figure("front", "What the bytes buy: accuracy at the end", "tall")
    body = (
        '<header class="top"><p class="brand">fedstill <span>comparison</span></p>'
        f"<h1>{text(title)}</h1>"
        f'<p class="lead">{text(_lead(comparison))}</p>{notes_list(list(comparison.left_out))}'
        f'</header><main><ul class="legend" aria-label="Colours">{legend}</ul>'
        + section("table", "Side by side", _about_target(comparison), table(head, rows, numbers=1))
        + section(
            "curves",
            "Learning and cost",
            "Lines are means over seeds; the bands reach from the worst seed to the best. The "
            "minutes are those of a network whose speed you set. In the last figure no other run "
            "is as good for fewer bytes than those on the dashed line: the Pareto front.",
            f'<div class="pair">{curves}{costs}{times}{front}</div>{LINK}',
        )
        + section("runs", "The runs", "Where each number comes from.", _runs(comparison))
        + f"</main><footer><p>fedstill {text(VERSION)}</p></footer>{data_script('data', data)}"
    )
    return document(f"{title} · fedstill", body, SCRIPTS)


def _lead(comparison: Comparison) -> str:
    measured = [e for e in comparison.entries if e.mean("accuracy") is not None]
    if not measured:
        return "None of the runs has measured its accuracy yet."
    best = max(measured, key=lambda e: e.mean("accuracy") or 0.0)
    least = min(measured, key=lambda e: e.mean("up_bytes") or 0.0)
    return (
        f"The best at the end is {best.label} with {in_percent(best.mean('accuracy'))}; "
        f"{least.label} uploaded the fewest bytes, {in_bytes(least.mean('up_bytes') or 0)}."
    )


def _about_target(comparison: Comparison) -> str:
    if comparison.target is None:
        return "Means over seeds, with one standard deviation."
    return (
        "Means over seeds, with one standard deviation. Costs are counted up to the first round "
        f"with a test accuracy of {comparison.target:.4g} (set another by --target)."
    )


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "label": entry.label,
        "seeds": [[round_contents(metrics) for metrics in run.rounds] for run in entry.runs],
        "accuracy": entry.mean("accuracy"),
        "low": min((r.summary.get("accuracy") or 0.0 for r in entry.runs), default=None),
        "high": max((r.summary.get("accuracy") or 0.0 for r in entry.runs), default=None),
        "up": entry.mean("up_bytes"),
    }


def _runs(comparison: Comparison) -> str:
    rows = [
        (
            entry.label,
            run.path,
            run.status,
            run.summary.get("seed", "-"),
            in_percent(run.summary.get("accuracy")),
        )
        for entry in comparison.entries
        for run in entry.runs
    ]
    return table(("run", "folder", "status", "seed", "accuracy"), rows, numbers=3)


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
    line = Series("", [(p.up_bytes, p.accuracy) for p in front], dashed=True, colour=7)
    return {
        "accuracy": Figure("Accuracy by round", "round", "accuracy", by_round),
        "bytes": Figure("Accuracy by bytes uploaded", "uploaded", "accuracy", by_bytes, in_bytes),
        "front": Figure("What the bytes buy", "uploaded", "accuracy", [line, *ends], in_bytes),
    }
