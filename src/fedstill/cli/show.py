"""``fedstill show``: a run's synthetic images as pictures."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from fedstill.draw.console import Console
from fedstill.draw.numbers import counted
from fedstill.runs.place import rounds_to_show


def show_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the images.", show_default="RUN/pictures")
    ] = None,
    round_: Annotated[
        list[int] | None,
        typer.Option("--round", help="Only this round; may be repeated.", show_default="all"),
    ] = None,
    client: Annotated[
        list[int] | None,
        typer.Option(
            help="Only this client's sheet; may be repeated.", show_default="all, and an overview"
        ),
    ] = None,
) -> None:
    """Draw a run's synthetic images: labelled grids per client and round, and overviews.

    RUN is a run folder. Each set is drawn twice: clipped to the valid pixel range, and stretched
    to the range of its values.
    """
    rounds_to_show(run, round_ or ())
    from fedstill.draw.sets import show
    from fedstill.observe.progress import ProgressConsole

    errors = ProgressConsole(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bars:
        task = bars.add_task("rounds", total=None)
        written = show(
            run,
            out,
            rounds=round_ or (),
            clients=client or (),
            progress=lambda done, rounds: bars.update(task, completed=done, total=rounds),
        )
    console = Console(highlight=False, soft_wrap=True)
    for path in written[-3:]:
        console.print(str(path), markup=False)
    pictures = counted(len(written), "picture")
    console.print(f"{pictures} in {written[-1].parent}", markup=False)
