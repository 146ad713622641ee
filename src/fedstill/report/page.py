"""The page about one run.

Text comes from a template; figures are drawn in the page by a few hundred lines of plain JavaScript
into SVG. A plotting library would do it too, but would weigh more than all the rest in every file:
the smallest form of Plotly has 1.2 MB, and a page may have 3 MB, images included.
"""

import shlex
from typing import Any

import tomli_w

from fedstill.draw.numbers import duration, in_bytes, in_percent
from fedstill.report.contents import contents
from fedstill.report.embed import page
from fedstill.report.sentences import (
    DETAILS,
    NO_PRIVACY,
    command,
    departures,
    epsilon_explained,
    sentence,
)
from fedstill.report.source import RunView

SCRIPTS = ("scales.js", "chart.js", "save.js", "link.js", "matrix.js", "images.js", "report.js")

Rows = list[tuple[Any, ...]]


def report_page(run: RunView, *, live: bool = False) -> str:
    """The run as one HTML page; ``live`` makes it look for news while it is open."""
    notes = list(run.notes)
    data = contents(run, notes)
    details = [(name, DETAILS.get(name, "")) for name in data["details"]]
    parts = {
        "settings": "Settings",
        "learning": "Learning",
        "classes": "Classes" if data["classes"] else None,
        "cost": "Cost",
        "holdings": "Who held what" if data["holdings"] else None,
        "synthetic": "Synthetic images" if data["synthetic"] else None,
        "details": "Inside the method" if details else None,
        "clients": "Clients",
        "privacy": "Privacy",
        "rounds": "Numbers",
        "again": "Run it again",
        "machine": "Versions",
    }
    head, rows = _rounds(run)
    return page(
        "report.html",
        run.title,
        (*SCRIPTS, "live.js") if live else SCRIPTS,
        data,
        live=live,
        run=run,
        name=run.path.resolve().name,
        version=run.summary.get("version", ""),
        sentence=sentence(run),
        notes=notes,
        resume=_resume(run),
        tiles=_tiles(run),
        sections=[(name, title) for name, title in parts.items() if title],
        departures=departures(run),
        confusion=run.confusion if data["classes"] else None,
        by_client=data["clients"]["accuracy"] is not None,
        forecast=_forecast(run),
        memory=in_bytes(run.forecast.memory_bytes) if run.forecast else "",
        warning=run.forecast.warning if run.forecast else None,
        holdings=data["holdings"] is not None,
        images=data["synthetic"] is not None,
        details=details,
        refused=_refused(run),
        privacy=_privacy(run),
        round_head=head,
        rounds=rows,
        command=command(run),
        config=tomli_w.dumps(run.config),
        session=_session(run),
        sums=_sums(run),
    )


def _resume(run: RunView) -> str | None:
    """The command that resumes a run which ended before its last round; a run that is under way,
    or whose settings are lost, has none."""
    resumable = run.status in ("interrupted", "failed") and run.config
    return f"fedstill run --resume --out {shlex.quote(str(run.path))}" if resumable else None


def _tiles(run: RunView) -> list[tuple[str, str, str]]:
    """The numbers at the top: name, value, and what it is a number of."""
    known = run.summary
    tiles = [
        ("accuracy", in_percent(known.get("accuracy")), "of the test records"),
        ("best", in_percent(known.get("best_accuracy")), _best_round(run)),
        ("uploaded", in_bytes(known["up_bytes"]), "by all clients"),
        ("downloaded", in_bytes(known["down_bytes"]), "by all clients"),
        ("rounds", f"{known['rounds_done']}", f"of {run.planned}"),
        ("computing", duration(known["seconds"]), "in total, here"),
    ]
    if known.get("epsilon") is not None:
        delta = known.get("delta")
        tiles.append(
            ("epsilon", f"{known['epsilon']:.2f}", f"at delta {delta:g}" if delta else "spent")
        )
    return tiles


def _forecast(run: RunView) -> list[tuple[str, str, str]]:
    """Bytes of a round, of all clients: as expected before the first one, and as measured."""
    expected, rounds = run.forecast, len(run.rounds)
    if expected is None:
        return []
    most = "at most " if expected.at_most else ""
    rows = [
        ("forecast", most + in_bytes(expected.up_bytes), in_bytes(expected.down_bytes)),
        ("FedAvg's", in_bytes(expected.fedavg_up_bytes), in_bytes(expected.fedavg_down_bytes)),
    ]
    if rounds:
        up, down = (sum(getattr(m, k) for m in run.rounds) for k in ("up_bytes", "down_bytes"))
        rows.insert(1, ("measured, mean", in_bytes(up / rounds), in_bytes(down / rounds)))
    return rows


def _best_round(run: RunView) -> str:
    best = max(run.measured, key=lambda m: m.accuracy or 0.0, default=None)
    return f"in round {best.round}" if best else "not measured"


def _refused(run: RunView) -> Rows:
    """The replies that did not reach the model, or that a defence trusted less than others."""
    found: Rows = [(m.round, client, why) for m in run.rounds for client, why in m.failed.items()]
    return found + [
        (m.round, client, f"trusted {verdict.trust:.0%}: {verdict.reason}")
        for m in run.rounds
        for client, verdict in m.defence.items()
        if verdict.trust < 1
    ]


def _privacy(run: RunView) -> str:
    epsilon = run.summary.get("epsilon")
    if epsilon is None:
        return NO_PRIVACY
    promise = run.summary.get("privacy")  # what exactly the run guarantees
    return " ".join(filter(None, (epsilon_explained(epsilon, run.summary.get("delta")), promise)))


def _rounds(run: RunView) -> tuple[tuple[str, ...], Rows]:
    """Head and rows of the table of all rounds."""
    names = sorted({name for m in run.rounds for name in m.details})[:6]
    head = ("round", "accuracy", "loss", "up", "down", "seconds", "clients", "failed", *names)
    rows = [
        (
            m.round,
            in_percent(m.accuracy),
            "-" if m.loss is None else f"{m.loss:.4f}",
            in_bytes(m.up_bytes),
            in_bytes(m.down_bytes),
            f"{m.seconds:.1f}",
            len(m.clients),
            len(m.failed),
            *(f"{m.details[name]:.4g}" if name in m.details else "-" for name in names),
        )
        for m in run.rounds
    ]
    return head, rows


def _session(run: RunView) -> dict[str, str]:
    """What the last part of the run was computed with."""
    if not run.sessions:
        return {}
    last = run.sessions[-1]
    return {"started": last.started, "command": last.command, **last.versions, **last.hardware}


def _sums(run: RunView) -> dict[str, str]:
    keys = ("seed", "data_sha256", "partition_sha256", "experiment_sha256")
    return {key: str(run.summary[key]) for key in keys if run.summary.get(key) is not None}
