"""``fedstill deploy``: a Flower app for real machines."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli import options
from fedstill.config.early import refuse_early
from fedstill.config.nested import merged, read_toml
from fedstill.config.request import check_types, spelled_out
from fedstill.draw.console import Console
from fedstill.errors import RunError

app = typer.Typer(
    help="Write a Flower app for real machines, and check it before anything starts.",
    no_args_is_help=True,
)

# Modules that need Flower are imported when a command needs them: the extra may not be installed.


@app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the app.")],
    method: Annotated[
        str | None, typer.Argument(help="One of `fedstill list methods`.", show_default="feddm")
    ] = None,
    address: Annotated[
        str, typer.Option(help="HOST:PORT where nodes reach the server.")
    ] = "localhost:8443",
    data: Annotated[
        str | None,
        typer.Option(help="The server's data: its test split, shape and classes are used."),
    ] = None,
    data_dir: options.DataDir = None,
    clients: Annotated[int | None, typer.Option(help="Number of nodes.", show_default="3")] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="nodes: each node has its own records. Others partition --data, for tests.",
            show_default="dirichlet:0.1",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.", show_default="20")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A name of `fedstill list models`.", show_default="convnet-small"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed: same seed, same bits.", show_default="0")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any settings of `fedstill run`.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. quorum=0.8."),
    ] = None,
) -> None:
    """Write a Flower app for an experiment: code, settings, certificates, keys and a README.

    DIR is a new folder for the app; its README has every command for the server and the nodes,
    ready to copy. METHOD is one of `fedstill list methods`.
    """
    from fedstill.engine.flower import require_flower

    require_flower()
    table = read_toml(config) if config is not None else {}
    check_types(table)
    chosen = {
        "method": method,
        "model": model,
        "data.name": data,
        "data.dir": None if data_dir is None else str(data_dir),
        "clients": clients,
        "partition": partition,
        "rounds": rounds,
        "seed": seed,
    }
    request = merged(
        {"method": {"name": "feddm"}, "clients": 3} if config is None else {},
        spelled_out(table),
        spelled_out(options.given(chosen)),
        spelled_out(options.overrides(set_)),
    )
    refuse_early(request)
    from fedstill.config.resolve import resolve
    from fedstill.deploy.app import Address, write_app

    built = write_app(folder, resolve(request), Address.parse(address))
    console = Console(soft_wrap=True, highlight=False)
    nodes = built.partition.clients
    console.print(f"app for {nodes} nodes in {folder}; next: {folder / 'README.md'}", markup=False)


@app.command("check")
def check_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder.")],
    node: Annotated[
        int | None, typer.Option(help="Check as this node (the first is 0), not as the server.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The node's own records, to check that they fit the task.")
    ] = None,
) -> None:
    """Check the certificates, keys and versions, and that a node's data fit the task.

    DIR is the app's folder. Nothing is started. Exit code 1 if anything is wrong.
    """
    from fedstill.engine.flower import require_flower

    require_flower()
    from fedstill.deploy.check import check_app

    findings = check_app(folder, node, data)
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        note = f" ({finding.note})" if finding.note else ""
        status = f"ok{note}" if finding.problem is None else f"WRONG: {finding.problem}"
        console.print(f"{finding.what}: {status}", markup=False)
    wrong = [finding for finding in findings if finding.problem is not None]
    if wrong:
        raise RunError(f"{folder}: {len(wrong)} of {len(findings)} checks failed")


@app.command("key")
def key_command(
    path: Annotated[
        Path, typer.Argument(help="File for the private key; the public key is PATH.pub.")
    ],
) -> None:
    """Make a node's key. Run it on the node: only PATH.pub has to leave it.

    PATH is the file for the private key; the public key is PATH.pub.
    """
    from fedstill.engine.flower import require_flower

    require_flower()
    from fedstill.deploy.keys import make_node_key

    make_node_key(path)
    Console(soft_wrap=True, highlight=False).print(
        f"keep {path} secret; copy {path}.pub to the server", markup=False
    )


@app.command("register")
def register_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder.")],
    node: Annotated[
        list[int] | None,
        typer.Option(help="Only this node (the first is 0); may be repeated.", show_default="all"),
    ] = None,
) -> None:
    """Register the nodes' keys at the SuperLink, and bind each to its client.

    DIR is the app's folder. Reads DIR/keys/node-K.pub and writes DIR/nodes.toml: client K is then
    accepted from the node with that key alone. It can be repeated: keys that are registered stay,
    and the old key of a client with a new one is admitted no longer.
    """
    from fedstill.engine.flower import require_flower

    require_flower()
    from fedstill.deploy.register import register_nodes

    console = Console(soft_wrap=True, highlight=False)
    for done in register_nodes(folder, node or None):
        status = "registered" if done.new else "was registered already"
        gone = f"; node {done.replaced} is admitted no longer" if done.replaced else ""
        console.print(f"client {done.client}: node {done.node}, {status}{gone}", markup=False)


@app.command("run")
def run_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder.")],
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder on the server.",
            show_default="runs/experiment where the SuperLink was started",
        ),
    ] = None,
) -> None:
    """Start a run on the SuperLink, show its log, and end as it ends.

    DIR is the app's folder. Exit code 0: done; 1: the run failed; 2: the request is wrong; 130:
    stopped, or this command was interrupted (the run itself continues).
    """
    from fedstill.engine.flower import require_flower

    require_flower()
    from fedstill.deploy.start import run_app

    def show(text: str) -> None:
        typer.echo(text, nl=False)

    run_app(folder, resume=resume, out=out, show=show)
