"""``fedstill deploy init``: the files of a Flower app, with certificates and keys."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from fedstill.build import BuiltExperiment, build
from fedstill.build.codecs import refuse_codecs_of_images
from fedstill.config import Experiment
from fedstill.config.nested import Table
from fedstill.deploy.keys import make_certificates, make_node_key
from fedstill.deploy.link import LINK
from fedstill.deploy.nodes import NODES, write_nodes
from fedstill.deploy.readme import readme
from fedstill.deploy.services import superlink_service, supernode_service
from fedstill.engine.flower import require_flower
from fedstill.engine.flower.description import describe
from fedstill.engine.flower.environment import QUIET
from fedstill.errors import RequestError
from fedstill.version import VERSION

FLOWER = "flwr>=1.41,<1.43"
_ROUND_TIMEOUT = 3600.0
_CA = Path("certificates") / "ca.crt"

_CLIENT = '''"""What a node runs. It serves every method: the message says which."""

from fedstill.engine.flower.client_app import app

__all__ = ["app"]
'''

_SERVER = '''"""What the server runs: the experiment next to this package."""

from pathlib import Path

from fedstill.deploy.server_app import server_app

app = server_app(Path(__file__).parent.parent / "experiment.toml")
'''

_IGNORE = "certificates/\nkeys/\nflower/\nruns/\n*.db\n"


@dataclass(frozen=True)
class Address:
    """Where nodes reach the SuperLink."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """HOST:PORT."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise RequestError(f"--address {text}: write it as HOST:PORT, e.g. fl.example.org:8443")
        return cls(host.strip("[]"), int(port))


def write_app(folder: Path, experiment: Experiment, address: Address) -> BuiltExperiment:
    """Write the app, its certificates and a key per node; the experiment that was built."""
    require_flower()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder}: is not empty; choose a new folder")
    experiment = for_flower(experiment)
    built = build(experiment.table)
    # Builds the task: a wrong setting is refused before any file is written.
    description = describe(built)
    refuse_codecs_of_images(built)
    nodes = built.partition.clients
    package = folder / "fedstill_app"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""fedstill as a Flower app."""\n')
    (package / "client.py").write_text(_CLIENT)
    (package / "server.py").write_text(_SERVER)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(_project()))
    (folder / "experiment.toml").write_text(tomli_w.dumps(experiment.table))
    (folder / "task.json").write_text(description.text + "\n")
    (folder / ".gitignore").write_text(_IGNORE)
    exports = (f"export {key}={shlex.quote(value)}\n" for key, value in QUIET.items())
    (folder / "environment.sh").write_text(
        "# No telemetry, nothing is installed at run time. Source it before every command.\n"
        + "".join(exports)
    )
    link = {"address": str(address), "root-certificates": str((folder / _CA).resolve())}
    (folder / "flower").mkdir()
    (folder / "flower" / "config.toml").write_text(tomli_w.dumps({"superlink": {LINK: link}}))
    make_certificates(folder / "certificates", address.host)
    for number in range(nodes):
        make_node_key(folder / "keys" / f"node-{number}")
    write_nodes(folder, {})
    services = folder / "services"
    services.mkdir()
    (services / "fedstill-superlink.service").write_text(superlink_service(folder, address.port))
    (services / "fedstill-supernode@.service").write_text(
        supernode_service(str(address), own_data=experiment.partition == "nodes")
    )
    (folder / "README.md").write_text(readme(experiment, address.host, address.port, nodes))
    return built


def for_flower(experiment: Experiment) -> Experiment:
    """The experiment for real machines: a timeout keeps a hung node from blocking a round."""
    engine = dataclasses.replace(
        experiment.engine,
        name="flower",
        workers=None,  # depends on the machine
        round_timeout=experiment.engine.round_timeout or _ROUND_TIMEOUT,
    )
    return dataclasses.replace(experiment, engine=engine)


def _project() -> Table:
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "fedstill-app",
            "version": "1.0.0",
            "description": "A federated experiment by fedstill.",
            "license": "Apache-2.0",
            "dependencies": [f"fedstill=={VERSION}", FLOWER],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["fedstill_app"]}}}},
            "flwr": {
                "app": {
                    "publisher": "fedstill",
                    # All that is sent to the nodes. Secrets and results stay on the server.
                    "fab-include": ["fedstill_app/*.py", "experiment.toml", "task.json", NODES],
                    "components": {
                        "serverapp": "fedstill_app.server:app",
                        "clientapp": "fedstill_app.client:app",
                    },
                    "config": {"out": "runs/experiment", "resume": False},
                }
            },
        },
    }
