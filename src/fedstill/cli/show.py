"""``fedstill show``: a run's synthetic images as pictures."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.draw.console import Console
from fedstill.draw.sets import show


def show_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the images.", show_default="RUN/pictures")
    ] = None,
) -> None:
    """Draw a run's synthetic images: labelled grids per client and round, and overviews.

    RUN is a run folder. Each set is drawn twice: clipped to the valid pixel range, and stretched
    to the range of its values.
    """
    written = show(run, out)
    console = Console(highlight=False, soft_wrap=True)
    for path in written[-3:]:
        console.print(str(path), markup=False)
    console.print(f"{len(written)} pictures in {written[-1].parent}", markup=False)
