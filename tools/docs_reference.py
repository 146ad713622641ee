"""Pages of the documentation that are written from the code itself, when the site is built.

``settings.md`` has every setting of every method, network and section, with the comments that stand
beside them in the source; ``commands.md`` every option of every command.
"""

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from fedstill.cli import app
from fedstill.config.experiment import EngineSettings, Experiment, FaultSettings, WireSettings
from fedstill.data import CorruptSettings, DataSettings
from fedstill.defence.settings import DefenceSettings
from fedstill.methods import METHODS, describe_method
from fedstill.models import MODELS
from fedstill.privacy.settings import PrivacySettings

SECTIONS: Mapping[str, type[Any]] = {
    "data": DataSettings,
    "wire": WireSettings,
    "engine": EngineSettings,
    "privacy": PrivacySettings,
    "defence": DefenceSettings,
    "corrupt": CorruptSettings,
    "faults": FaultSettings,
}
EXIT_CODES = {
    0: "done",
    1: "the run failed, an audit refuted a claim, or a cell of a table failed",
    2: "the request is wrong: one line names the key and the remedy",
    130: "interrupted (Ctrl-C): resumable",
}


def own_comments(cls: type[Any]) -> dict[str, str]:
    """The comment of each field that this class itself declares.

    The comment is the one on the lines of the field, or the block just above it.
    """
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    code = {n for n, line in enumerate(source.splitlines(), 1) if not line.strip().startswith("#")}
    body = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)).body
    found: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in comments]
            above = node.lineno - 1
            block: list[int] = []
            while above in comments and above not in code:
                block.insert(0, above)
                above -= 1
            text = " ".join(comments[n] for n in (*block, *lines))
            found[node.target.id] = text
    return found


def comments_of(cls: type[Any]) -> dict[str, str]:
    """The same with all that it inherits."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= own_comments(base)
    return found


def cell(text: Any) -> str:
    """Text for a cell of a table; ``code`` as in docstrings becomes `code`."""
    return " ".join(str(text).split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")


def _toml(value: Any) -> str:
    """A value as TOML and ``--set`` write it."""
    return str(value).lower() if isinstance(value, bool) else cell(value)


def default_of(field: "dataclasses.Field[Any]") -> str:
    """The default of a field, as text."""
    if field.default is not dataclasses.MISSING:
        return "" if field.default is None else f"`{_toml(field.default)}`"
    return "" if field.default_factory is dataclasses.MISSING else "a section of its own"


_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def type_text(kind: Any) -> str:
    """A type in words: ``Annotated[int, Meta(ge=1)] | None`` is "int ≥ 1, or nothing"."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [(sign, getattr(inside[1], key, None)) for key, sign in _BOUNDS.items()]
        bounds = ", ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        return f"{type_text(inside[0])} {bounds}".strip()
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inside)
    if origin in (Union, UnionType):
        return ", or ".join(map(type_text, inside))
    if origin is tuple:
        return f"several of: {type_text(inside[0])}"
    names = {type(None): "nothing", str: "text", bool: "true, false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def rows(
    cls: type[Any],
    prefix: str,
    defaults: Mapping[str, Any],
    private: Mapping[str, Any],
    without: Sequence[str] = (),
) -> Iterator[str]:
    """A table of the settings of a class."""
    known, kinds = comments_of(cls), get_type_hints(cls, include_extras=True)
    yield "| setting | values | default | |"
    yield "|---|---|---|---|"
    for field in dataclasses.fields(cls):
        if field.name in without:
            continue
        known_default = defaults.get(field.name)
        usual = default_of(field) if known_default is None else f"`{_toml(known_default)}`"
        if field.name in private:
            usual += f" (private: `{_toml(private[field.name])}`)"
        values, comment = cell(type_text(kinds[field.name])), cell(known.get(field.name, ""))
        yield f"| `{prefix}{field.name}` | {values} | {usual} | {comment} |"


def settings_page() -> Iterator[str]:
    """The lines of the page about settings."""
    yield "# Settings"
    yield ""
    yield (
        "Every setting, from the code itself. Set one with `--set KEY=VALUE` on the command line, "
        "`set={...}` in Python, or in a TOML file (`--config`). What the settings of a method do "
        "is explained in [Methods](../methods.md)."
    )
    yield "\n## The experiment\n"
    yield from rows(Experiment, "", {}, {}, (*SECTIONS, "method", "model"))
    for name, cls in SECTIONS.items():
        yield f"\n## `[{name}]`\n"
        yield cell((inspect.getdoc(cls) or "").replace("\n", " "))
        yield ""
        yield from rows(cls, f"{name}.", {}, {})
    yield "\n## Methods\n"
    for name, method in METHODS.items():
        yield f"\n### `{name}`\n"
        yield describe_method(method)
        yield ""
        if method.__dataclass_fields__:  # type: ignore[attr-defined]
            yield from rows(method, "method.", {}, method.PRIVATE_DEFAULTS)
        else:
            yield "It has no settings."
    yield "\n## Networks\n"
    for name, entry in MODELS.items():
        yield f"\n### `{name}`\n"
        yield f"{entry.description[0].upper()}{entry.description[1:]}."
        yield ""
        yield from rows(entry.cls, "model.", entry.settings, {}, ("shape", "classes"))


def commands_page() -> Iterator[str]:
    """The lines of the page about commands."""
    yield "# Commands and exit codes"
    yield ""
    yield "From the code itself; `fedstill COMMAND --help` prints the same."
    yield "\n## Exit codes\n"
    yield "| code | meaning |"
    yield "|---|---|"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"
    yield from _command(typer.main.get_command(app), "fedstill")


def _command(command: click.Command, name: str) -> Iterator[str]:
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        context = click.Context(command, info_name=name)
        yield f"\n## `{name}`\n"
        yield f"    {' '.join([name, *command.collect_usage_pieces(context)])}\n"
        yield inspect.cleandoc(command.help or "")
        options = [p for p in command.params if getattr(p, "opts", [""])[0].startswith("-")]
        if options:
            yield "\n| option | | default |"
            yield "|---|---|---|"
        for option in options:
            words = ", ".join(f"`{word}`" for word in option.opts)
            yield f"| {words} | {cell(getattr(option, 'help', '') or '')} | {_shown(option)} |"
    for word, inner in subcommands.items():
        yield from _command(inner, f"{name} {word}")


def _shown(option: click.Parameter) -> str:
    said = getattr(option, "show_default", None)
    if isinstance(said, str):
        return cell(said)
    usual = option.default
    return "" if usual in (None, False) or callable(usual) or said is False else f"`{cell(usual)}`"


PAGES = {"reference/settings.md": settings_page, "reference/commands.md": commands_page}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls it when it has read the documents: the pages are added to them."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content="\n".join(page()) + "\n"))
    return files
