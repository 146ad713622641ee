"""Service files for systemd: both programs come back by themselves, and may do little else.

Flower takes a SuperNode that was killed for alive until it has missed two heartbeats (60 seconds),
and refuses the same key until then: the new process ends with Flower's exit code 305. So it is
started again every 15 seconds, without a limit, and is back after 75 seconds at the latest.
"""

import sys
from pathlib import Path

from fedstill.engine.flower.environment import QUIET

_UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=fedstill
WorkingDirectory={folder}
{environment}
ExecStart={command}
Restart=always
RestartSec={pause}
KillMode=control-group
MemoryMax=75%
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices={private_devices}
UMask=0077
{writable}

[Install]
WantedBy=multi-user.target
"""

_NODE_PLACE = Path("/srv/fedstill")  # where the node's own files are: edit it on the node


def superlink_service(folder: Path, port: int) -> str:
    """The SuperLink with this app, on the machine where the app was made."""
    folder, programs = folder.resolve(), Path(sys.executable).parent
    return _unit(
        description="Flower SuperLink of a fedstill app",
        folder=folder,
        home=folder / "flower",
        words=[
            f'"{_escaped(programs)}/flower-superlink" --host 0.0.0.0 --port {port}',
            "--database superlink.db --ssl-ca-certfile certificates/ca.crt",
            "--ssl-certfile certificates/server.crt --ssl-keyfile certificates/server.key",
            "--enable-supernode-auth --disable-runtime-dependency-installation",
        ],
        pause=5,
        writable=f'ReadWritePaths="{_escaped(folder)}"',
        private_devices=True,
    )


def supernode_service(address: str, *, own_data: bool) -> str:
    """The SuperNode of client ``%i``: a template, to be edited on the node."""
    data = ' data="/srv/records"' if own_data else ""
    return _unit(
        description="Flower SuperNode of fedstill's client %i",
        folder=_NODE_PLACE / "app",
        home=Path("/var/lib/fedstill/flower"),
        words=[
            f"{_NODE_PLACE}/venv/bin/flower-supernode --superlink {address}",
            "--root-certificates certificates/ca.crt",
            "--auth-supernode-private-key keys/node-%i",
            f"--node-config 'partition-id=%i folder=\"/var/lib/fedstill\"{data}'",
        ],
        pause=15,
        writable="StateDirectory=fedstill",
        private_devices=False,  # it may need a GPU
    )


def _unit(
    *,
    description: str,
    folder: Path,
    home: Path,
    words: list[str],
    pause: int,
    writable: str,
    private_devices: bool,
) -> str:
    environment = {"FLWR_HOME": _escaped(home), **QUIET}
    return _UNIT.format(
        description=description,
        folder=_escaped(folder),
        environment="\n".join(f'Environment="{key}={value}"' for key, value in environment.items()),
        command=" \\\n    ".join(words),
        pause=pause,
        writable=writable,
        private_devices="yes" if private_devices else "no",
    )


def _escaped(path: Path) -> str:
    """In a service file ``%`` begins a placeholder."""
    return str(path).replace("%", "%%")
