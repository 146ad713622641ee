"""``fedstill audit``: an empirical lower bound on epsilon."""

from typing import Annotated

import typer

from fedstill.cli import options
from fedstill.config.nested import as_table, merged
from fedstill.config.resolve import resolve_with_method
from fedstill.draw.console import Console
from fedstill.errors import RequestError
from fedstill.privacy.audit import Audit, AuditSettings, audit, membership
from fedstill.privacy.guards import private_form_of


def audit_command(
    method: Annotated[
        str,
        typer.Argument(help="One of `fedstill list methods`, or your own package.module:Class."),
    ],
    epsilon: Annotated[float, typer.Option(help="The claimed epsilon.")] = 2.0,
    delta: Annotated[float, typer.Option(help="The claimed delta.")] = 1e-5,
    canaries: Annotated[int, typer.Option(help="Canary records, each included at random.")] = 400,
    rounds: Annotated[int, typer.Option(help="Rounds of the audited run.")] = 1,
    q: Annotated[float, typer.Option("--q", help="Sampling rate.")] = 1.0,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the canaries; the noise has none.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, e.g. method.iterations=5."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Test a claimed epsilon by an attack that gives a lower bound.

    METHOD is one of `fedstill list methods`, or your own as package.module:Class. Canary records
    are included in one run at random, and an attacker guesses which ones. A lower bound above the
    claim refutes it (exit code 1). If the method produces images, a run without privacy is attacked
    in the same way.
    """
    settings = AuditSettings(
        epsilon=epsilon,
        delta=delta,
        canaries=canaries,
        rounds=rounds,
        rate=q,
        confidence=confidence,
        seed=seed,
    )
    _check(settings)
    console = Console(highlight=False, soft_wrap=True)
    request = merged({"method": {"name": method}}, options.overrides(set_))
    privacy = {"epsilon": epsilon, "delta": delta}
    _, private = resolve_with_method({**request, "privacy": privacy})
    for leak in private_form_of(private, method, q).leaks:
        raise RequestError(f"method.{leak.setting}: {leak.why}; {leak.remedy}")
    results = [audit(private, method, settings)]
    _, plain = resolve_with_method(request)
    without_privacy = membership(plain, method, settings)
    if without_privacy is not None:
        results.append(without_privacy)
    for result in results:
        console.print(_text(result), markup=False)
    if json:
        answer = {"audit": as_table(results[0]), "refuted": results[0].refuted}
        if len(results) > 1:
            answer["without_privacy"] = as_table(results[1])
        options.print_json(answer)
    if results[0].refuted:
        raise typer.Exit(1)


def _check(settings: AuditSettings) -> None:
    ranges = (
        ("--epsilon", settings.epsilon, 0, 100),
        ("--delta", settings.delta, 0, 0.1),
        ("--q", settings.rate, 0, 1),
        ("--confidence", settings.confidence, 0.5, 0.9999),
        ("--canaries", settings.canaries, 15, 10_000),
        ("--rounds", settings.rounds, 0, 1000),
    )
    for name, value, low, high in ranges:
        if not low < value <= high:
            raise RequestError(
                f"audit: {name} = {value:g}: must be above {low:g}, at most {high:g}"
            )


def _text(result: Audit) -> str:
    finding = result.finding
    found = (
        f"epsilon is at least {finding.bound:.2f} with {result.confidence:.0%} confidence "
        f"({finding.right} of {finding.guesses} guesses correct, attacker: {finding.attacker})"
    )
    if result.claimed is None:
        return f"{result.method} without privacy: {found}"
    verdict = "REFUTED: the claim is false" if result.refuted else "the claim stands"
    return f"{result.method} claims epsilon {result.claimed:.2f}: {found}; {verdict}"
