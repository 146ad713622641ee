"""The privacy statement of a run: one page for a data-protection officer, and the same as text.

It is written from public values alone: the configuration, what the ledgers counted, and the kept
result of an audit. Nothing in it is computed from records.
"""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedstill.config.nested import Table
from fedstill.errors import UNREADABLE
from fedstill.files import write_atomically
from fedstill.privacy.accounting import Accountant
from fedstill.privacy.audit import AuditReport, Verdict
from fedstill.privacy.ledger import Access, Ledger
from fedstill.report.embed import page
from fedstill.report.sentences import NO_PRIVACY, epsilon_explained
from fedstill.report.source import RunView, open_run

_COUNTED_BY: dict[Accountant, str] = {
    "pld": "privacy loss distributions (dp-accounting)",
    "rdp": "Renyi divergences (dp-accounting)",
}
_WIDTH = 92


@dataclass(frozen=True)
class Part:
    """A part of the statement: sentences, then facts, then a list."""

    title: str
    sentences: tuple[str, ...]
    facts: Mapping[str, str] | None = None
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """The whole statement. ``mark`` is its result in a few words, ``good`` whether it is kind."""

    title: str
    mark: str
    good: bool
    parts: tuple[Part, ...]
    footer: str

    @property
    def html(self) -> str:
        """A self-contained page, for the screen and for paper."""
        return page("statement.html", self.title, (), None, statement=self)

    @property
    def plain(self) -> str:
        """The same as text."""
        lines = [f"PRIVACY STATEMENT: {self.title}", f"{self.mark}", ""]
        for part in self.parts:
            lines += [part.title, "-" * len(part.title)]
            for sentence in part.sentences:
                lines += _wrapped(sentence)
            lines += [f"  {name}: {value}" for name, value in (part.facts or {}).items()]
            for item in part.items:
                lines += _wrapped(item, "  - ", "    ")
            lines.append("")
        return "\n".join([*lines, self.footer])


