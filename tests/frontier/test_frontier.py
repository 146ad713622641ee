"""The frontier: measured on the digits with a tiny grid, resumed, bounded in time, and drawn."""

import csv
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedstill
from fedstill.cells import OtherSettings
from fedstill.cli import app
from fedstill.errors import Interrupted, RequestError
from fedstill.frontier import Frontier
from fedstill.frontier.budget import Times, cheapest, seconds_in
from fedstill.frontier.grid import Cell, cells_of, narrowed, read_grid
from fedstill.frontier.points import Measured, front, interval
from fedstill.methods import METHODS
from fedstill.observe.observer import Observer
from fedstill.runs.metrics import RoundMetrics

NASTY = "<script>alert(1)</script>"
FAST = {"rounds": 2, "method": {"server_steps": 5}}
GRID: dict[str, Any] = {
    "lines": {
        f"real {NASTY}": {
            "group": NASTY,
            "method": "real",
            "settings": {**FAST, "wire": {"up": "bits1+context"}},
            "vary": "method.images_per_class",
            "over": [1, 3],
            "seconds": 2,
        },
        "feddm": {
            "method": "feddm",
            "settings": {"rounds": 1, "method": {"server_steps": 5, "iterations": 1}},
            "seconds": 3,
        },
        "analytic": {
            "group": "statistics",
            "method": "analytic",
            "vary": "model.projection",
            "over": [10],
            "seconds": 1,
        },
    }
}


class Recorder:
    """Records what was begun; may interrupt the first run after its first round."""

    def __init__(self, interrupt: bool = False) -> None:
        self.interrupt = interrupt
        self.begun_cells: list[tuple[str, bool]] = []
        self.failures: list[tuple[str, str]] = []

    def begun(self, number: int, of: int, name: str, *, done: bool) -> Observer:
        self.begun_cells.append((name, done))
        return _Stop() if self.interrupt else Observer()

    def failed(self, name: str, reason: str) -> None:
        self.failures.append((name, reason))


class _Stop(Observer):
    def round_done(self, metrics: RoundMetrics) -> None:
        raise KeyboardInterrupt


def measured(out: Path, **more: Any) -> Frontier:
    options: dict[str, Any] = {"grid": GRID, "seeds": 1, "clients": 3, "partition": "iid"}
    options |= {"workers": 1, "progress": False}
    return fedstill.frontier(out=out, **(options | more))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Frontier:
    return measured(tmp_path_factory.mktemp("frontier"), seeds=2)


def test_every_round_of_every_cell_is_a_point(done: Frontier) -> None:
    found = [(p.cell.name, p.round, p.last) for p in done.points]
    assert found == [
        (f"real {NASTY}, 1 image per class", 1, False),
        (f"real {NASTY}, 1 image per class", 2, True),
        (f"real {NASTY}, 3 images per class", 1, False),
        (f"real {NASTY}, 3 images per class", 2, True),
        ("feddm", 1, True),
        ("analytic, projection 10", 1, True),
    ]
    first, second = done.points[:2]
    assert second.up_bytes == pytest.approx(2 * first.up_bytes, rel=0.2)  # all rounds so far
    assert len(first.accuracies) == 2  # two seeds
    assert [p.reveals for p in (first, done.points[-1])] == ["records", "no privacy"]
    summary = json.loads((done.page.parent / "feddm" / "seed-1" / "summary.json").read_text())
    assert done.points[4].accuracies[1] == summary["accuracy"]
    assert done.left_out == ()
    assert done.failed == 0


def test_records_are_kept_apart_in_the_fronts(done: Frontier) -> None:
    assert all(not p.cell.sends_records for p in done.front)
    assert any(p.cell.sends_records for p in done.front_with_records)
    marks = {(p.cell.sends_records, done.mark(p)) for p in done.points}
    assert (True, "*") not in marks
    assert (True, "(*)") in marks
    assert (False, "*") in marks


def point(up: float, accuracy: float, group: str = "a") -> Measured:
    cell = Cell("a", "", group, {}, 1.0, False)
    return Measured(cell, 1, True, up, (accuracy,), None)


