"""Recipes that run: resumed, compared, and honest about what failed."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.errors import Interrupted, RequestError, RunError
from fedstill.observe.observer import Observer
from fedstill.reproduce.recipe import Recipe, load_recipe, recipe_names
from fedstill.reproduce.running import as_document, measured, reproduce, results
from fedstill.runs.metrics import RoundMetrics
from tests.reproduce.test_recipes import recipe_of


class Recorder:
    """Records what is reported; may interrupt the first run after its first round."""

    def __init__(self, interrupt: bool = False) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.interrupt = interrupt

    def begun(self, number: int, of: int, name: str, *, done: bool) -> Observer:
        self.lines.append((number, of, name, done))
        return _Stop() if self.interrupt else Observer()

    def failed(self, name: str, reason: str) -> None:
        self.lines.append((name, reason))


class _Stop(Observer):
    def round_done(self, metrics: RoundMetrics) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def recipe() -> Recipe:
    fast = {"settings": {"rounds": 2, "clients": 2, "engine": {"workers": 1}}}
    rows = {"A": {"method": "fedavg"}, "B": {"method": {"name": "fedprox", "mu": -1.0}}}
    found: Recipe = recipe_of(
        methods={},
        rows=rows,
        columns={"x": {}},
        published={"A": {"x": 50.0}, "B": {"x": 60.0}},
        scales={"cpu": fast},
    )
    return found


def test_ours_are_compared_with_theirs_and_a_failed_cell_says_why(
    recipe: Recipe, tmp_path: Path
) -> None:
    recorder = Recorder()
    good, bad = reproduce(recipe, "cpu", 2, tmp_path, {}, recorder)
    assert len(good.values) == 2
    assert good.mean is not None
    assert good.difference == pytest.approx(sum(good.values) / 2 - 50)
    assert good.values[0] != good.values[1]  # the seeds differ
    assert bad.mean is None
    assert "method.mu" in bad.failures[0]
    assert [line[:2] for line in recorder.lines[:2]] == [(1, 4), (2, 4)]
    assert recorder.lines[2][0] == "B, x, seed 0"
    head, rows = results(recipe, "cpu", [good, bad])
    assert rows[0][2] == "50.00"
    assert float(rows[0][4]) == pytest.approx(good.difference, abs=0.01)
    assert rows[1][3:5] == ["-", "-"]
    assert "method.mu" in as_document(recipe, "cpu", head, rows)


def test_what_is_done_is_not_run_again_and_what_was_stopped_goes_on(
    recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        reproduce(recipe, "cpu", 1, tmp_path, {}, Recorder(interrupt=True))
    summary = tmp_path / "a--x" / "seed-0" / "summary.json"
    assert json.loads(summary.read_text())["rounds_done"] == 1
    first = reproduce(recipe, "cpu", 1, tmp_path, {}, Recorder())[0]
    assert json.loads(summary.read_text())["rounds_done"] == 2
    recorder = Recorder(interrupt=True)  # would stop a run, if there were one
    assert reproduce(recipe, "cpu", 1, tmp_path, {}, recorder)[0].values == first.values
    assert recorder.lines[0] == (1, 2, "A, x", True)
    other = reproduce(recipe, "cpu", 1, tmp_path, {"method": {"batch_size": 3}}, Recorder())[0]
    assert "was run with other settings (method.batch_size)" in other.failures[0]


def test_measures(recipe: Recipe, tmp_path: Path) -> None:
    reproduce(recipe, "cpu", 1, tmp_path, {}, Recorder())
    from fedstill.runs.folder import RunFolder

    summary = RunFolder(tmp_path / "a--x" / "seed-0").read_summary()
    assert summary.accuracy is not None
    assert measured(summary, "accuracy") == 100 * summary.accuracy
    assert measured(summary, "floats") == summary.up_bytes / 2 / 4
    with pytest.raises(RequestError, match="--seeds 0"):
        reproduce(recipe, "cpu", 0, tmp_path, {}, Recorder())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", "feddm-real", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert [o["row"] for o in outcome] == ["REAL", "FedDM"]
    assert (tmp_path / "reproductions/feddm-real/smoke/results.md").exists()
    assert (
        json.loads((tmp_path / "reproductions/feddm-real/smoke/results.json").read_text())
        == outcome
    )
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "(already done)" in again.stderr
    with pytest.raises(RequestError, match="did you mean 'smoke'"):
        CliRunner().invoke(
            app, ["reproduce", "feddm-real", "--scale", "smok"], catch_exceptions=False
        )


def test_data_by_name_and_a_folder_for_it_are_one_setting(tmp_path: Path) -> None:
    """``data=mnist`` is ``data.name=mnist``: the folder must not take its place."""
    arguments = ["reproduce", "feddm-real", "--row", "REAL", "--set", "data=mnist"]
    done = CliRunner().invoke(
        app, [*arguments, "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]
    )
    assert done.exit_code == 1
    (outcome,) = json.loads(done.stdout.splitlines()[-1])
    assert "data set 'mnist'" in str(outcome)


def test_a_setting_that_does_not_exist_is_refused_before_any_cell(
    recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=r"workers: .* did you mean 'engine\.workers'"):
        reproduce(recipe, "cpu", 1, tmp_path, {"workers": 1}, Recorder())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("settings", [{"seed": 7}, {"method": "fedavg"}])
def test_what_every_cell_sets_itself_is_refused(
    settings: dict[str, Any], recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="leave it out"):
        reproduce(recipe, "cpu", 1, tmp_path, settings, Recorder())
    assert not list(tmp_path.iterdir())


def test_settings_that_make_two_cells_the_same_experiment_are_refused(tmp_path: Path) -> None:
    """One run would stand beside the printed numbers of two."""
    one, ten = {"method": {"images_per_class": 1}}, {"method": {"images_per_class": 10}}
    recipe: Recipe = recipe_of(
        rows={"A": {"method": "real"}},
        columns={"1": one, "1 again": one, "10": ten, "slow": {**ten, "rounds": 9}},
        only_published=False,
        published={},
    )
    settings = {"method": {"images_per_class": 2, "server_steps": 5}, "clients": 2}
    complaint = (
        r"^method\.images_per_class = 2: makes 'A, 1' and 'A, 10' the same experiment; leave"
    )
    with pytest.raises(RequestError, match=complaint):
        reproduce(recipe, "cpu", 1, tmp_path, settings, Recorder())
    with pytest.raises(RequestError, match=r"^rounds = 1: makes 'A, 10' and 'A, slow' the same"):
        reproduce(recipe, "cpu", 1, tmp_path, {"rounds": 1}, Recorder())
    assert not list(tmp_path.iterdir())
    alone = recipe.part("cpu", [], ["10"])
    (outcome,) = reproduce(alone, "cpu", 1, tmp_path, settings, Recorder())
    assert len(outcome.values) == 1


def test_a_setting_of_the_cells_may_change_where_they_stay_different(
    recipe: Recipe, tmp_path: Path
) -> None:
    good, _ = reproduce(recipe, "cpu", 1, tmp_path, {"rounds": 1}, Recorder())
    assert len(good.values) == 1


def test_a_part_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", "feddm-real", "--row", "REAL", "--set", "clients=2", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert [o["row"] for o in json.loads(done.stdout.splitlines()[-1])] == ["REAL"]
    # The files of the whole table are left alone.
    folder = tmp_path / "reproductions/feddm-real/smoke"
    assert '--scale smoke --row "REAL" --set clients=2' in (folder / "results-part.md").read_text()
    assert len(json.loads((folder / "results-part.json").read_text())) == 1
    assert not (folder / "results.md").exists()
    with pytest.raises(RequestError, match="--row Real: not there; did you mean 'REAL'"):
        CliRunner().invoke(
            app, ["reproduce", "feddm-real", "--row", "Real"], catch_exceptions=False
        )
    known = load_recipe("distdd-table1")
    rows, columns = ["DistDD, 50 images"], ["Fashion-MNIST, 1"]  # both left out at scale cpu
    (cell,) = known.part("cpu", rows, columns).cells("cpu")
    assert (cell.row, cell.column, cell.published) == (*rows, *columns, 84.7)
    assert cell.request["rounds"] == 60  # with the scale's settings
    assert known.part("cpu", [], []) == known
    with pytest.raises(RequestError, match="no number in those"):
        known.part("cpu", ["Whole data set"], ["MNIST, 0.5"])


def test_a_failed_cell_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", "feddm-real", "--set", "clients=100000"]
    with pytest.raises(RunError, match="2 of 2 cells"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "100000" in (tmp_path / "reproductions/feddm-real/smoke/results.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_at_scale_smoke(name: str, tmp_path: Path) -> None:
    outcomes = reproduce(load_recipe(name), "smoke", 1, tmp_path, {}, Recorder())
    assert [o.failures for o in outcomes] == [()] * len(outcomes)
    assert all(o.mean is not None for o in outcomes)
