"""The whole search: reproducible, resumable, and it refuses other studies."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

import fedstill
from fedstill.cli import app
from fedstill.errors import Interrupted, RequestError, RunError
from fedstill.runs.folder import RunFolder
from fedstill.tune import Tuned
from fedstill.tune.objective import Judge, ShouldContinue, Verdict
from fedstill.tune.search import Watcher
from fedstill.tune.space import Candidate
from fedstill.tune.study import sampler_for
from fedstill.tune.training import DEFAULT_TRAINING
from fedstill.tune.winner import Judged, best_of, winner_table

SPACE: dict[str, Any] = {
    "training": {"epochs": [2, 3], "batch_size": [8, 16]},
    "model": {"name": ["convnet", "mlp"]},
    "convnet": {"width": [2, 4], "depth": 1},
    "mlp": {"width": [8, 16]},
}


def tuned(run: Path, out: Path, **options: Any) -> Tuned:
    return fedstill.tune(run, out=out, **{"trials": 7, "space": SPACE, **options})


def trials_of(study: Path) -> list[tuple[Any, ...]]:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(study)))
    loaded = optuna.load_study(storage=storage, study_name="fedstill")
    return [
        (t.number, t.state.name, t.value, t.params, t.intermediate_values) for t in loaded.trials
    ]


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tuned(run, tmp_path_factory.mktemp("whole"), sampler="tpe", pruner="median")


def test_the_same_seed_gives_the_same_trials_and_another_others(
    run: Path, whole: Tuned, tmp_path: Path
) -> None:
    again = tuned(run, tmp_path / "again")
    other = tuned(run, tmp_path / "other", seed=1, trials=3)
    assert trials_of(again.study) == trials_of(whole.study)
    assert again.winner == whole.winner
    assert trials_of(other.study) != trials_of(whole.study)[:3]
    assert sum(whole.trials.values()) == 7
    values = [value for _, state, value, *_ in trials_of(whole.study) if state == "COMPLETE"]
    assert whole.winner.value == max(values)
    assert [one.value for one in whole.judged] == values


def test_of_equals_the_smallest_network_wins() -> None:
    candidate = Candidate({"name": "mlp"}, DEFAULT_TRAINING)
    judged = [
        Judged(0, 0.9, 0.9, 500, candidate),
        Judged(1, 0.95, 0.95, 300, candidate),
        Judged(2, 0.95, 0.95, 200, candidate),
        Judged(3, 0.95, 0.95, 200, candidate),
    ]
    assert best_of(judged).trial == 2


class Interrupts(Watcher):
    """Ctrl-C in the middle of a trial."""

    def __init__(self, number: int) -> None:
        self.number = number

    def epoch(self, number: int, epoch: int, epochs: int, accuracy: float) -> None:
        if number >= self.number and epoch == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_resumed_study_equals_an_uninterrupted_one(
    run: Path, whole: Tuned, tmp_path: Path, pruner: str
) -> None:
    expected = whole if pruner == "median" else tuned(run, tmp_path / "all", pruner=pruner)
    file = tmp_path / "study.journal"
    with pytest.raises(Interrupted, match="--study"):
        tuned(run, tmp_path, study=file, pruner=pruner, watcher=Interrupts(3))
    with file.open("ab") as journal:
        journal.write(b'{"op_code":6,"wor')  # a kill in the middle of a line
    Path(f"{file}.lock").touch()  # and while Optuna held its lock
    resumed = tuned(run, tmp_path, study=file, pruner=pruner)
    assert trials_of(file) == trials_of(expected.study)
    assert resumed.winner == expected.winner
    more = tuned(run, tmp_path, study=file, pruner=pruner, trials=8)
    assert sum(more.trials.values()) == 8


@pytest.mark.parametrize(("sampler", "pruner"), [("random", "none"), ("nsgaii", "halving")])
def test_samplers_and_pruners(run: Path, tmp_path: Path, sampler: str, pruner: str) -> None:
    done = tuned(run, tmp_path, sampler=sampler, pruner=pruner, trials=3)
    assert sum(done.trials.values()) == 3
    if pruner == "none":
        assert done.trials["complete"] == 3


def test_the_winner_runs(run: Path, whole: Tuned, tmp_path: Path) -> None:
    config = whole.folder / "winner.toml"
    arguments = ["run", "--config", str(config), "fedavg", "--rounds", "1", "--workers", "1"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "last"), "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["clients"] == 3  # the federation that the set is from
    resolved = (tmp_path / "last" / "config.toml").read_text()
    assert 'up = "float32"' in resolved  # not the codec of the set's images
    training = whole.winner.candidate.training
    assert f"learning_rate = {training.learning_rate}" in resolved
    assert f"batch_size = {training.batch_size}" in resolved
    assert f'name = "{whole.winner.candidate.model["name"]}"' in resolved
    assert f"width = {whole.winner.candidate.model['width']}" in resolved


def test_the_winner_of_a_run_with_a_defence_and_a_start_has_neither(
    whole: Tuned, tmp_path: Path
) -> None:
    """Both are for the run that made the set: FedAvg sends no sets that a defence could judge."""
    (tmp_path / "config.toml").write_text(
        'method = "feddm"\nstart = "sketch"\nclients = 7\n[defence]\nmode = "weigh"\n'
    )
    config = winner_table(whole.winner, True, RunFolder(tmp_path))
    assert config["clients"] == 7
    assert not {"defence", "start"} & set(config)


def test_the_page_has_the_figures_and_needs_no_network(whole: Tuned) -> None:
    page = (whole.folder / "tune.html").read_text()
    for heading in ("How the best was found", "What mattered", "Settings and accuracy"):
        assert heading in page
    assert len(page) < 150_000  # the limit is 1.5 MB; a plotting library alone has more
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', page)
    assert page.count("<tr>") == 1 + 7
    found = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert found
    data = json.loads(found[1])
    done = [t["value"] for t in data["trials"] if t["state"] == "complete"]
    assert max(done) == whole.winner.value
    for part in data["parts"]:
        assert part["reason"] or set(part["importance"]) == set(part["params"])


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 5},
        {"holdout": 0.5},
        {"repeats": 2},
        {"space": {**SPACE, "mlp": {"width": [8, 32]}}},
        {"objective": "vote"},
    ],
    ids=["seed", "holdout", "repeats", "space", "objective"],
)
def test_a_study_of_another_experiment_is_refused(
    run: Path, whole: Tuned, changed: dict[str, Any]
) -> None:
    before = whole.study.read_bytes()
    with pytest.raises(RequestError, match=f"to another experiment: .*{next(iter(changed))}"):
        tuned(run, whole.folder, study=whole.study, **changed)
    assert whole.study.read_bytes() == before


def test_a_study_on_another_set_is_refused(run: Path, whole: Tuned, tmp_path: Path) -> None:
    from fedstill.records import SyntheticSet
    from fedstill.runs.sets import load_set, save_sets

    stored = load_set(run)
    save_sets(tmp_path / "set", {0: SyntheticSet(stored.images, stored.labels)}, stored.metadata)
    with pytest.raises(RequestError, match="another experiment: set differs"):
        tuned(tmp_path / "set", whole.folder, study=whole.study)


def test_someone_else_s_file_is_left_alone(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    for content in (b"dear diary\nno end of line", b'{"op_code":77}\n', b'{"op_code":0}\n'):
        file.write_bytes(content)
        with pytest.raises(RequestError, match="not a fedstill study"):
            tuned(run, tmp_path, study=file)
        assert file.read_bytes() == content


def test_one_process_at_a_time(run: Path, tmp_path: Path) -> None:
    class Second(Watcher):
        def epoch(self, *_: Any) -> None:
            with pytest.raises(RequestError, match="another process is using it"):
                tuned(run, tmp_path, study=tmp_path / "s")
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        tuned(run, tmp_path, study=tmp_path / "s", watcher=Second())


def test_votes_are_counted(run: Path, tmp_path: Path) -> None:
    done = tuned(run, tmp_path, objective="vote", trials=2, pruner="none")
    assert done.up_bytes > 0
    assert done.down_bytes > 2 * 3 * 1000  # two trials, three clients, one network per vote
    assert done.winner.value != done.winner.held_out
    assert done.summary["up_bytes"] == done.up_bytes


@pytest.mark.slow
def test_worker_processes_search_too(run: Path, tmp_path: Path) -> None:
    done = tuned(run, tmp_path, workers=2, trials=4, sampler="random", objective="vote")
    assert sum(done.trials.values()) == 4
    assert done.up_bytes > 0
    alone = tuned(run, tmp_path / "alone", trials=4, sampler="random", objective="vote",
                  pruner="none")  # fmt: skip
    # Equal trial numbers draw equal settings, and the process that judges them changes no bit.
    one = {n: (params, value) for n, s, value, params, _ in trials_of(alone.study)}
    for number, state, value, params, _ in trials_of(done.study):
        assert params == one[number][0]
        if state == "COMPLETE":
            assert value == one[number][1]


def test_a_candidate_that_runs_out_of_memory_fails_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Judge.judge

    def weak(self: Judge, candidate: Candidate, should_continue: ShouldContinue) -> Verdict | None:
        if candidate.model["name"] == "convnet":
            raise RuntimeError("out of memory")
        return original(self, candidate, should_continue)

    monkeypatch.setattr(Judge, "judge", weak)
    done = tuned(run, tmp_path, pruner="none")
    assert done.trials["failed"] > 0
    assert done.trials["complete"] > 0
    assert done.winner.candidate.model["name"] == "mlp"
    space = {**SPACE, "model": {"name": ["convnet"]}}
    with pytest.raises(RunError, match="no trial is complete"):
        tuned(run, tmp_path / "none", trials=1, space=space)


def test_the_command(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text("[training]\nepochs = 2\n")
    arguments = ["tune", str(run), "--trials", "2", "--search", "hyper", "--space", "space.toml"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["model"]["width"] == 4  # the run's own network
    assert answer["trials"]["complete"] == 2
    assert Path("runs/tune-digits-001/winner.toml").exists()
    assert "trial 1 (2/2)" in done.output
    assert "fedstill run --config runs/tune-digits-001/winner.toml fedavg" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "tpi"}, "no sampler 'tpi'; did you mean 'tpe'"),
        ({"pruner": "medium"}, "no pruner 'medium'; did you mean 'median'"),
        ({"search": "archtecture"}, "did you mean 'architecture'"),
        ({"objective": "votes"}, "did you mean 'vote'"),
        ({"trials": 0}, "--trials"),
        ({"workers": 0}, "--workers"),
        ({"holdout": 1.0}, "--holdout"),
        ({"model": "nlp"}, "no model 'nlp'; did you mean 'mlp'"),
        ({"search": "hyper", "model": "mlp", "space": {"training": {
            "learning_rate": 1.0, "momentum": 0.0, "batch_size": 1, "epochs": 1,
            "schedule": "step", "augment": "none", "optimiser": "sgd"}}},
         "nothing is left to search"),
        ({"space": "nowhere.toml"}, "cannot be read"),
        ({"space": {"training": {"momentum": [2.0, 3.0]}}}, r"training\.momentum"),
        ({"space": {"training": {"epochs": "many"}}}, r"training\.epochs"),
        ({"space": {"model": {"name": [3]}}}, r"model\.name: give names"),
        ({"space": {"model": {"name": ["mlp", "mpl"]}}}, "no model 'mpl'"),
        ({"space": {"convnet": {"depth": [1, 5]}}}, r"model\.depth: 5 blocks"),
        ({"space": {"mlp": {"width": [-1]}, "model": {"name": "mlp"}}}, r"model\.width"),
    ],
)  # fmt: skip
def test_wrong_requests_are_explained(
    run: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        tuned(run, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_sampler_that_needs_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fedstill.tune.study"], "find_spec", lambda name: None)
    with pytest.raises(RequestError, match="--sampler gp needs scipy"):
        sampler_for("gp", 0, 0, parallel=False)


def test_a_missing_extra_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RequestError, match=r"needs optuna: pip install 'fedstill\[tune\]'"):
        tuned(run, tmp_path)


def test_a_cut_or_missing_set_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "set"
    shutil.copy(run / "synthetic" / "round-0001.safetensors", path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RequestError, match="not a file of synthetic sets"):
        tuned(path, tmp_path / "out")
    with pytest.raises(RequestError, match="no such file or folder; name a run folder"):
        tuned(tmp_path / "none", tmp_path / "out")
