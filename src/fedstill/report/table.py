"""The table of a comparison: as text for people, CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.draw.numbers import in_bytes, in_percent
from fedstill.report.comparison import Comparison, Entry, Point

_GAP = 2  # between columns on a terminal
_NAME = 24  # room for a run's name, at least


@dataclass(frozen=True)
class Column:
    """A column: its head, an entry's value, and how people read it."""

    head: str
    value: Callable[[Entry], Any]
    form: Callable[[Any], str] = "{:g}".format
    more: Callable[[Entry], str] = lambda _entry: ""
    spare: int = 0  # where there is no room for all columns, those with the highest go first

    def shown(self, entry: Entry) -> str:
        value = self.value(entry)
        return "-" if value is None else self.form(value) + self.more(entry)


def _mean(key: str) -> Callable[[Entry], float | None]:
    return lambda entry: entry.mean(key)


def _to(target: float, what: Callable[[Point], float]) -> Callable[[Entry], Any]:
    def value(entry: Entry) -> float | None:
        found = entry.reached(target)
        return None if found is None else what(found)

    return value


def _spread(entry: Entry) -> str:
    spread = entry.spread("accuracy")
    return "" if spread is None else f" ± {100 * spread:.2f}"


def columns(comparison: Comparison) -> list[Column]:
    """The columns of every entry; epsilon only where some run has one."""
    found = [
        Column("run", lambda entry: entry.label, str),
        Column("seeds", lambda entry: len(entry.runs), str, spare=3),
        Column("accuracy", _mean("accuracy"), in_percent, _spread),
        Column("best", _mean("best_accuracy"), in_percent, spare=4),
        Column("rounds", _mean("rounds_done"), spare=1),
        Column("up", _mean("up_bytes"), in_bytes, spare=1),
        Column("down", _mean("down_bytes"), in_bytes, spare=6),
        Column(
            "minutes", lambda entry: (entry.mean("seconds") or 0) / 60, "{:.1f}".format, spare=5
        ),
    ]
    if any(entry.mean("epsilon") is not None for entry in comparison.entries):
        found.insert(2, Column("epsilon", _mean("epsilon"), "{:.2f}".format))
    if comparison.target is not None:
        goal = f"{100 * comparison.target:.4g}%"
        found += [
            Column(f"rounds to {goal}", _to(comparison.target, lambda p: p.round), spare=2),
            Column(f"up to {goal}", _to(comparison.target, lambda point: point.up_bytes), in_bytes),
        ]
    return found


def shown(
    comparison: Comparison, wanted: Sequence[Column] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Head and rows as people read them."""
    wanted = columns(comparison) if wanted is None else wanted
    return [c.head for c in wanted], [[c.shown(e) for c in wanted] for e in comparison.entries]


def fitting(comparison: Comparison, width: int) -> tuple[list[Column], list[int]]:
    """The columns that a terminal of this width has room for, and the width of each.

    Numbers are never broken, heads only between words; names take the rest of the line, in several
    lines if they must.
    """
    wanted = columns(comparison)
    widths = [_width(column, comparison) for column in wanted]
    longest = max(len(entry.label) for entry in comparison.entries)
    while True:
        rest = width - sum(widths[1:]) - _GAP * (len(widths) - 1)
        least = max((column.spare, at) for at, column in enumerate(wanted))
        if rest >= min(longest, _NAME) or least[0] == 0:
            widths[0] = max(min(longest, rest), 8)
            return wanted, widths
        del wanted[least[1]], widths[least[1]]


def _width(column: Column, comparison: Comparison) -> int:
    words = [len(word) for word in column.head.split()]
    return max(words + [len(column.shown(entry)) for entry in comparison.entries])


def as_csv(comparison: Comparison) -> str:
    """Plain numbers: shares, bytes and seconds."""
    wanted = columns(comparison)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    spread = [Column("accuracy_sd", lambda entry: entry.spread("accuracy"))]
    writer.writerow([c.head.replace(" ", "_") for c in (*wanted, *spread)])
    for entry in comparison.entries:
        writer.writerow(["" if (v := c.value(entry)) is None else v for c in (*wanted, *spread)])
    return file.getvalue()


def as_markdown(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; its first ``texts`` columns are text, the others are numbers."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_plain_markdown(cell) for cell in cells) + " |"

    rule = "|" + "---|" * texts + "---:|" * (len(head) - texts)
    return "\n".join([line(head), rule, *(line(row) for row in rows)]) + "\n"


def _plain_markdown(text: str) -> str:
    for mark in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def as_latex(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A LaTeX table for the booktabs package."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(_plain_latex(cell) for cell in cells) + r" \\"

    return "\n".join(
        [
            r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}",
            r"\toprule",
            line(head),
            r"\midrule",
            *(line(row) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def _plain_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