def test_the_front_has_no_point_that_another_beats() -> None:
    points = [point(30, 0.7), point(10, 0.5), point(20, 0.4), point(20, 0.6), point(40, 0.7)]
    assert front(points) == [points[1], points[3], points[0]]
    assert front([]) == []


def test_the_best_of_each_group_within_a_budget() -> None:
    points = (point(900, 0.5), point(2000, 0.4), point(2999, 0.7), point(5e4, 0.9, "b"))
    found = Frontier("", points, (), 0, Path())
    assert found.best_within(899) is None
    assert found.best_within(1e9) is points[3]
    assert found.best_within(2500, "a") is points[0]
    assert [row[0] for row in found.budget_rows] == ["1 kB", "3 kB", "10 kB", "30 kB", "100 kB"]
    assert [row[1].partition(":")[0] for row in found.budget_rows] == ["50.00%"] + 4 * ["70.00%"]
    assert [row[2].partition(":")[0] for row in found.budget_rows] == 4 * ["-"] + ["90.00%"]


def test_intervals_are_student_s() -> None:
    assert interval([0.9]) is None
    low, high = interval([0.5, 0.6, 0.7]) or (0.0, 0.0)
    half = 4.303 * 0.1 / 3**0.5  # t of two degrees of freedom
    assert (low, high) == pytest.approx((0.6 - half, 0.6 + half))
    assert interval([0.2, 1.0]) == (0.0, 1.0)  # accuracies are shares
    many = interval([0.5, 0.52] * 10) or (0.0, 0.0)  # 19 degrees of freedom: t is 2.093
    assert (many[1] - many[0]) / 2 == pytest.approx(2.093 * 0.01026 / 20**0.5, rel=2e-3)


def test_the_files_beside_the_page(done: Frontier) -> None:
    folder = done.page.parent
    with (folder / "frontier.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(done.points)
    assert [float(row["accuracy"]) for row in rows] == [p.accuracy for p in done.points]
    assert rows[0]["sends_records"] == "True"
    assert len(rows[0]["accuracies"].split()) == 2
    assert json.loads((folder / "frontier.json").read_text())[0]["line"] == f"real {NASTY}"
    text = (folder / "frontier.md").read_text()
    assert "analytic, projection 10 | 1 |" in text
    assert "analytic, projection 10, 1 round |" in text  # within a budget
    assert "front without records" in (folder / "frontier.svg").read_text()
    assert (folder / "frontier.png").read_bytes()[:4] == b"\x89PNG"


def test_the_page_escapes_names_and_marks_records(done: Frontier) -> None:
    html = done.page.read_text()
    assert NASTY not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; (sends records)" in html
    assert NASTY not in (done.page.parent / "frontier.svg").read_text()


def test_what_is_done_is_reused_and_what_was_stopped_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="the same command runs the rest"):
        measured(tmp_path, methods=["real"], watcher=Recorder(interrupt=True))
    folder = tmp_path / "real-script-alert-1-script-1-image-per-class" / "seed-0"
    assert json.loads((folder / "summary.json").read_text())["rounds_done"] == 1
    first = measured(tmp_path, methods=["real"])
    assert first.page.name == "frontier-part.html"  # not that of all methods
    again = Recorder(interrupt=True)  # would stop a run, if there were one
    second = measured(tmp_path, methods=["real"], watcher=again)
    assert [done for _, done in again.begun_cells] == [True, True]
    assert second.records() == first.records()
    with pytest.raises(OtherSettings, match=r"was run with other settings \(clients\)"):
        measured(tmp_path, methods=["real"], clients=4)


def test_private_cells_are_reused_too(tmp_path: Path) -> None:
    line = {"method": "analytic", "settings": {"privacy": {"epsilon": 3.0}}}
    grid = {"lines": {"private": line}}
    first = measured(tmp_path, grid=grid)
    assert first.points[0].reveals == "epsilon 3"
    again = Recorder()
    measured(tmp_path, grid=grid, watcher=again)
    assert again.begun_cells == [("private", True)]


