"""``fedstill export``: a synthetic set in a format that other tools read."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.draw.console import Console
from fedstill.runs.place import refuse_unless_set, set_file

_SUFFIX = {"parquet": ".parquet", "npz": ".npz"}


def export_command(
    source: Annotated[
        Path, typer.Argument(metavar="SET", help="A set file, or a run folder (its last round).")
    ],
    to: Annotated[str, typer.Option(help="Format: folder, parquet, npz, hf.")] = "folder",
    out: Annotated[
        Path | None,
        typer.Option(help="File or folder to write.", show_default="METHOD-ROUND in this folder"),
    ] = None,
) -> None:
    """Write a synthetic set as an image folder, parquet, npz or Hugging Face data set.

    SET is a set file, or a run folder (its last round). Images have 8 bits per channel; `--to npz`
    keeps the exact values.
    """
    refuse_unless_set(source)
    from fedstill.evaluate.export import export_set
    from fedstill.runs.sets import load_set

    stored = load_set(source)
    if out is None:
        name = set_file(source).stem.removesuffix(".safetensors")
        out = Path(f"{stored.metadata.method.rpartition(':')[2]}-{name}{_SUFFIX.get(to, f'-{to}')}")
    written = export_set(stored, to, out)
    files = f"{len(written)} files in {out}" if len(written) > 1 else str(out)
    Console(highlight=False, soft_wrap=True).print(f"{len(stored)} images: {files}", markup=False)
