"""``--resume --rounds N`` extends a run."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.errors import Interrupted, RequestError
from fedstill.runs.folder import RunFolder

FAST: dict[str, Any] = {"clients": 3, "workers": 1, "model": "mlp", "progress": False}


class Notes(fedstill.Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_an_extended_run_is_a_longer_run(tmp_path: Path) -> None:
    fedstill.run("fedavg", rounds=4, out=tmp_path / "long", **FAST)
    fedstill.run("fedavg", rounds=2, out=tmp_path / "short", **FAST)
    seen = Notes()
    result = fedstill.run(
        rounds=4, out=tmp_path / "short", resume=True, observer=seen, progress=False
    )
    assert weights(tmp_path / "short") == weights(tmp_path / "long")
    assert [m.round for m in result.metrics] == [1, 2, 3, 4]
    assert result.summary.status == "done"
    assert seen.notes[0].startswith("extended from 2 to 4 rounds")
    config = tomllib.loads((tmp_path / "short" / "config.toml").read_text())
    assert config["rounds"] == 4
    fedstill.run(out=tmp_path / "short", resume=True, progress=False)  # it is the same run now


def test_only_the_rounds_may_change_and_only_grow(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedstill.run("fedavg", rounds=2, out=out, **FAST)
    with pytest.raises(RequestError, match="begun with other settings: rounds"):
        fedstill.run(rounds=1, out=out, resume=True)
    with pytest.raises(RequestError, match="begun with other settings: rounds, seed"):
        fedstill.run(rounds=3, seed=5, out=out, resume=True)
    assert RunFolder(out).read_config()["rounds"] == 2


def test_a_kill_while_a_run_is_extended_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    fedstill.run("fedavg", rounds=1, out=out, **FAST)
    written = RunFolder.write_summary

    def killed(self: RunFolder, summary: Any) -> None:
        written(self, summary)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_summary", killed)
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(rounds=2, out=out, resume=True, progress=False)
    monkeypatch.undo()
    assert fedstill.run(rounds=2, out=out, resume=True, progress=False).summary.rounds_done == 2


def test_a_private_run_is_not_extended(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedstill.run("fedsgd", rounds=1, epsilon=5, out=out, **FAST)
    with pytest.raises(RequestError, match="noise of this private run was chosen for 1 rounds"):
        fedstill.run(rounds=2, out=out, resume=True)


class Stop(fedstill.Observer):
    def round_done(self, metrics: Any) -> None:
        raise KeyboardInterrupt


def test_evaluate_says_what_it_tests_of_an_interrupted_run(tmp_path: Path) -> None:
    out, fast = tmp_path / "run", {"method.iterations": 1, "method.server_epochs": 1}
    options = {**FAST, "rounds": 3, "set": fast}
    with pytest.raises(Interrupted):
        fedstill.run("real", out=out, observer=Stop(), **{**options, "set": {}})
    found = fedstill.evaluate(out, networks=1, epochs=1, progress=False)
    assert found.model is None
    assert found.round == 1
    assert found.note is not None
    assert "the run is interrupted after 1 of 3 rounds: it has no model yet" in found.note
    assert f"fedstill run --resume --out {out}" in found.note
    fedstill.run(out=out, resume=True, progress=False)
    assert fedstill.evaluate(out, networks=1, epochs=1, progress=False).note is None
