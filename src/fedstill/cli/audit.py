"""``fedstill audit``: an empirical lower bound on epsilon."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedstill
from fedstill.cli import options
from fedstill.config.nested import parse_override
from fedstill.draw.console import Console
from fedstill.draw.numbers import counted

if TYPE_CHECKING:
    from fedstill.privacy.audit import Audit, AuditReport, Finding
    from fedstill.runs.folder import RunFolder

CANARIES = 10_000  # the default of ``fedstill.audit``, which is not imported for help
_WORDS = {
    "refuted": "REFUTED: the claim is false",
    "not refuted": "not refuted: this proves nothing by itself",
    "no power": "no power: this audit says nothing about the claim",
}


def audit_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="METHOD|RUN",
            help="One of `fedstill list methods`, your own package.module:Class, or a run folder.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="A name of `fedstill list data`, or a path: for the shapes alone."),
    ] = None,
    data_dir: options.DataDir = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A name of `fedstill list models`, or package.module:function.",
            show_default="an mlp that is wide enough; with --data, as for `fedstill run`",
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The claimed epsilon.", show_default="3")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The claimed delta.", show_default="1e-5")
    ] = None,
    canaries: Annotated[
        int, typer.Option(help="Canary records, each included at random.")
    ] = CANARIES,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Rounds of the audited run.",
            show_default="1; of a RUN its own, up to 500 accesses",
        ),
    ] = None,
    q: Annotated[float | None, typer.Option("--q", help="Sampling rate.", show_default="1")] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the canaries; the noise has none.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, e.g. method.iterations=5."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Test a claimed epsilon by an attack that gives a lower bound.

    Canary records are included in one run at random, and an attacker guesses which ones. A lower
    bound above the claim refutes it (exit code 1). One below proves nothing by itself. METHOD: its
    private form with one client; if it makes images, a run without privacy is attacked too.
    RUN: the configuration of a finished run; the result is kept there as audit.json.
    """
    from fedstill.runs.folder import RunFolder

    result = fedstill.audit(
        what,
        data=data,
        data_dir=data_dir,
        model=model,
        epsilon=epsilon,
        delta=delta,
        canaries=canaries,
        rounds=rounds,
        q=q,
        confidence=confidence,
        seed=seed,
        set=dict(parse_override(text) for text in set_ or ()),
    )
    console, folder = Console(highlight=False, soft_wrap=True), RunFolder(Path(what))
    _print(console, result, folder)
    if json:
        options.print_json(result.table)
    if result.refuted:
        raise typer.Exit(1)


def _print(console: Console, result: "AuditReport", folder: "RunFolder") -> None:
    from fedstill.evaluate.audited import FILE

    for note in result.notes:
        console.print(f"note: {note}", markup=False)
    if result.audit is not None:
        for line in _private_lines(result.audit):
            console.print(line, markup=False)
    if result.without_privacy is not None:
        plain = result.without_privacy
        console.print(f"{plain.method} without privacy: {_found(plain)}", markup=False)
    elif result.audit is None:
        console.print("the run has no privacy and makes no images: it claims nothing", markup=False)
    if folder.holds_run:
        console.print(f"kept in {folder.path / FILE}", markup=False)


def _private_lines(audit: "Audit") -> list[str]:
    assert audit.verdict is not None
    lines = [
        f"{audit.method} claims epsilon {audit.claimed:.2f} (delta {audit.delta:g}, q "
        f"{audit.rate:g}, sigma {audit.sigma:g}, {counted(audit.accesses, 'access')} in "
        f"{counted(audit.rounds, 'round')}, {counted(audit.canaries, 'canary')})"
    ]
    lines += [f"  {_words(finding)}" for finding in audit.findings]
    lines.append(f"{_found(audit)}: {_WORDS[audit.verdict]}{_why(audit)}")
    return lines


def _why(audit: "Audit") -> str:
    from fedstill.privacy.audit import POWER_SHARE

    if audit.verdict != "no power":
        return ""
    if not audit.could_refute:
        return " (even a mechanism without noise would not have been refuted; use more canaries)"
    return f" (the bound is below {POWER_SHARE:.0%} of it; use more canaries)"


def _words(finding: "Finding") -> str:
    return (
        f"{finding.attacker}, {finding.test}: at least {finding.bound:.2f} "
        f"({finding.right} of {finding.guesses} guesses right)"
    )


def _found(audit: "Audit") -> str:
    finding = audit.finding
    return (
        f"epsilon is at least {finding.bound:.2f} with {100 * audit.confidence:g}% confidence "
        f"(attacker: {finding.attacker}, test: {finding.test})"
    )
