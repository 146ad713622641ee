"""Whole runs through ``fedstill.run``: the folder, resuming, failing, user-supplied objects."""

import errno
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill.errors import Interrupted, RequestError, RunError
from fedstill.files import write_atomically
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.shared.messages import Update, Weights
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.runs.metrics import RoundMetrics
from fedstill.types import ClientContext
from fedstill.wire import tree

FAST: dict[str, Any] = {"rounds": 3, "workers": 1, "clients": 4, "model": "mlp"}


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


class StopAfter(Observer):
    """Raises at the end of a round, as a signal or a bug would."""

    def __init__(self, round: int, error: BaseException) -> None:
        self.round, self.error = round, error

    def round_done(self, metrics: RoundMetrics) -> None:
        if metrics.round == self.round:
            raise self.error


def test_the_run_folder_is_as_documented(tmp_path: Path) -> None:
    result = fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    folder = tmp_path / "run"
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["method"] == {
        "name": "fedavg",
        "local_epochs": 1,
        "batch_size": 32,
        "learning_rate": 0.05,
        "decay": "none",
        "momentum": 0.0,
        "optimiser": "sgd",
        "weight_decay": 0.0,
        "weighting": "records",
        "aggregate": "mean",
        "trim": 0.1,
        "byzantine": 1,
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    keys = {"accuracy", "loss", "up_bytes", "down_bytes", "seconds", "epsilon", "clients"}
    assert keys <= set(lines[0])
    assert lines[0]["clients"] == [0, 1, 2, 3]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["rounds_done"] == 3
    assert summary["up_bytes"] == sum(line["up_bytes"] for line in lines)
    assert summary["accuracy"] == lines[-1]["accuracy"]
    assert summary["best_accuracy"] == max(line["accuracy"] for line in lines)
    weights, header = tree.unpack(model_bytes(folder))
    assert header["method"] == "fedavg"
    assert sum(w.numel() for w in weights.values()) == summary["model_size"] == result.model.size
    assert all(torch.equal(weights[k], result.params[k]) for k in weights)
    assert result.summary.accuracy == summary["accuracy"]
    assert len(result.metrics) == 3


def test_a_run_says_what_it_chose(tmp_path: Path) -> None:
    notes: list[str] = []

    class Notes(Observer):
        def note(self, text: str) -> None:
            notes.append(text)

    small = {"method.images_per_class": 1, "method.server_steps": 1, "model.width": 2}
    options = {**FAST, "rounds": 1, "observer": Notes()}
    result = fedstill.run("real", out=tmp_path / "real", set=small, **options)
    chosen = "wire.up = bits8+zstd, method.server_augment = auto: none"
    assert notes == [chosen]
    config = (tmp_path / "real" / "config.toml").read_text()
    assert 'up = "bits8+zstd"' in config
    exact = {**small, "wire.up": "float32"}
    same = fedstill.run("real", out=tmp_path / "exact", set=exact, **options)
    assert (tmp_path / "real" / "model.safetensors").read_bytes() == (
        tmp_path / "exact" / "model.safetensors"
    ).read_bytes()
    assert result.summary.up_bytes < 0.5 * same.summary.up_bytes
    notes.clear()
    fedstill.run("fedavg", out=tmp_path / "fedavg", set={"model.width": 2}, **options)
    assert not notes
    assert 'up = "float32"' in (tmp_path / "fedavg" / "config.toml").read_text()


def test_bytes_are_those_of_the_messages(tmp_path: Path) -> None:
    sent: list[int] = []

    @dataclass(frozen=True)
    class Spy(FedAvg):
        def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
            up, _ = super().client(ctx, message, state)
            from fedstill import wire

            sent.append(len(wire.encode(up, self.upload(ctx.task), "float16")))
            return up, None

    options = {**FAST, "rounds": 1}
    result = fedstill.run(Spy(), out=tmp_path / "run", set={"wire.up": "float16"}, **options)
    assert result.metrics[0].up_bytes == sum(sent)
    size = result.model.size
    assert 2 * size * 4 < result.metrics[0].up_bytes < 2 * size * 4 + 4 * 2000
    assert 4 * size * 4 < result.metrics[0].down_bytes < 4 * size * 4 + 4 * 2000


def test_central_sends_nothing(tmp_path: Path) -> None:
    result = fedstill.run("central", out=tmp_path / "run", **FAST)
    assert result.summary.up_bytes == result.summary.down_bytes == 0
    assert result.summary.clients == 1


def test_default_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {**FAST, "rounds": 1}
    names = [fedstill.run("fedavg", **options).folder.name for _ in range(2)]
    assert names == ["fedavg-digits-001", "fedavg-digits-002"]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_interrupted_and_resumed_is_uninterrupted(tmp_path: Path, method: str) -> None:
    whole = fedstill.run(method, out=tmp_path / "whole", participation=0.5, **FAST)
    with pytest.raises(Interrupted, match=r"resume with: fedstill run --resume --out"):
        fedstill.run(
            method,
            out=tmp_path / "parts",
            participation=0.5,
            observer=StopAfter(2, KeyboardInterrupt()),
            **FAST,
        )
    assert RunFolder(tmp_path / "parts").read_summary().status == "interrupted"
    resumed = fedstill.run(out=tmp_path / "parts", resume=True)  # the folder knows the rest
    assert resumed.summary.status == "done"
    assert model_bytes(whole.folder) == model_bytes(resumed.folder)
    assert [m.accuracy for m in whole.metrics] == [m.accuracy for m in resumed.metrics]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    before = model_bytes(first.folder)
    again = fedstill.run("fedavg", out=tmp_path / "run", resume=True)
    assert model_bytes(again.folder) == before
    assert again.summary.rounds_done == 3


def test_a_damaged_checkpoint_costs_a_round_and_no_bit(tmp_path: Path) -> None:
    whole = fedstill.run("scaffold", out=tmp_path / "whole", **FAST)
    with pytest.raises(Interrupted):
        fedstill.run(
            "scaffold", out=tmp_path / "parts", observer=StopAfter(2, KeyboardInterrupt()), **FAST
        )
    damaged = tmp_path / "parts" / "checkpoint" / "server-0002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    notes: list[str] = []

    class Listener(Observer):
        def note(self, text: str) -> None:
            notes.append(text)

    resumed = fedstill.run(out=tmp_path / "parts", resume=True, observer=Listener())
    assert model_bytes(whole.folder) == model_bytes(resumed.folder)
    assert [m.round for m in resumed.metrics] == [1, 2, 3]
    assert notes == ["the checkpoint of round 2 is damaged: resuming after round 1"]


def test_a_full_disk_stops_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedstill.run("fedavg", out=tmp_path / "whole", **FAST)

    def full(path: Path, data: bytes) -> None:
        if path.name.startswith("server-0002"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_atomically(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("fedstill.runs.checkpoint.write_atomically", full)
        with pytest.raises(
            RunError,
            match=r"No space left on device .*free some disk space, then resume with: fedstill",
        ):
            fedstill.run("fedavg", out=tmp_path / "parts", **FAST)
    assert RunFolder(tmp_path / "parts").read_summary().status == "failed"
    resumed = fedstill.run(out=tmp_path / "parts", resume=True)
    assert model_bytes(whole.folder) == model_bytes(resumed.folder)


def test_a_bug_leaves_its_traceback_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"ValueError: oops \(traceback in .*errors\.log\)"):
        fedstill.run(
            "fedavg", out=tmp_path / "run", observer=StopAfter(1, ValueError("oops")), **FAST
        )
    assert "round_done" in (tmp_path / "run" / "errors.log").read_text()


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"seed": 1}, "seed"),
        ({"rounds": 2}, "rounds"),
        ({"set": {"method.learning_rate": 0.1}}, "method.learning_rate"),
        ({"method": "fedprox"}, "method.mu, method.name"),
    ],
)
def test_resuming_another_experiment_is_refused(
    tmp_path: Path, change: dict[str, Any], keys: str
) -> None:
    fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    with pytest.raises(RequestError, match=f"begun with other settings: {keys}"):
        fedstill.run(out=tmp_path / "run", resume=True, **change)