def test_the_cheapest_come_first_and_the_budget_leaves_out_the_rest(tmp_path: Path) -> None:
    recorder = Recorder()
    grid = {"lines": {**GRID["lines"], "slow": {"method": "fedavg", "seconds": 1e9}}}
    found = measured(tmp_path, grid=grid, budget=600, watcher=recorder)
    names = [name for name, _ in recorder.begun_cells]
    assert names[0] == "analytic, projection 10"  # of 1 second
    assert len(names) == 4
    assert len(found.left_out) == 1
    assert found.left_out[0].startswith("slow: no time left for 1 run (about ")
    assert "Left out" in found.page.read_text()
    with pytest.raises(RequestError, match="nothing was measured: no time left"):
        measured(tmp_path / "none", budget=1e-3)


def test_a_run_is_stopped_at_the_deadline_and_resumed_later(tmp_path: Path) -> None:
    class Slow(Recorder):
        def begun(self, number: int, of: int, name: str, *, done: bool) -> Observer:
            super().begun(number, of, name, done=done)
            return _Wait() if "seed 1" in name else Observer()

    class _Wait(Observer):
        def round_done(self, metrics: RoundMetrics) -> None:
            time.sleep(max(0.0, stop - time.monotonic()))

    stop = time.monotonic() + 60.0
    lines = {"real": {"method": "real", "settings": FAST, "seconds": 1}}
    options: dict[str, Any] = {"grid": {"lines": lines}, "seeds": 2}
    started = time.monotonic()
    measured(tmp_path / "warm", **options)
    budget = 3 * (time.monotonic() - started) + 2
    stop = time.monotonic() + budget + 1
    found = measured(tmp_path / "a", **options, budget=budget, watcher=Slow())
    assert [len(p.accuracies) for p in found.points] == [1, 1]
    assert "no time left for 1 run" in found.left_out[0]
    summary = tmp_path / "a" / "real" / "seed-1" / "summary.json"
    assert json.loads(summary.read_text())["status"] == "interrupted"
    whole = measured(tmp_path / "a", **options)
    assert [len(p.accuracies) for p in whole.points] == [2, 2]


def test_expected_times_follow_what_was_measured() -> None:
    a1, a2 = (Cell("a", size, "g", {}, seconds, False) for size, seconds in (("1", 10), ("2", 40)))
    b = Cell("b", "", "g", {}, 30.0, False)
    times = Times()
    assert times.expected(b) == 30
    times.add(a1, 20.0)
    assert times.expected(a1) == 20
    assert times.expected(a2) == 80  # its line takes twice the guess
    assert times.expected(b) == 60  # all that is known takes twice the guess
    assert cheapest({a1: [], a2: [0], b: [1, 2]}, times) == (b, 1, 60.0)
    assert cheapest({a1: []}, times) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h", 3600), ("1h 30min", 5400), ("0.5d", 43200), (7, 7)]
)
def test_times_with_units(text: str | float, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "1 hour", "-1h", "0s", "1h now", -3, float("nan")])
def test_times_that_are_none(text: str | float) -> None:
    with pytest.raises(RequestError, match="--budget"):
        seconds_in(text)


def test_what_does_not_fit_the_data_is_left_out_with_the_reason(tmp_path: Path) -> None:
    lines = {
        "analytic": {"method": "analytic"},
        "masked": {"method": "random-mask", "settings": {"method": {"compression": 1e9}}},
        "misspelt": {"method": "fedavg", "settings": {"method": {"momentun": 0.5}}},
    }
    recorder = Recorder()
    found = measured(tmp_path, grid={"lines": lines}, seeds=2, watcher=recorder)
    assert len(found.points) == 1
    assert found.failed == 0
    assert [why.partition(":")[0] for why in found.left_out] == ["masked", "misspelt"]
    assert "method.compression" in found.left_out[0]
    assert "did you mean 'momentum'" in found.left_out[1]


def test_a_cell_whose_measurements_are_lost_is_left_out_with_the_reason(tmp_path: Path) -> None:
    grid = {"lines": {name: {"method": "analytic"} for name in ("a", "b")}}
    measured(tmp_path, grid=grid)
    (tmp_path / "a" / "seed-0" / "metrics.jsonl").write_text("")
    (why,) = measured(tmp_path, grid=grid).left_out
    assert why.startswith("a: no round")
    assert why.endswith(f"remove {tmp_path / 'a' / 'seed-0'} to run it again")


