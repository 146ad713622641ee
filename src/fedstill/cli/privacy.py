"""``fedstill privacy``: the noise for a budget, the budget for a plan, the promise of a run."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from fedstill.cli import options
from fedstill.draw.console import Console
from fedstill.draw.numbers import counted
from fedstill.draw.privacy import epsilon_figure
from fedstill.errors import RequestError
from fedstill.files import write_atomically
from fedstill.privacy.accounting import DEFAULT_ACCOUNTANT
from fedstill.privacy.budget import Choice, Plan, by_round, choices


def privacy_command(
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget: shows the noise that it needs.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Noise multiplier: shows the epsilon that it gives.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The budget's delta.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds in which a client takes part.")] = 20,
    accesses: Annotated[
        int, typer.Option(help="Noisy releases per client and round, e.g. SGD steps.")
    ] = 10,
    q: Annotated[
        float, typer.Option("--q", help="Sampling rate: expected batch / number of records.")
    ] = 0.1,
    accountant: Annotated[
        str, typer.Option(help="pld, or rdp: the larger bound that most papers use.")
    ] = DEFAULT_ACCOUNTANT,
    statement: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Write what this run promises, for a reader of one page."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="SVG file for a plot of epsilon by round; HTML file of --statement."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Plan a private run: the noise for a budget, or the budget for a plan. No data is touched.

    With --epsilon: the noise multiplier sigma, epsilon by round, and sigma for other sampling
    rates and numbers of accesses. With --sigma: epsilon by round. With both: the number of rounds
    until the budget is spent.

    With --statement RUN: one page about a run for a data-protection officer, statement.html in its
    folder, and the same on the terminal.
    """
    if statement is not None:
        if epsilon is not None or sigma is not None:
            raise RequestError("privacy: --statement takes everything from the run; leave the rest")
        _print_statement(statement, out, json)
        return
    plan = _checked(rounds, accesses, q, delta, accountant, epsilon, sigma)
    answer: dict[str, object] = {"rounds": rounds, "accesses": accesses, "q": q, "delta": delta}
    console = Console(highlight=False)
    # Accounting takes seconds to minutes, and has no steps that could be counted.
    errors = Console(stderr=True, highlight=False)
    total = counted(plan.total, "access")
    errors.print(f"accounting for {total} ({accountant}) ...")
    noise = plan.sigma(epsilon) if sigma is None and epsilon is not None else sigma
    assert noise is not None
    if sigma is None:
        console.print(f"sigma {noise:.5g} keeps {total} within epsilon {epsilon:g}")
    elif epsilon is not None:
        afford = plan.affordable(epsilon, noise)
        answer["affordable_rounds"] = afford
        console.print(
            f"sigma {noise:g} affords {counted(afford, 'round')} within epsilon {epsilon:g}"
        )
    points = by_round(plan, noise)
    answer |= {"sigma": noise, "epsilon": points[-1][1], "accountant": accountant}
    answer["by_round"] = [{"round": r, "epsilon": e} for r, e in points]
    console.print(_rounds_table(points, plan, noise))
    if epsilon is not None and sigma is None:
        table = choices(plan, epsilon)
        answer["choices"] = msgspec.to_builtins(table)
        console.print(_choices_table(table))
    if out is not None:
        each = counted(accesses, "access")
        title = f"sigma {noise:.4g}, q {q:g}, {each} per round, delta {delta:g}"
        picture = epsilon_figure(points, f"epsilon: {title} ({accountant})")
        write_atomically(out, picture.encode())
        console.print(f"picture: {out}", markup=False, soft_wrap=True)
    if json:
        options.print_json(answer)


def _print_statement(run: Path, out: Path | None, json: bool) -> None:
    from fedstill.evaluate.audited import kept_audit
    from fedstill.report.statement import write_statement

    path, made = write_statement(run, kept_audit(run), out)
    console = Console(highlight=False, soft_wrap=True)
    console.print(made.plain, markup=False)
    console.print(f"\nstatement: {path}", markup=False)
    if json:
        options.print_json(made)


def _checked(
    rounds: int,
    accesses: int,
    q: float,
    delta: float,
    accountant: str,
    epsilon: float | None,
    sigma: float | None,
) -> Plan:
    if epsilon is None and sigma is None:
        raise RequestError("privacy: give a budget (--epsilon 3) or the noise (--sigma 1)")
    if min(rounds, accesses) < 1:
        raise RequestError("privacy: --rounds and --accesses must be 1 or more")
    for name, value, high in (("--q", q, 1.0), ("--delta", delta, 0.5)):
        if not 0 < value <= high:
            raise RequestError(f"privacy: {name} = {value:g}: must be above 0 and at most {high:g}")
    for name, given in (("--epsilon", epsilon), ("--sigma", sigma)):
        if given is not None and not 0 < given < float("inf"):
            raise RequestError(f"privacy: {name} = {given:g}: must be a number above 0")
    if accountant == "rdp":
        return Plan(rounds, accesses, q, delta, "rdp")
    if accountant == "pld":
        return Plan(rounds, accesses, q, delta, "pld")
    raise RequestError(f"privacy: --accountant {accountant}: choose pld or rdp")


def _rounds_table(points: list[tuple[int, float]], plan: Plan, sigma: float) -> Table:
    table = Table(title=f"epsilon by round (sigma {sigma:.5g}, delta {plan.delta:g})", box=None)
    for column in ("round", "accesses", "epsilon"):
        table.add_column(column, justify="right")
    for number, epsilon in points:
        table.add_row(str(number), str(number * plan.accesses), f"{epsilon:.2f}")
    return table


def _choices_table(table: list[Choice]) -> Table:
    shown = Table(
        title="alternatives (noise: of the mean of all releases, relative to your plan)", box=None
    )
    for column in ("q", "total accesses", "sigma", "noise"):
        shown.add_column(column, justify="right")
    for c in table:
        shown.add_row(f"{c.q:.4g}", str(c.accesses), f"{c.sigma:.4g}", f"{c.noise:.2f}")
    return shown
