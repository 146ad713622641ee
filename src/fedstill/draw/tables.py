"""Tables of plain cells, for programs that print a result and for notebooks that show one."""

import html
from collections.abc import Sequence


def in_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, left-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )


def in_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are text and never markup."""

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