@pytest.mark.parametrize("settings", [{"seed": 7}, {"method": "fedavg"}, {"method.name": "fedavg"}])
def test_what_every_cell_sets_itself_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="leave it out"):
        measured(tmp_path, set=settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"wire.up": "bits3"}, r"^wire\.up = bits3: line 'real <.*>' of the grid sets it itself"),
        ({"method": {"images_per_class": 3}}, r"line 'real .*' of the grid varies it itself"),
        ({"features": "scatter"}, "^features = scatter: line 'private' of the grid sets it itself"),
        ({"model": "mlp"}, "^model = mlp: line 'private' of the grid sets it itself"),
        ({"model.projection": 9}, r"^model\.projection = 9: line 'analytic' of the grid varies"),
        ({"privacy": {"epsilon": 2.0}}, r"^privacy\.epsilon = 2\.0: line 'private' of the grid"),
    ],
)
def test_what_a_line_is_named_for_is_not_set_for_every_cell(
    settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    """Two names on the front would be the same run."""
    own = {"features": "pixels", "privacy": {"epsilon": 3.0}}
    grid = {"lines": {**GRID["lines"], "private": {"method": "analytic", "settings": own}}}
    with pytest.raises(RequestError, match=complaint) as error:
        measured(tmp_path, grid=grid, set=settings)
    assert str(error.value).endswith("leave it out, or change the grid with --grid")
    assert not list(tmp_path.iterdir())


def test_only_lines_that_are_measured_keep_their_settings(tmp_path: Path) -> None:
    found = measured(tmp_path, methods=["analytic"], set={"wire.up": "float16"})
    assert [point.cell.name for point in found.points] == ["analytic, projection 10"]
    config = tmp_path / "analytic-projection-10" / "seed-0" / "config.toml"
    assert "float16" in config.read_text()


def test_the_model_is_for_methods_without_one_of_their_own() -> None:
    cells = cells_of(read_grid(GRID), {"model": "mlp"})
    assert [cell.request.get("model") for cell in cells] == [
        {"name": "mlp"},
        {"name": "mlp"},
        {"name": "mlp"},
        {"projection": 10},
    ]


def test_our_grid_has_every_method_that_sends_something() -> None:
    grid = read_grid(None)
    assert {line.method for line in grid.lines.values()} == {
        name for name, method in METHODS.items() if not method.pooled
    }
    from fedstill.config import resolve

    for cell in cells_of(grid, {}):
        resolve({**cell.request, "seed": 0})  # all settings exist


def test_records_are_measured_wherever_feddm_is() -> None:
    """The rival has the same codecs, sizes and rounds."""

    def places(method: str) -> set[tuple[str, int, int]]:
        requests = [cell.request for cell in cells_of(read_grid(None), {})]
        return {
            (r["wire"]["up"], r["method"]["images_per_class"], r["rounds"])
            for r in requests
            if r["method"]["name"] == method and "shrink" not in r["method"]
        }

    assert len(places("feddm")) >= 9
    assert places("feddm") <= places("real")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ({}, "grid.lines: there is none"),
        (
            {"a": {"method": "fedm"}},
            r"^grid\.lines\.a\.method: no method 'fedm'; did you mean 'feddm'",
        ),
        ({"a": {"method": "nowhere:X"}}, r"^grid\.lines\.a\.method: cannot import 'nowhere'"),
        ({"a": {"method": "central"}}, "grid.lines.a.method: central sends nothing"),
        ({"a": {"method": "real", "vary": "rounds"}}, "give both"),
        ({"a": {"method": "real", "seconds": [1, 2]}}, "grid.lines.a.seconds"),
        ({"a": {"method": "real", "sizes": 3}}, "grid.lines.a.sizes: no such setting"),
        ({"a": {"method": "real"}, "A": {"method": "real"}}, "share the folder 'a'"),
        ({"..": {"method": "real"}}, "needs a letter or a digit"),
        ({"a": {"method": "real", "settings": {"seed": 3}}}, "grid.lines.a: seed = 3: the runs"),
        (
            {"a": {"method": "real", "vary": "method", "over": ["fedavg"]}},
            "a: method.name = fedavg",
        ),
    ],
)
def test_grids_that_are_wrong(lines: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        read_grid({"lines": lines})


def test_only_some_methods() -> None:
    assert list(narrowed(read_grid(GRID), ["feddm"]).lines) == ["feddm"]
    with pytest.raises(RequestError, match="did you mean 'feddm'"):
        narrowed(read_grid(GRID), ["fedm"])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text('[lines."means, short"]\nmethod = "analytic"\n')
    arguments = ["frontier", "--grid", "grid.toml", "--seeds", "1", "--workers", "1", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "means, short" in done.stdout
    assert "page: frontiers/digits-dirichlet-0.1/frontier.html" in done.stdout
    (record,) = json.loads(done.stdout.splitlines()[-1])
    assert record["front"] == "*"
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "(already done)" in again.stderr
    slow = '[lines."slow"]\nmethod = "fedavg"\nseconds = 1e9\nvary = "rounds"\nover = '
    Path("grid.toml").write_text(f"{Path('grid.toml').read_text()}{slow}{list(range(1, 9))}\n")
    short = CliRunner().invoke(app, [*arguments, "--budget", "1h"], catch_exceptions=False)
    assert short.stdout.count("left out: slow, ") == 5
    assert "left out: 3 more cells (in frontier.md)" in short.stdout
    assert Path("frontiers/digits-dirichlet-0.1/frontier.md").read_text().count("no time left") == 8
    with pytest.raises(RequestError, match="unknown data set"):
        CliRunner().invoke(app, ["frontier", "--data", "nothing-there"], catch_exceptions=False)
    with pytest.raises(RequestError, match=r"did you mean 'engine\.workers'"):
        CliRunner().invoke(app, ["frontier", "--set", "workers=1"], catch_exceptions=False)


def narrow(arguments: list[str]) -> str:
    """What the command prints on a terminal of 80 columns."""
    command = ["frontier", "--workers", "1", *arguments]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_rounds_and_intervals_fit_a_terminal_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = 'method = "real"\nsettings = { rounds = 3, wire.up = "bits2", method.server_steps = 2 }'
    Path("grid.toml").write_text(f'[lines."real, 2 bits, server at rest"]\n{line}\n')
    one = narrow(["--grid", "grid.toml", "--clients", "2", "--seeds", "1"])
    assert "no room" not in one
    head = next(text for text in one.splitlines() if text.startswith("method"))
    assert head.split() == [
        "method",
        "rounds",
        "uploaded",
        "accuracy",
        "seeds",
        "server",
        "sees",
        "front",
    ]
    rows = [text for text in one.splitlines() if text.startswith("real")]
    assert rows
    assert all(len(text) <= 80 for text in [head, *rows])
    two = narrow(["--grid", "grid.toml", "--clients", "2", "--seeds", "2"])
    head = next(text for text in two.splitlines() if text.startswith("method"))
    assert head.split()[1:6] == ["rounds", "uploaded", "accuracy", "95%", "interval"]
    assert "no room for: seeds (in frontier.csv)" in two


def test_the_best_of_each_kind_is_on_the_terminal_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    groups = ["statistics", "others", "a kind with a long name", "another with a longer name"]
    lines = [f'[lines."{n}"]\ngroup = "{n}"\nmethod = "analytic"\n' for n in groups]
    Path("grid.toml").write_text("".join(lines))
    text = narrow(["--grid", "grid.toml", "--clients", "2", "--seeds", "1"])
    _, _, below = text.partition("The best of each kind within a budget (methods: frontier.md)\n")
    head, row = below.splitlines()[:2]
    assert re.split("  +", head) == ["uploaded at most", *groups[:3]]
    assert len(row.split()) == 5  # a number and its unit, and three accuracies
    assert row.count("%") == 3
    assert len(head) <= 80
    assert "no room for: another with a longer name (in frontier.md)" in below