def test_resuming_a_run_whose_settings_were_edited_is_refused(tmp_path: Path) -> None:
    fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("learning_rate = 0.05", "learning_rate = 0.5"))
    with pytest.raises(RequestError, match=r"config\.toml, the scaling or the network are not"):
        fedstill.run(out=tmp_path / "run", resume=True)


def test_resuming_with_other_scaling_or_another_network_is_refused(tmp_path: Path) -> None:
    x, y = np.zeros((20, 1, 6, 6), dtype=np.uint8), np.arange(20) % 2

    def go(mean: float, activation: nn.Module, resume: bool = False) -> None:
        network = nn.Sequential(nn.Flatten(), activation, nn.Linear(36, 2))
        data = fedstill.arrays(x, y, x, y, mean=(mean,), std=(1.0,))
        options: dict[str, Any] = {"rounds": 1, "clients": 2, "partition": "iid"}
        out = tmp_path / "run"
        fedstill.run("fedavg", data=data, model=network, resume=resume, out=out, **options)

    go(0.5, nn.ReLU())
    go(0.5, nn.ReLU(), resume=True)
    for mean, activation in ((0.4, nn.ReLU()), (0.5, nn.Tanh())):
        with pytest.raises(RequestError, match="the scaling or the network"):
            go(mean, activation, resume=True)
    # A refused resume lets go of the folder.
    go(0.5, nn.ReLU(), resume=True)


