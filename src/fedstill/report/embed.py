"""Putting text, data and code into a page so that none of it can become another."""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import msgspec

from fedstill.errors import printable


def text(value: Any) -> str:
    """Text for between tags and for attributes: a class called ``<script>`` is shown, not run."""
    return html.escape(printable(str(value)), quote=True)


def data_script(name: str, value: Any) -> str:
    """Data as JSON. ``<`` is written as its code, so nothing inside can end the element."""
    encoded = msgspec.json.encode(value).decode()
    safe = encoded.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{printable(safe)}</script>'


def asset(name: str) -> str:
    """A file that comes with the package."""
    return (resources.files("fedstill.report") / "assets" / name).read_text(encoding="utf-8")


def document(title: str, body: str, scripts: Sequence[str], *, live: bool = False) -> str:
    """A whole page that needs nothing else.

    Its security policy lets these scripts run and no other, and, unless it is live, lets it reach
    no address at all.
    """
    code = "\n".join(asset(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    reach = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data:; connect-src {reach}; "
        "base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{text(title)}</title>",
            f'<link rel="icon" href="{_ICON}">',
            f"<style>{asset('page.css')}</style></head>\n<body>",
            body,
            f"<script>{code}</script></body></html>\n",
        )
    )


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]], numbers: int = 0) -> str:
    """A table of text; the columns from the ``numbers``-th on are set as numbers."""

    def cells(tag: str, values: Iterable[Any]) -> str:
        return "".join(
            f"<{tag}{' class=n' if i >= numbers else ''}{' scope=col' if tag == 'th' else ''}>"
            f"{text(value)}</{tag}>"
            for i, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


# A drop, for what distillation gives.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M8 1c3 4 5 6.5 5 9a5 5 0 0 1-10 0c0-2.5 2-5 5-9z' fill='%231d7f8c'/%3E"
    "%3C/svg%3E"
)
