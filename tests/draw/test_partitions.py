"""The partition as a picture and as a table."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from fedstill.data import DataSettings, load
from fedstill.draw.colours import NOTHING, shade, short_number
from fedstill.draw.partitions import partition_picture
from fedstill.draw.samples import samples_picture
from fedstill.draw.terminal import partition_table
from fedstill.errors import RequestError
from fedstill.testing import toy_text


def counts(clients: int, classes: int) -> np.ndarray:
    table = np.random.default_rng(0).integers(0, 500, (clients, classes))
    table[0, 0] = 0
    table[-1] = 0  # an empty client
    return table


def printed(clients: int, classes: int, width: int = 80) -> str:
    console = Console(width=width, record=True, no_color=True, file=io.StringIO())
    names = [f"kind of thing {i}" for i in range(classes)]
    console.print(partition_table(torch.from_numpy(counts(clients, classes)), names))
    return console.export_text()


@pytest.mark.parametrize(
    ("clients", "classes"), [(1, 1), (5, 10), (40, 10), (100, 3), (300, 26), (2500, 10), (6, 120)]
)
def test_a_picture_of_any_size(tmp_path: Path, clients: int, classes: int) -> None:
    path = tmp_path / "new" / "partition.png"
    names = [f"class {i}" * (1 + i % 3 * 8) for i in range(classes)]
    partition_picture(counts(clients, classes), names, path, subtitle="dirichlet:0.1")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width >= 1000
        assert image.height < 3000
        assert len(image.getcolors(1 << 24) or []) > 20
    assert [p.name for p in path.parent.iterdir()] == ["partition.png"]


def test_the_picture_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        partition_picture(torch.from_numpy(counts(5, 4)), list("abcd"), tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_table_holds_every_count() -> None:
    text = printed(10, 10)
    assert max(len(line) for line in text.splitlines()) <= 80
    table = counts(10, 10)
    for client, row in enumerate(table):
        line = next(x for x in text.splitlines() if x.split()[:1] == [str(client)])
        cells = line.split()[1:11]
        assert cells == [str(count) if count else "·" for count in row]
        assert line.split()[11] == f"{row.sum():,}"


def test_long_tables_are_cut_in_the_middle() -> None:
    text = printed(100, 10)
    assert "75 left out" in text
    shown = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert [n for n in shown if n.isdigit()] == [str(n) for n in [*range(20), *range(95, 100)]]
    assert "left out" not in printed(40, 10)


def test_many_classes_become_a_strip() -> None:
    text = printed(6, 100)
    assert "100 classes" in text
    assert "▓" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_colours_deepen() -> None:
    assert shade(0) == NOTHING
    lightness = [sum(shade(level)) for level in np.linspace(0.01, 1, 50)]
    assert lightness == sorted(lightness, reverse=True)
    assert shade(2.0) == shade(1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (1234, "1.2k"),
        (60_000, "60k"),
        (999_999, "1M"),
        (1_500_000, "1.5M"),
    ],
)
def test_short_numbers(value: int, text: str) -> None:
    assert short_number(value) == text


def test_a_picture_of_every_domain(tmp_path: Path) -> None:
    data = load(DataSettings(name="digit-domains", domains=("plain", "inverted")))
    samples_picture(data, tmp_path / "domains.png")
    with Image.open(tmp_path / "domains.png") as image:
        assert image.width > 10 * image.height / 4
        pixels = np.asarray(image.convert("L")).astype(int)
    left = image.width - 2 * (24 + 47 * 10)
    rows = [pixels[2 * (72 + 47 * row) :, left:][:88, :88] for row in range(2)]
    assert np.array_equal(rows[0], 255 - rows[1])  # the first digit, and the same in black
    with pytest.raises(RequestError, match="are not pictures"):
        samples_picture(toy_text().data, tmp_path / "text.png")


def test_tables_and_pictures_say_what_is_counted(tmp_path: Path) -> None:
    console = Console(width=80, record=True, no_color=True, file=io.StringIO())
    console.print(partition_table(counts(3, 4), list("abcd"), unit="tokens"))
    text = console.export_text()
    assert "tokens" in text
    assert "records" not in text
    partition_picture(counts(3, 4), list("abcd"), tmp_path / "t.png", unit="tokens")
    partition_picture(counts(3, 4), list("abcd"), tmp_path / "r.png")
    assert (tmp_path / "t.png").read_bytes() != (tmp_path / "r.png").read_bytes()