def test_resuming_with_another_kernel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    with monkeypatch.context() as patch:
        patch.setattr("fedstill.runs.provenance.in_use", lambda: True)
        with pytest.raises(RequestError, match="begun with FEDSTILL_NATIVE=off"):
            fedstill.run(out=tmp_path / "run", resume=True, rounds=9)
    assert RunFolder(tmp_path / "run").read_config()["rounds"] == FAST["rounds"]  # not extended
    assert fedstill.run(out=tmp_path / "run", resume=True).summary.status == "done"


def test_a_run_is_resumed_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (30, 1, 6, 6), dtype=np.uint8), np.arange(30) % 3
    (tmp_path / "here").mkdir()
    np.savez(tmp_path / "here" / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.chdir(tmp_path / "here")
    fedstill.run("fedavg", data="./mine.npz", out=tmp_path / "run", **FAST)
    monkeypatch.chdir(tmp_path)
    assert fedstill.run(out=tmp_path / "run", resume=True).summary.status == "done"


def test_other_workers_are_not_another_experiment(tmp_path: Path) -> None:
    fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    assert fedstill.run(out=tmp_path / "run", resume=True, workers=2).summary.status == "done"


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    with pytest.raises(RequestError, match="holds another run; resume it with --resume"):
        fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    with pytest.raises(RequestError, match="not an empty folder"):
        fedstill.run("fedavg", out=tmp_path, **FAST)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="not an empty folder"):
        fedstill.run("fedavg", out=tmp_path / "file", **FAST)
    with pytest.raises(RequestError, match="Not a directory; name another one"):
        fedstill.run("fedavg", out=tmp_path / "file" / "run", **FAST)
    with pytest.raises(RequestError, match="there is no run in"):
        fedstill.run("fedavg", out=tmp_path / "new", resume=True)
    with pytest.raises(RequestError, match="name the run's folder with --out"):
        fedstill.run("fedavg", resume=True)


def test_a_folder_serves_one_process_at_a_time(tmp_path: Path) -> None:
    fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    holder = RunFolder(tmp_path / "run")
    holder._acquire()
    with pytest.raises(RequestError, match="another process is working on this run"):
        fedstill.run(out=tmp_path / "run", resume=True)
    holder.close()


