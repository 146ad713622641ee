"""Private runs from request to folder: budgets, ledgers, resuming, workers, the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fedstill
from fedstill.cli import app
from fedstill.engine.local import InProcess
from fedstill.errors import Interrupted, RequestError
from fedstill.methods.fedavg import FedAvg
from fedstill.observe.observer import Observer
from fedstill.privacy.budget import Plan, choices
from fedstill.privacy.ledger import Ledger
from fedstill.testing import TOY_PRIVACY, toy_run

FAST: dict[str, Any] = {"rounds": 3, "workers": 1, "clients": 3, "model": "mlp"}
SMALL = {"model.width": 8, "privacy.sampling_rate": 0.5}


def lines(folder: Path, client: int) -> list[dict[str, Any]]:
    text = (folder / "ledger" / f"client-{client:05d}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_the_published_budget_from_a_real_run(tmp_path: Path) -> None:
    """200 accesses with sigma 1 at q 0.0256, as one round of Fed-GLOSS-DP: epsilon 2.38."""
    result = fedstill.run(
        "feddm",
        out=tmp_path / "run",
        rounds=1,
        workers=1,
        clients=1,
        partition="iid",
        set={
            "model.width": 2,
            "method.iterations": 200,
            "method.release_steps": 1,
            "method.images_per_class": 1,
            "method.server_epochs": 1,
            "privacy.sigma": 1.0,
            "privacy.sampling_rate": 0.0256,
        },
    )
    assert len(lines(tmp_path / "run", 0)) == 200
    assert result.summary.epsilon == pytest.approx(2.384, abs=0.005)
    assert result.metrics[-1].epsilon == result.summary.epsilon
    assert (result.metrics[-1].delta, result.metrics[-1].accountant) == (1e-5, "pld")
    ledger = tmp_path / "run" / "ledger" / "client-00000.jsonl"
    Ledger(ledger, 0.0256, 1.0).reserve(1, 1.0, 14 * 200)  # fifteen such rounds in all
    again = fedstill.run(out=tmp_path / "run", resume=True)
    assert again.summary.epsilon == pytest.approx(9.376, abs=0.005)


def test_epsilon_decides_sigma_and_the_folder_says_so(tmp_path: Path) -> None:
    result = fedstill.run("fedavg", out=tmp_path / "run", epsilon=5.0, set=SMALL, **FAST)
    config = (tmp_path / "run" / "config.toml").read_text()
    assert "epsilon = 5.0" in config
    assert 'weighting = "uniform"' in config  # the private default, on record
    assert 4.9 < (result.summary.epsilon or 0) <= 5.0
    assert result.summary.status == "done"
    assert result.summary.accountant == "pld"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["delta"] == 1e-5
    assert "one record" in summary["privacy"]
    assert [len(lines(tmp_path / "run", c)) for c in range(3)] == [6, 6, 6]
    assert lines(tmp_path / "run", 1)[-1]["round"] == 3


def test_the_run_stops_before_the_budget_is_passed(tmp_path: Path) -> None:
    settings = {**SMALL, "privacy.sigma": 2.0}
    out = tmp_path / "run"
    options = {**FAST, "rounds": 9}
    result = fedstill.run("fedavg", out=out, epsilon=4.0, set=settings, **options)
    assert result.summary.status == "budget spent"
    assert 0 < result.summary.rounds_done < 9
    assert (result.summary.epsilon or 9) <= 4.0
    assert (out / "model.safetensors").exists()
    again = fedstill.run(out=out, resume=True)
    assert again.summary.status == "budget spent"
    assert again.summary.rounds_done == result.summary.rounds_done


class StopIn(Observer):
    def __init__(self, round: int) -> None:
        self.round = round

    def client_done(self, client: int, error: str | None) -> None:
        if self.number == self.round:
            raise KeyboardInterrupt

    def round_started(self, round: int, clients: list[int]) -> None:
        self.number = round


def test_a_resumed_run_remembers_what_was_spent(tmp_path: Path) -> None:
    """A round that is computed again is counted again, and may cost the last one."""
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fedstill.run("fedavg", out=out, epsilon=5.0, set=SMALL, observer=StopIn(2), **FAST)
    assert len(lines(out, 0)) == 4
    result = fedstill.run(out=out, resume=True)
    assert len(lines(out, 0)) == 6
    assert result.summary.status == "budget spent"
    assert result.summary.rounds_done == 2
    # Round 2 was paid for twice, and its line says so.
    assert result.metrics[1].epsilon == result.summary.epsilon
    assert (result.summary.epsilon or 9) <= 5.0


def test_worker_processes_write_the_ledgers_too(tmp_path: Path) -> None:
    settings = {**SMALL, "privacy.sigma": 1.0, "privacy.reproducible": True}
    options = {**FAST, "rounds": 2}
    here = fedstill.run("fedavg", out=tmp_path / "a", set=settings, **options)
    there = fedstill.run("fedavg", out=tmp_path / "b", set=settings, **{**options, "workers": 2})
    for client in range(3):
        assert lines(tmp_path / "a", client) == lines(tmp_path / "b", client)
        assert len(lines(tmp_path / "a", client)) == 4
    for name, value in here.params.items():
        assert torch.equal(value, there.params[name])


def test_reproducible_noise_is_marked_not_private(tmp_path: Path) -> None:
    arguments = ["run", "fedsgd", "--rounds", "1", "--clients", "3", "--model", "mlp"]
    arguments += ["--workers", "1", "--set", "privacy.sigma=1", "--out", str(tmp_path / "run")]
    marked = CliRunner().invoke(app, [*arguments, "--set", "privacy.reproducible=true", "--json"])
    assert marked.exit_code == 0, marked.output
    assert "NOT PRIVATE" in marked.output
    summary = json.loads(marked.output.splitlines()[-1])
    assert summary["privacy"].startswith("NOT PRIVATE")


def test_public_sizes_serve_as_weights(tmp_path: Path) -> None:
    settings = {**SMALL, "privacy.sigma": 1.0, "method.weighting": "records"}
    sizes = {"privacy.public_size": [100, 200, 300]}
    fedstill.run("fedavg", out=tmp_path / "run", set={**settings, **sizes}, **FAST)
    with pytest.raises(RequestError, match="2 numbers for 3 clients"):
        fedstill.run(
            "fedavg", out=tmp_path / "b", set={**settings, "privacy.public_size": [1, 2]}, **FAST
        )


def test_the_planning_command(tmp_path: Path) -> None:
    options = ["privacy", "--rounds", "15", "--accesses", "200", "--q", "0.0256", "--sigma", "1"]
    picture = tmp_path / "plan.svg"
    shown = CliRunner().invoke(app, [*options, "--json", "--out", str(picture)])
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.output.splitlines()[-1])
    assert answer["by_round"][0] == {"round": 1, "epsilon": pytest.approx(2.384, abs=0.005)}
    assert answer["epsilon"] == pytest.approx(9.376, abs=0.005)
    assert answer["accountant"] == "pld"
    older = CliRunner().invoke(app, [*options, "--accountant", "rdp", "--json"])
    assert json.loads(older.output.splitlines()[-1])["epsilon"] == pytest.approx(10.18, abs=0.005)
    assert picture.read_text().startswith("<svg")
    spent = CliRunner().invoke(app, [*options, "--epsilon", "5", "--json"])
    assert 1 <= json.loads(spent.output.splitlines()[-1])["affordable_rounds"] < 15


@pytest.mark.parametrize(
    "options",
    [["--epsilon", "-1"], ["--sigma", "1", "--q", "2"], ["--sigma", "1", "--rounds", "0"]],
)
def test_the_planning_command_refuses_nonsense(options: list[str]) -> None:
    refused = CliRunner().invoke(app, ["privacy", *options])
    assert isinstance(refused.exception, RequestError)


@pytest.mark.slow
def test_sigma_of_a_plan_and_other_choices() -> None:
    plan = Plan(rounds=2, accesses=5, q=0.1, delta=1e-5)
    sigma = plan.sigma(4.0)
    assert 3.99 < plan.epsilon(sigma) <= 4.0
    table = choices(plan, 4.0)
    same = next(c for c in table if (c.q, c.accesses) == (0.1, 10))
    assert same.noise == pytest.approx(1.0, abs=0.02)
    assert {c.q for c in table} == {0.05, 0.1, 0.2}
    assert {c.accesses for c in table} == {2, 10, 40}


class NodesKeepLedgers(InProcess):
    """As on other machines: the clients' own ledgers are not the server's."""

    keeps_ledgers = True


def test_the_server_counts_too_where_nodes_keep_the_ledgers(tmp_path: Path) -> None:
    privacy, method = TOY_PRIVACY, FedAvg(weighting="uniform")
    here = toy_run(method, tmp_path / "here", rounds=1, privacy=privacy)
    toy_run(method, tmp_path / "there", rounds=1, privacy=privacy, engine=NodesKeepLedgers)
    accesses = here.built.plan.accesses if here.built.plan else 0
    # In this process both write into one file: the server's line, and then the client's.
    assert lines(tmp_path / "here", 0)[-1]["total"] == accesses
    there = lines(tmp_path / "there", 0)
    assert (there[0]["count"], there[-1]["total"]) == (accesses, 2 * accesses)
