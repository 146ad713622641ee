"""A private run that was interrupted in its only round, and resumed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedstill
from fedstill.cli import app
from fedstill.errors import Interrupted
from fedstill.observe.observer import Observer


class Interrupting(Observer):
    """Ctrl-C when the first client has answered: its access is in the ledger, the round is not."""

    def client_done(self, client: int, error: str | None) -> None:
        raise KeyboardInterrupt


def test_a_budget_that_the_interrupted_round_used_up_leaves_no_round(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fedstill.run(
            "fedsgd", rounds=1, clients=3, epsilon=1.0, workers=1, out=out, observer=Interrupting()
        )
    done = CliRunner().invoke(app, ["run", "--resume", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert "the privacy budget is spent" in done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["status"] == "budget spent"
    assert summary["rounds_done"] == 0
    assert 0 < summary["epsilon"] <= 1.0
    assert (out / "model.safetensors").exists()