class UserNetwork(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(int(np.prod(shape)), width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def user_arrays() -> fedstill.Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (60, 1, 6, 6), dtype=np.uint8)
    y = np.arange(60) % 3
    return fedstill.arrays(x, y, x[:12], y[:12], name="mine")


def test_user_supplied_data_model_and_method_objects(tmp_path: Path) -> None:
    result = fedstill.run(
        FedAvg(local_epochs=2),
        data=user_arrays(),
        model=UserNetwork((1, 6, 6), 3),
        clients=2,
        partition="iid",
        rounds=2,
        out=tmp_path / "run",
    )
    assert result.summary.data == "mine"
    assert result.summary.model.endswith(":UserNetwork")
    assert result.model.size == 36 * 16 + 16 + 16 * 3 + 3


def test_user_supplied_names_run_in_worker_processes_too(tmp_path: Path) -> None:
    """User-supplied classes by name, and data in memory, with one process or two: equal bits."""
    results = [
        fedstill.run(
            "fedstill.methods.fedprox:FedProx",
            data=user_arrays(),
            model="tests.test_run:UserNetwork",
            clients=3,
            partition="iid",
            rounds=2,
            workers=workers,
            out=tmp_path / f"run{workers}",
            set={"model.width": 8},
        )
        for workers in (1, 2)
    ]
    assert model_bytes(results[0].folder) == model_bytes(results[1].folder)


class Unseeded(nn.Module):
    """Draws its parameter and buffer when it is made."""

    noise: Tensor

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(int(np.prod(shape))))
        self.register_buffer("noise", torch.randn(int(np.prod(shape))))
        self.linear = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x.flatten(1) + self.shift + self.noise)
        return result


def test_a_network_that_draws_its_weights_is_the_same_everywhere(tmp_path: Path) -> None:
    models = set()
    for number, workers in enumerate((1, 1, 2)):
        torch.rand(number)  # whatever was drawn before
        result = fedstill.run(
            "fedavg",
            out=tmp_path / str(number),
            **{**FAST, "model": "tests.test_run:Unseeded", "workers": workers},
        )
        models.add(model_bytes(result.folder))
    assert len(models) == 1


def test_objects_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    for change, message in (
        ({"data": ([1], [2])}, r"data, train: inputs of shape \(1,\) and labels of shape"),
        ({"data": 3}, "data, train: a int is none of: a name, a path"),
        ({"data": tmp_path / "nowhere"}, "no such file or folder"),
        ({"model": UserNetwork}, "model: expected a name, a Model or an nn.Module"),
        ({"method": FedAvg}, r"method: give an object, FedAvg\(...\), or a name"),
    ):
        options: dict[str, Any] = {"method": "fedavg", **FAST, **change}
        with pytest.raises(RequestError, match=message):
            fedstill.run(out=tmp_path / "run", **options)


