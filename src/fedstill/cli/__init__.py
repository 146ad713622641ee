"""The ``fedstill`` command."""

import io
import logging
import os
import signal
import sys
import warnings
from typing import Any, NoReturn

import click
import typer

from fedstill.cli import (
    audit,
    compare,
    deploy,
    evaluate,
    export,
    frontier,
    new,
    partition,
    privacy,
    report,
    reproduce,
    run,
    show,
    tune,
)
from fedstill.cli import list as list_
from fedstill.draw.console import Console
from fedstill.engine.memory import keep_freed_memory
from fedstill.errors import FedstillError, one_line
from fedstill.version import VERSION

app = typer.Typer(
    name="fedstill",
    help="Federated learning that ships distilled data, not weights.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run_command)
app.command("reproduce")(reproduce.reproduce_command)
app.command("frontier")(frontier.frontier_command)
app.command("partition")(partition.partition_command)
app.command("privacy", no_args_is_help=True)(privacy.privacy_command)
app.command("audit")(audit.audit_command)
app.command("show")(show.show_command)
app.command("tune")(tune.tune_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("export")(export.export_command)
app.command("compare")(compare.compare_command)
app.command("report")(report.report_command)
app.command("new")(new.new_command)
app.command("list")(list_.list_command)
app.add_typer(deploy.app, name="deploy")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedstill {VERSION}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Federated learning that ships distilled data, not weights."""


def main() -> None:
    """Run the command line; errors that a user can act on are one line and an exit code."""
    errors = Console(stderr=True)
    warnings.showwarning = lambda message, *_args, **_kwargs: errors.print(
        f"note: {one_line(str(message))}", markup=False, highlight=False, soft_wrap=True
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know ASCII only
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # it reports what is refused anyway
    signal.signal(signal.SIGTERM, _as_interrupt)
    keep_freed_memory()

    def print_error(text: str) -> None:
        errors.print(f"fedstill: {one_line(text)}", markup=False, highlight=False, soft_wrap=True)

    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except FedstillError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fedstill"
        print_error(f"{error.format_message()} See `{command} --help`.")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        sys.exit(1)


def _as_interrupt(_signal: int, _frame: Any) -> NoReturn:
    """SIGTERM stops a run as Ctrl-C does: it can be resumed."""
    raise KeyboardInterrupt
