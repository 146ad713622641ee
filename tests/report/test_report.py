"""The page about a run, and the folders it is made from."""

import base64
import hashlib
import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.draw.numbers import in_bytes
from fedstill.errors import RequestError
from fedstill.observe.observer import Observer
from fedstill.records import SyntheticSet
from fedstill.report import sprites, write_report
from fedstill.report.embed import data_script
from fedstill.report.page import report_page
from fedstill.report.sentences import command, departures, epsilon_explained, sentence
from fedstill.report.source import open_run
from fedstill.runs.sets import SetMetadata, load_set, save_sets
from tests.report.folders import NASTY, feddm_run, written_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return feddm_run(tmp_path_factory.mktemp("runs") / "run")


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_every_run_leaves_a_page(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert page == report_page(open_run(run))
    assert len(page) < 3_000_000
    data = data_of(page)
    assert [r["round"] for r in data["rounds"]] == [1, 2]
    assert data["clients"]["ids"] == [0, 1, 2]
    assert sum(data["clients"]["uploaded"]) == sum(r["up"] for r in data["rounds"])
    assert sum(map(sum, data["holdings"]["counts"])) == 60
    assert len(data["synthetic"]["rounds"]) == 2


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    assert not re.search(r"@import|url\(\s*['\"]?http", page)
    # Only the page's script may run, and it may reach nothing.
    code = re.search(r"</script>\n<script>(.*)</script></body>", page, re.S) or re.search(
        r"<script>(.*)</script></body>", page, re.S
    )
    assert code
    digest = base64.b64encode(hashlib.sha256(code[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "connect-src 'none'" in page


def test_names_from_data_are_shown_and_not_run(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert NASTY not in page
    assert html.escape(NASTY) in page  # the data set's name, in the title
    assert data_of(page)["holdings"]["class_names"][:2] == [NASTY, "</script>"]
    assert page.count("<script") == 2  # the data and the code


def test_json_cannot_end_its_element() -> None:
    value = {"a": "</script><!--\u2028"}
    script = data_script("data", value)
    assert script.count("<") == 2
    assert json.loads(script[script.index(">") + 1 : script.rindex("<")]) == value


def test_a_failing_page_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Notes(Observer):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    def broken(_folder: Path) -> None:
        raise ValueError("no ink")

    monkeypatch.setattr(sys.modules["fedstill.execute"], "write_report", broken)
    watcher = Notes()
    result = fedstill.run(
        "fedavg", rounds=1, clients=2, model="mlp", workers=1, out=tmp_path / "r", observer=watcher
    )
    assert result.summary.status == "done"
    assert any("report.html was not written: no ink" in note for note in watcher.notes)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such folder"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="an empty folder"):
        open_run(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(RequestError, match="no run here"):
        open_run(tmp_path)
    with pytest.raises(RequestError, match="not a folder"):
        open_run(tmp_path / "notes.txt")


def test_a_half_written_folder_is_shown(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "half")
    (folder / "summary.json").unlink()
    (folder / "holdings.json").write_text('{"class_na')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "accu')
    found = open_run(folder)
    assert found.status == "unfinished"
    assert found.summary["accuracy"] == 0.8
    page = report_page(found)
    for note in ("summary.json is missing", "holdings.json cannot be read", "1 of 4 lines"):
        assert note in page


def test_a_run_just_begun_is_shown(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "begun", accuracy=[])
    assert "no round has ended yet" in report_page(open_run(folder))


def test_a_newer_run_is_shown_with_a_word(tmp_path: Path) -> None:
    new = {"version": "9.0.1", "accuracy": {"mean": 1}, "colour": "red"}
    folder = written_run(tmp_path / "newer", summary=new, each={"weather": [1]})
    page = report_page(open_run(folder))
    assert "made by fedstill 9.0.1" in page
    assert "80.00%" in page


def test_a_renamed_folder_is_shown_under_its_new_name(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "old").rename(tmp_path / "new & shiny")
    assert write_report(folder) == folder / "report.html"
    assert "new &amp; shiny · fedstill" in (folder / "report.html").read_text()


def test_numbers_that_cannot_be_drawn_are_left_out(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "r")
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"details": {}', '"details": {"a": null}'))
    data = data_of(report_page(open_run(folder)))
    assert [r["details"] for r in data["rounds"]] == [{}, {}, {}]


def test_failed_clients_and_privacy_are_told(tmp_path: Path) -> None:
    folder = written_run(
        tmp_path / "r",
        each={"failed": {"7": "refused: 'images' <too large>"}, "epsilon": 2.0},
        summary={"epsilon": 2.0, "delta": 1e-5},
    )
    page = report_page(open_run(folder))
    assert "refused: &#39;images&#39; &lt;too large&gt;" in page
    assert "Refused, failed or doubted: 3" in page
    assert "by a factor of at most 7.4" in page
    assert "no privacy mechanism" not in page


def test_a_private_run_does_not_show_who_held_what(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "r")
    holdings = {"class_names": ["a"], "counts": [[7], [5]], "test_records": 3}
    (folder / "holdings.json").write_text(json.dumps(holdings))
    assert data_of(report_page(open_run(folder)))["holdings"]["counts"] == [[7], [5]]
    with (folder / "config.toml").open("a") as file:
        file.write("[privacy]\nsigma = 1.0\n")
    page = report_page(open_run(folder))
    assert "class counts are private" in page
    assert data_of(page)["holdings"] is None
    assert data_of(page)["clients"]["records"] == [None, None]


def with_counts(folder: Path) -> Path:
    """A run of two clients and two classes, of which the model knows the first better."""
    holdings = {"class_names": ["a", NASTY], "counts": [[6, 0], [1, 3]], "test_records": 8}
    confusion = {"round": 3, "class_names": ["a", NASTY], "counts": [[4, 0], [2, 2]]}
    (folder / "holdings.json").write_text(json.dumps(holdings))
    (folder / "confusion.json").write_text(json.dumps(confusion))
    return folder


def test_accuracy_by_class_and_by_client(tmp_path: Path) -> None:
    folder = with_counts(written_run(tmp_path / "r"))
    page = report_page(open_run(folder))
    data = data_of(page)
    assert data["classes"]["accuracy"] == [1.0, 0.5]
    assert data["classes"]["counts"] == [[4, 0], [2, 2]]
    # The first client holds class a alone; of the other's records three of four are of class b.
    assert data["clients"]["accuracy"] == [1.0, 0.25 * 1.0 + 0.75 * 0.5]
    assert 'id="confusion"' in page
    assert NASTY not in page


def test_a_private_run_shows_no_class_and_no_client(tmp_path: Path) -> None:
    folder = with_counts(written_run(tmp_path / "r"))
    with (folder / "config.toml").open("a") as file:
        file.write("[privacy]\nsigma = 1.0\n")
    page = report_page(open_run(folder))
    assert data_of(page)["classes"] is None
    assert data_of(page)["clients"]["accuracy"] is None
    assert 'id="confusion"' not in page
    assert 'id="by-client"' not in page


def test_a_run_keeps_its_confusion_matrix(run: Path) -> None:
    found = json.loads((run / "confusion.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    right = sum(row[i] for i, row in enumerate(found["counts"]))
    assert found["round"] == 2
    assert sum(map(sum, found["counts"])) == 20  # all test records
    assert right / 20 == pytest.approx(summary["accuracy"])


def test_a_class_without_test_records_has_no_accuracy(tmp_path: Path) -> None:
    folder = with_counts(written_run(tmp_path / "r"))
    confusion = {"round": 3, "class_names": ["a", "b"], "counts": [[3, 1], [0, 0]]}
    (folder / "confusion.json").write_text(json.dumps(confusion))
    data = data_of(report_page(open_run(folder)))
    assert data["classes"]["accuracy"] == [0.75, None]
    assert data["clients"]["accuracy"] == [0.75, 0.75]
    for odd in ([[1]], [[1, 2]], [], [[-1, 2], [3, 10**400]]):
        (folder / "confusion.json").write_text(json.dumps({**confusion, "counts": odd}))
        report_page(open_run(folder)).encode()


def test_settings_that_depart_from_the_defaults_are_in_view(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "r")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('"fedavg"', '"fedavg"\nlocal_epochs = 7'))
    found = {key: (value, usual) for key, value, usual in departures(open_run(folder))}
    assert found["method.local_epochs"] == ("7", "1")
    assert found["rounds"] == ("3", "20")
    assert "seed" not in found
    assert '<td data-head="setting">method.local_epochs</td>' in report_page(open_run(folder))


@pytest.mark.parametrize(
    ("status", "offered"),
    [("interrupted", True), ("failed", True), ("done", False), ("running", False)],
)
def test_the_command_that_resumes(tmp_path: Path, status: str, offered: bool) -> None:
    folder = written_run(tmp_path / "a run", summary={"status": status})
    page = html.unescape(report_page(open_run(folder)))
    assert (f"fedstill run --resume --out '{folder}'" in page) == offered


def test_contents_lead_to_the_sections(run: Path) -> None:
    page = (run / "report.html").read_text()
    contents = page[page.index('<nav class="contents"') : page.index("</nav>")]
    names = re.findall(r'href="#([a-z]+)"', contents)
    assert len(names) > 8
    assert names == re.findall(r'<section id="([a-z]+)"', page)


def test_the_forecast_stands_beside_what_was_measured(run: Path, tmp_path: Path) -> None:
    page = (run / "report.html").read_text()
    expected = json.loads((run / "forecast.json").read_text())
    rows = re.findall(r'<td data-head="per round">(.*?)</td>', page)
    assert rows == ["forecast", "measured, mean", "FedAvg&#39;s"]
    assert f">at most {in_bytes(expected['up_bytes'])}<" in page

    folder = written_run(tmp_path / "dear")
    made = {"clients": 2, "up_bytes": 9_000, "down_bytes": 3_000, "memory_bytes": 10**9}
    fedavg = {"fedavg_up_bytes": 500, "fedavg_down_bytes": 500, "at_most": False}
    warning = "the images cost <b>18</b> times"
    (folder / "forecast.json").write_text(json.dumps({**made, **fedavg, "warning": warning}))
    page = report_page(open_run(folder))
    assert "the images cost &lt;b&gt;18&lt;/b&gt; times" in page
    assert ">9.0 kB<" in page
    assert ">1.0 kB<" in page  # measured
    assert "memory about 1.0 GB" in page

    (folder / "forecast.json").write_text('{"clients": "two"}')
    page = report_page(open_run(folder))
    assert "forecast.json cannot be read" in page
    assert "measured, mean" not in page


def test_matching_loss_is_explained(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert "matching loss" in page
    assert "it may rise" in page


def test_epsilon_in_words() -> None:
    assert "at most 2.7 " in epsilon_explained(1.0, 1e-5)
    assert "a chance of 1e-05" in epsilon_explained(1.0, 1e-5)
    assert "a strong" in epsilon_explained(0.5, None)
    assert "a weak" in epsilon_explained(50.0, None)
    assert "millions" in epsilon_explained(1000.0, None)


def test_the_command_asks_for_the_same_run(tmp_path: Path) -> None:
    import shlex
    import tomllib

    from fedstill.config import resolve
    from fedstill.config.nested import nested, parse_override

    settings = {"method.mu": 0.5, "wire.up": "float16+zstd"}
    options: dict[str, Any] = {"rounds": 1, "clients": 2, "model": "mlp", "seed": 3}
    fedstill.run("fedprox", out=tmp_path / "r", workers=1, set=settings, **options)
    asked = shlex.split(command(open_run(tmp_path / "r")))
    assert asked[:3] == ["fedstill", "run", "fedprox"]
    pairs = list(zip(asked[3::2], asked[4::2], strict=True))
    assert sorted(pairs) == [
        ("--clients", "2"),
        ("--model", "mlp"),
        ("--rounds", "1"),
        ("--seed", "3"),
        ("--set", "method.mu=0.5"),
        ("--set", "wire.up=float16+zstd"),
    ]
    request = nested(dict(parse_override(v) for k, v in pairs if k == "--set"))
    request["method"]["name"] = "fedprox"
    again = resolve({**request, **options, "engine": {"workers": 1}}).table
    assert again == tomllib.loads((tmp_path / "r" / "config.toml").read_text())


def test_looking_at_a_run_imports_nothing_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    folder = written_run(tmp_path / "r", method="evil:Method")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('"mlp"', '"evil:network"'))
    asked = command(open_run(folder))
    assert asked.startswith("fedstill run evil:Method --rounds 3")
    assert "--model evil:network" in asked
    assert "evil" not in sys.modules


def test_the_sentence(tmp_path: Path) -> None:
    assert sentence(open_run(written_run(tmp_path / "r"))) == (
        "2 clients (records partitioned evenly) trained a mlp with fedavg on digits: after 3 "
        "rounds it reaches 80.00% test accuracy, with 3.0 kB uploaded and 9.0 kB downloaded in "
        "6.0 s of computing."
    )


def test_tiles_hold_the_images(run: Path) -> None:
    """Undoing the stretching gives the pixels back, to a step of 255."""
    import io

    import numpy as np
    from PIL import Image

    files = sorted((run / "synthetic").glob("*"))
    found = sprites.synthetic_pages(files, [])
    assert found
    stored = load_set(files[1])
    page = found["rounds"][1]
    sheet = np.array(Image.open(io.BytesIO(base64.b64decode(page["png"]))), dtype=np.float32)
    undone = stored.metadata.scaling.undo(stored.images)
    for i, (client, label) in enumerate(zip(page["client"], page["label"], strict=True)):
        x = i % page["across"] * page["width"]
        tile = torch.from_numpy(sheet[: page["height"], x : x + page["width"]]) / 255
        value = page["low"][i] + tile * (page["high"][i] - page["low"][i])
        images = undone[(stored.clients == client) & (stored.labels == label), 0]
        assert ((images - value).abs().amax((1, 2)) < 0.01).any()


def test_histograms_count_every_pixel(run: Path) -> None:
    found = sprites.synthetic_pages(sorted((run / "synthetic").glob("*")), [])
    assert found
    for page in found["rounds"]:
        for shares in page["bars"].values():
            assert sum(shares) == pytest.approx(1000, abs=16)


def large_round(path: Path, number: int, clients: int, classes: int, each: int) -> Path:
    generator = torch.Generator().manual_seed(number)
    sets = {
        c: SyntheticSet(
            torch.randn(classes * each, 1, 28, 28, generator=generator),
            torch.arange(classes).repeat(each),
        )
        for c in range(clients)
    }
    about = SetMetadata(
        "feddm", number, "x", tuple(map(str, range(classes))), (0.1,), (0.3,), (1, 28, 28)
    )
    file = path / f"round-{number:04d}.safetensors"
    save_sets(file, sets, about)
    return file


def test_many_images_are_thinned_out_to_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sprites, "BUDGET", 40_000)
    files = [large_round(tmp_path, n, clients=2, classes=2, each=4) for n in range(1, 7)]
    found = sprites.synthetic_pages(files, [])
    assert found
    assert found["images"] == 2  # of four: 2 * 2 * 784 * 6 rounds fit twice into the budget
    assert sum(len(r["png"]) for r in found["rounds"]) < 40_000 * 4 / 3 * 1.1
    monkeypatch.setattr(sprites, "BUDGET", 10_000)
    found = sprites.synthetic_pages(files, [])
    assert found
    assert found["images"] == 1
    assert [r["round"] for r in found["rounds"]] == [1, 3, 6]


def test_a_damaged_set_is_told_and_the_others_shown(tmp_path: Path) -> None:
    files = [large_round(tmp_path, n, clients=1, classes=2, each=1) for n in (1, 2)]
    files[0].write_bytes(b"rubbish")
    notes: list[str] = []
    found = sprites.synthetic_pages(files, notes)
    assert found
    assert [r["round"] for r in found["rounds"]] == [2]
    assert notes[0].startswith("synthetic/round-0001.safetensors: not a file of synthetic sets")