def test_a_wrong_value_in_a_file_is_refused_even_if_an_option_wins(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('rounds = "3"')
    with pytest.raises(RequestError, match="rounds: expected int, got str"):
        fedstill.run("fedavg", config=tmp_path / "bad.toml", out=tmp_path / "run", **FAST)


def broken_network(shape: tuple[int, ...], classes: int) -> None:
    raise ZeroDivisionError("nothing there")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "tests.test_run:broken_network"}, "ZeroDivisionError: nothing there"),
        ({"model": "builtins:dict"}, "model: builtins:dict"),
        ({"method": ":X"}, "method: cannot import ''"),
        ({"method": ".foo:X"}, "method: cannot import '.foo'"),
        ({"method": "no.such.module:Thing"}, "method: cannot import 'no.such.module'"),
        ({"method": "fedstill.methods.fedavg:Nothing"}, "has no 'Nothing'"),
        ({"method": "fedstill.rng:Rng"}, "is not a method: derive it from fedstill.types.Method"),
        ({"model": "fedstill.rng:Rng"}, "model: fedstill.rng:Rng returned Rng, not a network"),
        ({"model": "fedstill.version:VERSION"}, "model"),
        ({"clients": 5000}, "5000"),
        ({"data": "digts"}, "did you mean 'digits'"),
        ({"partition": "natural"}, "client_column"),
    ],
)
def test_wrong_options_leave_no_folder(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    options = {"method": "fedavg", **FAST, **change}
    with pytest.raises(RequestError) as caught:
        fedstill.run(out=tmp_path / "run", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class Fragile(FedAvg):
    """Client 1 fails in round 2."""

    how: str = "error"

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
        up, _ = super().client(ctx, message, state)
        if ctx.client == 1 and ctx.round == 2:
            if self.how == "error":
                raise ZeroDivisionError("one by nothing")
            broken = {k: v * torch.nan for k, v in up.update.items()}
            return Update(broken, up.records), None
        return up, None


@pytest.mark.parametrize(("how", "reason"), [("error", "ZeroDivisionError"), ("nan", "holds NaN")])
def test_the_round_continues_without_a_failed_client_if_the_quorum_allows(
    tmp_path: Path, how: str, reason: str
) -> None:
    result = fedstill.run(Fragile(how=how), out=tmp_path / "run", set={"quorum": 0.5}, **FAST)
    second = result.metrics[1]
    assert second.clients == [0, 2, 3]
    assert reason in second.failed[1]
    assert result.metrics[2].clients == [0, 1, 2, 3]
    with pytest.raises(
        RunError, match=f"3 of 4 clients answered, the quorum is 4; client 1: .*{reason}"
    ):
        fedstill.run(Fragile(how=how), out=tmp_path / "strict", **FAST)
    log = tmp_path / "strict" / "errors.log"
    assert log.exists() == (how == "error")


def test_divergence_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="did the training diverge"):
        fedstill.run("fedavg", out=tmp_path / "run", set={"method.learning_rate": 1e30}, **FAST)


def test_evaluation_every_second_round(tmp_path: Path) -> None:
    result = fedstill.run("fedavg", out=tmp_path / "run", set={"eval_every": 2}, **FAST)
    assert [m.accuracy is None for m in result.metrics] == [True, False, False]


def test_participation_samples_clients_in_every_round(tmp_path: Path) -> None:
    options = {**FAST, "rounds": 6, "clients": 10}
    result = fedstill.run("fedavg", out=tmp_path / "run", participation=0.3, **options)
    sampled = [tuple(m.clients) for m in result.metrics]
    assert all(len(clients) == 3 for clients in sampled)
    assert len(set(sampled)) > 1


def test_clients_without_records_are_never_sampled(tmp_path: Path) -> None:
    result = fedstill.run(
        "fedavg",
        out=tmp_path / "run",
        partition="dirichlet:0.001",
        set={"allow_empty_clients": True},
        **{**FAST, "clients": 40},
    )
    sampled = {client for m in result.metrics for client in m.clients}
    assert 0 < len(sampled) < 40


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_two_workers_give_the_bits_of_one(tmp_path: Path, method: str) -> None:
    options = {**FAST, "model": "convnet-small"}
    one = fedstill.run(method, out=tmp_path / "one", **options)
    two = fedstill.run(method, out=tmp_path / "two", **{**options, "workers": 2})
    assert model_bytes(one.folder) == model_bytes(two.folder)
    assert [m.up_bytes for m in one.metrics] == [m.up_bytes for m in two.metrics]


def test_a_run_from_a_config_file(tmp_path: Path) -> None:
    path = tmp_path / "winner.toml"
    path.write_text(
        'rounds = 1\nclients = 3\n[model]\nname = "mlp"\nwidth = 9\n[method]\nmomentum = 0.5\n'
    )
    result = fedstill.run("fedavg", config=path, workers=1, out=tmp_path / "run")
    config = RunFolder(result.folder).read_config()
    assert config["method"]["momentum"] == 0.5
    assert config["model"]["width"] == 9
    assert result.summary.clients == 3


def test_a_run_in_half_precision_learns_and_repeats(tmp_path: Path) -> None:
    def params(name: str, precision: str) -> dict[str, torch.Tensor]:
        result = fedstill.run(
            "fedavg",
            rounds=2,
            clients=2,
            workers=1,
            out=tmp_path / name,
            partition="iid",
            set={"precision": precision, "method.learning_rate": 0.2},
        )
        assert (result.summary.accuracy or 0) > 0.5
        return result.params

    half, again, full = params("a", "bfloat16"), params("b", "bfloat16"), params("c", "float32")
    assert all(torch.equal(half[k], again[k]) for k in half)
    assert any(not torch.equal(half[k], full[k]) for k in half)
    with pytest.raises(RequestError, match=r"precision: .*float16"):
        fedstill.run("fedavg", set={"precision": "float16"})
