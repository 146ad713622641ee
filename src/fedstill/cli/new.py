"""``fedstill new``: a working start for a method, a data set or a network."""

import importlib.util
import keyword
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from fedstill.draw.console import Console
from fedstill.errors import RequestError, did_you_mean
from fedstill.files import write_atomically


@dataclass(frozen=True)
class Names:
    """A name as file, class and title: my-method, my_method, MyMethod, My method."""

    name: str

    @staticmethod
    def of(text: str) -> "Names":
        """Refuses what cannot be the name of a module, or is that of another one."""
        name = text.strip().replace("-", "_").lower()
        if not name.isidentifier() or keyword.iskeyword(name):
            raise RequestError(f"new: '{text}' is no name for a module; use letters and _")
        if importlib.util.find_spec(name) is not None:
            raise RequestError(f"new: '{name}' is the name of another module; choose another one")
        return Names(name)

    @property
    def table(self) -> dict[str, str]:
        """What the templates use."""
        words = self.name.split("_")
        title = " ".join(filter(None, words)).capitalize()
        return {"name": self.name, "Class": "".join(w.capitalize() for w in words), "title": title}


# How each kind is used once its files are there.
_USES = {
    "method": "fedstill run $name:$Class",
    "data": "python $name.py",
    "model": "fedstill run feddm --model $name:make",
}


def new_command(
    kind: Annotated[str, typer.Argument(help="method, data or model.")],
    name: Annotated[str, typer.Argument(help="Its name, e.g. my_method.")],
    out: Annotated[Path, typer.Option(help="Folder for the two files.")] = Path(),
) -> None:
    """Write a method, a data set or a network that works, and its test, as a start for your own.

    KIND is method, data or model. NAME.py and test_NAME.py are written to --out, never over
    existing files.
    """
    if kind not in _USES:
        raise RequestError(f"new: no kind '{kind}'{did_you_mean(kind, _USES)}")
    names = Names.of(name).table
    files = {
        out / f"{prefix}{names['name']}.py": resources.files("fedstill.templates")
        .joinpath(f"{prefix}{kind}.py.txt")
        .read_text()
        for prefix in ("", "test_")
    }
    if there := [path for path in files if path.exists()]:
        raise RequestError(f"new: {there[0]} exists already; choose another name, or another --out")
    console = Console(highlight=False, soft_wrap=True)
    for path, text in files.items():
        write_atomically(path, Template(text).substitute(names).encode())
        console.print(f"written: {path}", markup=False)
    there_first = "" if out == Path() else f"cd {out}; "
    console.print(f"test it: {there_first}python -m pytest test_{names['name']}.py", markup=False)
    use = Template(_USES[kind]).substitute(names)
    console.print(f"use it:  {there_first}{use}", markup=False)
