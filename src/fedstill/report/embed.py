"""Putting text, data and code into a page so that none of it can become another.

Pages are Jinja2 templates with automatic escaping: whatever a template prints is text, unless this
module made it. (PyTorch needs Jinja2 too, so it is always installed.)
"""

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from fedstill.draw.numbers import duration, in_bytes, in_percent
from fedstill.errors import printable


def page(
    template: str,
    title: str,
    scripts: Sequence[str],
    data: Any,
    *,
    live: bool = False,
    **values: Any,
) -> str:
    """A whole page that needs nothing else: a template, its scripts, and the data they draw.

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
    return (
        _templates()
        .get_template(template)
        .render(
            title=title,
            policy=Markup(policy),
            icon=Markup(_ICON),
            style=Markup(asset("page.css")),
            code=Markup(code),
            data=data_script("data", data),
            live=live,
            **values,
        )
    )


def data_script(name: str, value: Any) -> Markup:
    """Data as JSON. ``<`` is written as its code, so nothing inside can end the element."""
    encoded = msgspec.json.encode(value).decode()
    safe = encoded.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Markup(f'<script type="application/json" id="{name}">{printable(safe)}</script>')


def asset(name: str) -> str:
    """A file that comes with the package."""
    return (resources.files("fedstill.report") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("fedstill.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,  # a name that is misspelt is an error, not nothing
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    found.filters |= {"percent": in_percent, "bytes": in_bytes, "duration": duration}
    return found


def _harmless(value: Any) -> Any:
    """What is printed, without control characters. Markup comes from the templates themselves."""
    return value if isinstance(value, Markup) else printable(str(value))


# A drop, for what distillation gives.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M8 1c3 4 5 6.5 5 9a5 5 0 0 1-10 0c0-2.5 2-5 5-9z' fill='%231d7f8c'/%3E"
    "%3C/svg%3E"
)