def _wrapped(sentence: str, first: str = "", rest: str = "") -> list[str]:
    """Lines of a terminal. Paths and commands are not broken: they are to be copied."""
    return textwrap.wrap(
        sentence,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def write_statement(
    run_folder: Path, audit: AuditReport | None, out: Path | None = None
) -> tuple[Path, Statement]:
    """Write the run's statement, by default ``statement.html`` in its folder. ``audit`` is the
    result that an audit kept there."""
    made = statement(open_run(run_folder), audit)
    path = out or run_folder / "statement.html"
    write_atomically(path, made.html.encode())
    return path, made


def statement(run: RunView, audit: AuditReport | None) -> Statement:
    """The statement of this run."""
    privacy = run.config.get("privacy")
    refuted = audit is not None and audit.refuted
    if not isinstance(privacy, dict):
        mark, good, parts = "no privacy is promised", False, _without()
    elif privacy.get("reproducible"):
        mark, good, parts = "NOT PRIVATE", False, _reproducible()
    else:
        epsilon, delta = run.summary.get("epsilon"), privacy.get("delta")
        mark = "nothing was released yet"
        if epsilon is not None:
            mark = f"epsilon {epsilon:.2f} at delta {delta:g}"
        good, parts = not refuted, (*_promise(run, privacy), _counting(run, privacy), _limits())
    if refuted:
        mark += ", REFUTED by an audit"
    return Statement(
        title=run.title,
        mark=mark,
        good=good,
        parts=(*parts, _audited(run, audit)),
        footer=f"{_name(run)} · {_begun(run)}fedstill {run.summary.get('version', '')}",
    )


def _name(run: RunView) -> str:
    return run.path.resolve().name


def _begun(run: RunView) -> str:
    return f"begun {run.sessions[0].started} · " if run.sessions else ""


def _without() -> tuple[Part, ...]:
    return (
        Part(
            "What is promised",
            ("Nothing. " + NO_PRIVACY, "A run with --epsilon has a promise, or is refused."),
        ),
    )


def _reproducible() -> tuple[Part, ...]:
    return (
        Part(
            "What is promised",
            (
                "Nothing: NOT PRIVATE. The noise of this run was drawn from its seed "
                "(privacy.reproducible), for tests. Anyone who knows the seed, which is part of "
                "the configuration, can subtract the noise.",
                "Any epsilon in the run's files is what the same run would cost with secret noise.",
            ),
        ),
    )


def _promise(run: RunView, privacy: Table) -> Iterator[Part]:
    epsilon, delta = run.summary.get("epsilon"), privacy.get("delta")
    explained = (
        epsilon_explained(epsilon, delta)
        if epsilon is not None
        else "No round has ended: nothing is known to have been released."
    )
    yield Part(
        "What is promised",
        (
            "For each client, everything that it ever sent in this run is differentially private "
            "for adding or removing one of its records. " + explained,
        ),
        {
            "epsilon spent": "none yet" if epsilon is None else f"{epsilon:.3f} (worst client)",
            "epsilon allowed": f"{privacy['epsilon']:g}" if "epsilon" in privacy else "no limit",
            "delta": f"{delta:g}",
            "unit": "one record of one client",
            "neighbours": "one record added or removed",
            "status of the run": run.status,
        },
    )
    yield Part(
        "Against whom",
        (
            "The server, the other clients, and anyone who sees the messages, the model or the "
            "synthetic sets, now or later, with any other knowledge. They may know the code, the "
            "configuration, the seed and who took part. The client's own machine and the software "
            "on it are trusted.",
        ),
    )


def _counting(run: RunView, privacy: Table) -> Part:
    accountant = privacy.get("accountant", "pld")
    accesses, rate = _worst(run.path / "ledger")
    return Part(
        "How it is counted",
        (
            "Records are read by one mechanism alone: each is drawn with probability q, its vector "
            "is cut to a fixed length, the vectors are summed, and Gaussian noise from the "
            "operating system's generator is added. Every access is written to the client's "
            "ledger before it is made; what is computed from its result costs nothing more. "
            "Clients' records are disjoint, so the worst client's epsilon holds for all.",
        ),
        {
            "mechanism": "Poisson-sampled Gaussian",
            "accesses of the worst client": str(accesses),
            "q": "not known" if rate is None else f"{rate:g}",
            "noise (sigma, in units of the clip)": f"{privacy.get('sigma', 0):g}",
            "clip": f"{privacy.get('clip', 1.0):g}",
            "composed by": _COUNTED_BY.get(accountant, str(accountant)),
            "classes": "declared public"
            if privacy.get("classes") == "declared"
            else "every client sends all",
            "clients": str(run.summary.get("clients")),
        },
    )


def _limits() -> Part:
    return Part(
        "What is not promised",
        (),
        items=(
            "Protection of a person with several records: for k records epsilon is up to k times "
            "as large, and delta grows with it.",
            "Protection across runs: every run has its own ledger, and two runs on the same "
            "records add up. Choosing settings by comparing runs on the same records adds up too.",
            "Side channels: timing, memory, latency, and that a client failed.",
            "The run's folders unpublished, checkpoint, refused and nodes: never publish them. The "
            "model, the synthetic sets, the metrics and the configuration may be published.",
            "Anything about a record that follows from other records: that the data show a pattern "
            "is what is learnt.",
            "A proof against attacks on the last bits of floating-point noise.",
        ),
    )


def _worst(ledgers: Path) -> tuple[int, float | None]:
    """The most accesses of any client, and the sampling rate, by the ledgers."""
    most, rate = 0, None
    for path in sorted(ledgers.glob("client-*.jsonl")):
        access = _some_access(path)
        if access is not None:
            most = max(most, Ledger(path, access.q, access.sigma).count)
            rate = access.q
    return most, rate


def _some_access(path: Path) -> Access | None:
    """The last line of a ledger that can be read."""
    for line in reversed(path.read_bytes().splitlines()):
        try:
            return msgspec.json.decode(line, type=Access)
        except UNREADABLE:  # cut short by a kill
            continue
    return None


_VERDICTS: dict[Verdict, str] = {
    "refuted": "REFUTED: the promise does not hold; do not rely on it.",
    "not refuted": "Not refuted. This proves nothing by itself: the promise rests on the "
    "mechanism's proof, not on this audit.",
    "no power": "No power: the audit says nothing about the promise.",
}


def _audited(run: RunView, report: AuditReport | None) -> Part:
    title = "Audit"
    if report is None:
        return Part(title, (f"Not audited. To do it: fedstill audit {run.path}",))
    audit, plain = report.audit, report.without_privacy
    if audit is None or report.verdict is None:
        if plain is None:
            return Part(title, ("The run claims nothing, and makes no images to be searched.",))
        found = (
            "A search for canary records in the images of this configuration shows an epsilon of "
            f"at least {plain.finding.bound:.2f} with {100 * plain.confidence:g}% confidence."
        )
        return Part(title, (found,))
    if audit.sigma != (run.config.get("privacy") or {}).get("sigma"):
        old = f"The kept audit is of other settings. Audit again: fedstill audit {run.path}"
        return Part(title, (old,))
    return Part(
        title,
        (
            "An attack on the run's own configuration and code: canary records were put in at "
            "random, and an attacker who sees every release guessed which. "
            + _VERDICTS[report.verdict],
            *(f"{note[:1].upper()}{note[1:]}." for note in report.notes),
        ),
        {
            "epsilon is at least": f"{audit.finding.bound:.2f}",
            "of the claimed": f"{audit.claimed:.2f}",
            "confidence": f"{100 * audit.confidence:g}%",
            "canaries": str(audit.canaries),
            "accesses": str(audit.accesses),
            "made": report.made,
        },
    )
