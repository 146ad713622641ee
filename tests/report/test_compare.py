"""Runs side by side."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from fedstill.errors import RequestError
from fedstill.report.compare_page import compare_page, write_comparison
from fedstill.report.comparison import compare
from fedstill.report.table import as_latex, as_markdown, shown
from tests.report.folders import written_run


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [
        written_run(tmp_path / "a0", accuracy=[0.5, 0.7, 0.8]),
        written_run(tmp_path / "a1", accuracy=[0.4, 0.8, 0.9], seed=1),
        written_run(tmp_path / "b0", accuracy=[0.6, 0.65, 0.7], method="fedprox"),
    ]


def test_seeds_are_gathered(folders: list[Path]) -> None:
    found = compare(folders)
    assert [(e.label, len(e.runs)) for e in found.entries] == [("fedavg", 2), ("fedprox", 1)]
    both = found.entries[0]
    assert both.mean("accuracy") == pytest.approx(0.85)
    assert both.spread("accuracy") == pytest.approx(0.05 * 2**0.5)
    assert [(p.round, p.low, p.high) for p in both.points] == [
        (1, 0.4, 0.5),
        (2, 0.7, 0.8),
        (3, 0.8, 0.9),
    ]
    assert found.entries[1].spread("accuracy") is None


def test_cost_to_a_target(folders: list[Path]) -> None:
    found = compare(folders)
    assert found.target == 0.7  # the best that both reach
    assert shown(found)[1][0][-2:] == ["2", "2.0 kB"]
    assert shown(found)[1][1][-2:] == ["3", "3.0 kB"]
    point = found.entries[0].reached(0.75)
    assert point is not None
    assert (point.round, point.up_bytes) == (2, 2000)
    assert found.entries[1].reached(0.99) is None
    assert shown(compare(folders, 0.85))[0][-2:] == ["rounds to 85%", "up to 85%"]
    ends = {5: 0.6, 6: 0.7}  # whose mean comes out as a little less than 0.65
    seeds = [written_run(folders[0].parent / str(n), accuracy=[v], seed=n) for n, v in ends.items()]
    third = compare(seeds)
    assert third.target == 0.65
    assert third.entries[0].reached(0.65)
    with pytest.raises(RequestError, match="--target 70"):
        compare(folders, 70)


def test_labels_say_what_differs(tmp_path: Path) -> None:
    folders = [written_run(tmp_path / name) for name in "ab"]
    config = folders[1] / "config.toml"
    config.write_text(config.read_text().replace('"iid"', '"classes:2"'))
    assert [e.label for e in compare(folders).entries] == [
        "fedavg, partition iid",
        "fedavg, partition classes:2",
    ]


def test_the_front_is_where_nothing_is_better_for_fewer_bytes(tmp_path: Path) -> None:
    ends = {"fedavg": (0.9, 30), "feddm": (0.8, 10), "fedprox": (0.7, 20), "real": (0.9, 40)}
    folders = [
        written_run(tmp_path / m, accuracy=[end], method=m, each={"up_bytes": up})
        for m, (end, up) in ends.items()
    ]
    assert [e.label for e in compare(folders).front] == ["feddm", "fedavg"]


def test_what_cannot_be_compared_is_told_and_the_rest_shown(
    folders: list[Path], tmp_path: Path
) -> None:
    other = written_run(tmp_path / "other", data="letters")
    (tmp_path / "empty").mkdir()
    found = compare([*folders, other, tmp_path / "empty", tmp_path / "gone", folders[0]])
    assert sum(len(e.runs) for e in found.entries) == 3  # the same folder twice is one run
    left_out = " ".join(found.left_out)
    assert "other: on other data (letters) than the rest (digits)" in left_out
    assert "empty: an empty folder" in left_out
    assert "gone: no such folder" in left_out
    assert all(text.split(":")[0] in compare_page(found) for text in found.left_out)
    with pytest.raises(RequestError, match="no such folder"):
        compare([tmp_path / "gone"])


def test_an_unfinished_run_stands_beside_the_others(folders: list[Path], tmp_path: Path) -> None:
    begun = written_run(tmp_path / "begun", accuracy=[], method="real")
    (begun / "summary.json").unlink()
    found = compare([*folders, begun])
    rows = shown(found)[1]
    assert "on other data" in found.left_out[0]  # nothing says which data it has
    assert len(rows) == 2


def test_everything_is_written(folders: list[Path], tmp_path: Path) -> None:
    written = write_comparison(compare(folders), tmp_path / "out" / "page.html")
    assert [p.name for p in written] == [
        "page.html",
        "page.csv",
        "page.md",
        "page.tex",
        *(f"page-{n}.{s}" for n in ("accuracy", "bytes", "front") for s in ("svg", "png")),
    ]
    rows = list(csv.DictReader((tmp_path / "out" / "page.csv").open()))
    assert [row["run"] for row in rows] == ["fedavg", "fedprox"]
    assert float(rows[0]["accuracy"]) == pytest.approx(0.85)
    assert float(rows[0]["up"]) == 3000
    drawing = ElementTree.parse(tmp_path / "out" / "page-accuracy.svg")
    lines = [
        e for e in drawing.iter() if e.tag.endswith("polyline") and e.get("stroke") == "#11707e"
    ]
    assert lines
    with Image.open(tmp_path / "out" / "page-accuracy.png") as image:
        assert image.size == (1280, 800)
        colours = {colour for _, colour in image.getcolors(1 << 20) or []}
        assert (0x11, 0x70, 0x7E) in colours
    with pytest.raises(RequestError, match=r"must end in \.html"):
        write_comparison(compare(folders), tmp_path / "page.pdf")


def test_the_page_holds_every_seed(folders: list[Path]) -> None:
    page = compare_page(compare(folders))
    found = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert found
    data = json.loads(found[1])
    assert [[len(seed) for seed in e["seeds"]] for e in data["entries"]] == [[3, 3], [3]]
    assert data["front"] == [0]


def test_names_cannot_break_a_table() -> None:
    assert (
        as_markdown(["a|b", "n"], [["x_y*", "1"]])
        == "| a\\|b | n |\n|---|---:|\n| x\\_y\\* | 1 |\n"
    )
    assert r"50\% \& \textbackslash{}x & 1 \\" in as_latex(["a", "b"], [["50% & \\x", "1"]])
