"""Runs side by side."""

import csv
import json
import re
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomli_w
from PIL import Image

from fedstill.errors import RequestError
from fedstill.report.compare_page import compare_page, free_name, staircase, write_comparison
from fedstill.report.comparison import compare
from fedstill.report.table import as_latex, as_markdown, columns, fitting, shown
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
        "partition iid",
        "partition classes:2",
    ]


def with_settings(folder: Path, **sections: Mapping[str, object]) -> Path:
    """A run with these settings more: ``method={"mu": 1}``."""
    config = folder / "config.toml"
    table = tomllib.loads(config.read_text())
    for name, settings in sections.items():
        table[name] = {**table.get(name, {}), **settings}
    config.write_text(tomli_w.dumps(table))
    return folder


def test_names_hold_only_what_differs_and_epsilon_is_a_column(tmp_path: Path) -> None:
    each = {"momentum": 0.9}
    folders = [
        with_settings(written_run(tmp_path / "a"), method={**each, "local_epochs": 1}),
        with_settings(written_run(tmp_path / "b"), method={**each, "local_epochs": 2}),
        with_settings(
            written_run(tmp_path / "c", each={"epsilon": 3.0}, summary={"epsilon": 3.0}),
            method={**each, "local_epochs": 1, "weighting": "uniform"},  # a private default
            privacy={"epsilon": 3.0, "sigma": 1.1, "clip": 1.0, "delta": 1e-5},
        ),
        written_run(tmp_path / "d", method="feddm"),
    ]
    found = compare(folders)
    assert [e.label for e in found.entries] == [
        "fedavg, local_epochs 1",
        "fedavg, local_epochs 2",
        "fedavg",
        "feddm",
    ]
    head, rows = shown(found)
    assert [row[head.index("epsilon")] for row in rows] == ["-", "-", "3.00", "-"]


def test_defaults_that_follow_from_the_method_are_in_no_name(tmp_path: Path) -> None:
    """FedDM sends images in 8 bits, FedAvg weights in 32: nobody chose that."""
    folders = [
        with_settings(written_run(tmp_path / "a"), wire={"up": "float32"}),
        with_settings(written_run(tmp_path / "b", method="feddm"), wire={"up": "bits8+zstd"}),
        with_settings(written_run(tmp_path / "c", method="fedprox"), wire={"up": "float16"}),
    ]
    assert [e.label for e in compare(folders[:2]).entries] == ["fedavg", "feddm"]
    assert [e.label for e in compare(folders).entries] == [
        "fedavg, wire.up float32",
        "feddm, wire.up bits8+zstd",
        "fedprox, wire.up float16",
    ]


def test_a_network_that_the_method_prefers_is_in_no_name(tmp_path: Path) -> None:
    """`analytic` is a linear classifier; the other's network follows from its data."""
    folders = [
        with_settings(written_run(tmp_path / "a"), model={"name": "mlp"}),
        with_settings(written_run(tmp_path / "b", method="analytic"), model={"name": "linear"}),
    ]
    assert [e.label for e in compare(folders).entries] == ["fedavg", "analytic"]
    folders.append(with_settings(written_run(tmp_path / "c"), model={"name": "convnet"}))
    assert [e.label for e in compare(folders).entries] == [
        "fedavg, model mlp",
        "analytic",
        "fedavg, model convnet",
    ]


def test_equal_names_are_told_apart_by_the_first_thing_that_differs(tmp_path: Path) -> None:
    private = {"epsilon": 2.0, "sigma": 1.0}
    folders = [
        written_run(tmp_path / "a", accuracy=[0.5]),
        written_run(tmp_path / "b", accuracy=[0.5, 0.6]),
        with_settings(
            written_run(tmp_path / "c", summary={"epsilon": 2.0}, each={"epsilon": 2.0}),
            privacy=private,
        ),
    ]
    assert [e.label for e in compare(folders[:2]).entries] == [
        "fedavg, rounds 1",
        "fedavg, rounds 2",
    ]
    assert [e.label for e in compare(folders[1:]).entries] == [
        "fedavg, no privacy",
        "fedavg, epsilon 2",
    ]


def test_the_lead_counts_runs_and_compares_bytes_at_equal_accuracy(
    folders: list[Path], tmp_path: Path
) -> None:
    idle = written_run(tmp_path / "idle", accuracy=[0.1], method="real", each={"up_bytes": 1})
    page = compare_page(compare([*folders, idle], 0.6), tmp_path)
    assert "<h1>4 runs on digits</h1>" in page  # two of them are seeds of one
    assert "To reach 60%, which 2 of 3 did" in page
    assert "“fedprox” uploaded the fewest bytes: 1.0 kB" in page  # not the idle one
    one = compare_page(compare([idle]), tmp_path)
    assert "<h1>1 run of real on digits</h1>" in one
    assert "fewest" not in one


def test_the_table_fits_into_80_columns(tmp_path: Path) -> None:
    folders = [
        with_settings(
            written_run(tmp_path / str(n), seed=n % 2, accuracy=[0.5 + n / 100] * 3),
            method={"a_setting_with_a_long_name": n // 2, "another_one": f"value-{n // 2}"},
        )
        for n in range(4)
    ]
    found = compare(folders)
    for width in (60, 80, 120, 300):
        wanted, widths = fitting(found, width)
        assert sum(widths) + 2 * (len(widths) - 1) <= width
        heads = [column.head for column in wanted]
        assert heads[0] == "run"
        assert "accuracy" in heads
    assert len(heads) == len(columns(found))  # on a wide terminal nothing is left out


def test_nothing_is_overwritten(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert free_name(out) == out
    write_comparison(compare(folders), out)
    before = out.read_bytes()
    assert free_name(out) == tmp_path / "page-2.html"
    with pytest.raises(RequestError, match=r"page\.html exists.*--overwrite"):
        write_comparison(compare(folders[:1]), out)
    assert out.read_bytes() == before
    out.unlink()
    with pytest.raises(RequestError, match=r"page\.csv exists"):  # the other files count too
        write_comparison(compare(folders[:1]), out)
    write_comparison(compare(folders[:1]), out, overwrite=True)
    assert out.read_bytes() != before
    assert free_name(out, overwrite=True) == out


def test_a_folder_of_runs_stands_for_all_of_them(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "elsewhere").symlink_to(folders[0])
    found = compare([tmp_path])
    assert found.runs == 3
    assert not found.left_out


def test_reports_are_linked(folders: list[Path], tmp_path: Path) -> None:
    nasty = written_run(tmp_path / 'x" onclick="alert(1)', method="real")
    for run in (folders[0], nasty):
        (run / "report.html").write_text("x")
    page = compare_page(compare([*folders, nasty]), tmp_path / "pages")
    links = re.findall(r'<a href="(\./[^"]*)"', page)
    assert links == ["./../a0/report.html", "./../x%22%20onclick%3D%22alert%281%29/report.html"]
    assert 'onclick="alert' not in page


def test_the_front_is_a_staircase() -> None:
    assert staircase([]) == []
    assert staircase([(1.0, 0.5)]) == [(1.0, 0.5)]
    assert staircase([(1.0, 0.5), (3.0, 0.8), (4.0, 0.9)]) == [
        (1.0, 0.5),
        (3.0, 0.5),
        (3.0, 0.8),
        (4.0, 0.8),
        (4.0, 0.9),
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
    assert all(text.split(":")[0] in compare_page(found, tmp_path) for text in found.left_out)
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
    page = compare_page(compare(folders), folders[0].parent)
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
