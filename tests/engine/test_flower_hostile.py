"""Hostile nodes with registered keys on a real deployment, with TLS: the honest ones go on.

One node attacks with its answers, one says that it is the honest client. What comes out has the
same bits as a run in which both only fail.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from fedstill.config.nested import merged, read_toml
from fedstill.engine.base import Answer, Engine, Progress, Work
from fedstill.engine.local import InProcess
from fedstill.execute import execute
from fedstill.federation import Federation
from tests.engine.deployment import TIMEOUT_FACTOR, Deployment

pytestmark = pytest.mark.slow

SETTINGS = [
    *("fedavg", "--clients", "3", "--partition", "iid", "--set", "model.width=4"),
    *("--set", "quorum=0.3", "--set", f"engine.join_timeout={round(45 * TIMEOUT_FACTOR)}"),
]
HONEST, HOSTILE, LIAR = range(3)


def test_hostile_nodes_with_registered_keys_do_no_harm(tmp_path: Path) -> None:
    reasons = {
        "nan": "refused: Update: 'update.",
        "huge": "refused: Update: 'update' has norm",
        "spent": "it says its privacy budget is spent; the run has none",
        "records": "refused: Update: 'records' is",
        "escapes": "",
        "state": "refused: its state's key has 5 bytes, not 32",
    }
    attack(tmp_path, reasons)


def attack(folder: Path, reasons: dict[str, str]) -> None:
    """A round per attack; the hostile client fails with reasons that begin like these."""
    rounds = len(reasons)
    with Deployment(folder, *SETTINGS, "--rounds", str(rounds)) as deployment:
        client = deployment.app / "fedstill_app" / "client.py"
        client.write_text("from tests.engine.hostile import app\n\n__all__ = ['app']\n")
        deployment.register()
        deployment.start_node(HONEST, key=deployment.key(HONEST))
        plan = ",".join(f"{number}-{name}" for number, name in enumerate(reasons, 1))
        deployment.start_node(HOSTILE, f'attacks="{plan}"', key=deployment.key(HOSTILE))
        deployment.start_node(HONEST, name="liar", key=deployment.key(LIAR))
        deployment.connected("node-0", "node-1", "liar")
        code, output = deployment.attempt("deploy", "run", "app", "--out", str(folder / "run"))
        assert code == 0, output
        assert "\x1b" not in output
        assert "\x9b" not in output
        assert [m["clients"] for m in deployment.metrics] == [[HONEST]] * rounds
        for metrics, reason in zip(deployment.metrics, reasons.values(), strict=True):
            assert metrics["failed"][str(HOSTILE)].startswith(reason), metrics
            assert len(metrics["failed"][str(HOSTILE)]) <= 2000
            assert "but its key is that of client 2" in metrics["failed"][str(LIAR)]
        assert deployment.model == without_the_hostile(deployment, folder / "local")


class OnlyTheHonest(Engine):
    """The local engine, on which all clients but the honest one fail."""

    def __init__(self, federation: Federation) -> None:
        self._local = InProcess(federation.built)

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        yield from self._local.exchange([w for w in works if w.client == HONEST], progress)
        yield from (Answer(w.client, error="hostile") for w in works if w.client != HONEST)


def without_the_hostile(deployment: Deployment, out: Path) -> bytes:
    table = merged(read_toml(deployment.app / "experiment.toml"), {"engine": {"name": "local"}})
    result = execute(table, out=out, engine=OnlyTheHonest)
    return (result.folder / "model.safetensors").read_bytes()
