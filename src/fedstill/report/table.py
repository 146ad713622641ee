"""The table of a comparison: as text for people, CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.draw.numbers import in_bytes, in_percent
from fedstill.report.comparison import Comparison, Entry, Point


@dataclass(frozen=True)
class Column:
    """A column: its head, an entry's value, and how people read it."""

    head: str
    value: Callable[[Entry], Any]
    form: Callable[[Any], str] = "{:g}".format
    more: Callable[[Entry], str] = lambda _entry: ""

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
        Column("seeds", lambda entry: len(entry.runs), str),
        Column("accuracy", _mean("accuracy"), in_percent, _spread),
        Column("best", _mean("best_accuracy"), in_percent),
        Column("rounds", _mean("rounds_done")),
        Column("up", _mean("up_bytes"), in_bytes),
        Column("down", _mean("down_bytes"), in_bytes),
        Column("minutes", lambda entry: (entry.mean("seconds") or 0) / 60, "{:.1f}".format),
    ]
    if comparison.target is not None:
        goal = f"{100 * comparison.target:.4g}%"
        found += [
            Column(f"rounds to {goal}", _to(comparison.target, lambda point: point.round)),
            Column(f"up to {goal}", _to(comparison.target, lambda point: point.up_bytes), in_bytes),
        ]
    if any(entry.mean("epsilon") is not None for entry in comparison.entries):
        found.append(Column("epsilon", _mean("epsilon"), "{:.2f}".format))
    return found


def shown(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Head and rows as people read them."""
    wanted = columns(comparison)
    return [c.head for c in wanted], [[c.shown(e) for c in wanted] for e in comparison.entries]


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
