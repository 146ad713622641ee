from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedstill.draw.sets import clipped, draw_round, show, stretched
from fedstill.errors import RequestError
from fedstill.records import SyntheticSet
from fedstill.runs.sets import SetMetadata, StoredSet, save_sets


def about(shape: tuple[int, ...] = (1, 4, 4), classes: int = 3) -> SetMetadata:
    channels = shape[0]
    names = tuple(f"class {i} with a name that is much too long" for i in range(classes))
    return SetMetadata("feddm", 2, "toy", names, (0.5,) * channels, (0.25,) * channels, shape)


def stored(shape: tuple[int, ...] = (1, 4, 4), clients: int = 2) -> StoredSet:
    number = 4 * clients
    images = torch.linspace(-4, 4, number * 16 * shape[0]).view(number, *shape)
    labels = torch.tensor([0, 0, 2, 2]).repeat(clients)
    owners = torch.arange(clients, dtype=torch.int32).repeat_interleave(4)
    return StoredSet(images, labels, owners, about(shape))


def test_a_sheet_for_each_client_and_an_overview(tmp_path: Path) -> None:
    paths = draw_round(stored(), tmp_path)
    assert [p.name for p in paths] == [
        "round-0002.png",
        "round-0002-client-000.png",
        "round-0002-client-001.png",
    ]
    for path in paths:
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"
            assert 100 < image.width < 4000
            colours = image.convert("RGB").getcolors(1 << 20)
            assert colours is not None
            assert len(colours) > 5


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 4, 6), (1, 200, 200)])
def test_colour_odd_channels_and_large_images(shape: tuple[int, ...], tmp_path: Path) -> None:
    images = torch.rand(4, *shape)
    sheet = StoredSet(
        images, torch.tensor([0, 0, 2, 2]), torch.zeros(4, dtype=torch.int32), about(shape)
    )
    assert len(draw_round(sheet, tmp_path)) == 2


def test_many_clients_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heights = []
    monkeypatch.setattr("fedstill.draw.sets._MOST_DOWN", 8)
    for clients in (8, 10):
        with Image.open(draw_round(stored(clients=clients), tmp_path)[0]) as image:
            heights.append(image.height)
    assert heights[0] == heights[1]


def test_soft_labels_are_sorted_by_their_largest_share(tmp_path: Path) -> None:
    hard = stored()
    soft = torch.nn.functional.one_hot(hard.labels, 3).float() * 0.8 + 0.05
    sheet = StoredSet(hard.images, soft, hard.clients, hard.metadata)
    before = [p.read_bytes() for p in draw_round(hard, tmp_path / "hard")]
    assert [p.read_bytes() for p in draw_round(sheet, tmp_path / "soft")] == before


def test_tones() -> None:
    pixels = torch.tensor([[[[-1.0, 0.5, 3.0]]], [[[2.0, 2.0, 2.0]]]])
    assert clipped(pixels).flatten().tolist() == [0, 0.5, 1, 1, 1, 1]
    assert stretched(pixels).flatten().tolist() == [0, 0.375, 1, 0.5, 0.5, 0.5]


def test_show_draws_every_round_of_a_run(tmp_path: Path) -> None:
    one = {0: SyntheticSet(torch.zeros(1, 1, 4, 4), torch.tensor([1]))}
    for number in (1, 2):
        path = tmp_path / "synthetic" / f"round-{number:04d}.safetensors"
        description = about()
        save_sets(path, one, SetMetadata(**{**vars(description), "round": number}))
    assert len(show(tmp_path)) == 4
    assert (tmp_path / "pictures" / "round-0001.png").exists()
    assert show(tmp_path, tmp_path / "elsewhere")[0].parent.name == "elsewhere"


def test_a_run_without_sets_and_inputs_that_are_no_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no synthetic sets"):
        show(tmp_path)
    vectors = StoredSet(
        torch.zeros(1, 5), torch.tensor([0]), torch.zeros(1, dtype=torch.int32), about((5,))
    )
    with pytest.raises(RequestError, match="not pictures"):
        draw_round(vectors, tmp_path)


def test_chosen_rounds_and_clients(tmp_path: Path) -> None:
    for number in (1, 2):
        sets = {client: stored().of(client) for client in (0, 1)}
        metadata = replace(about(), round=number)
        save_sets(tmp_path / "synthetic" / f"round-000{number}.safetensors", sets, metadata)
    seen: list[tuple[int, int]] = []
    paths = show(tmp_path, rounds=[2], clients=[1], progress=lambda *at: seen.append(at))
    assert [p.name for p in paths] == ["round-0002-client-001.png"]
    assert seen == [(1, 1)]
    assert len(show(tmp_path)) == 6
    with pytest.raises(RequestError, match=r"--round 7: no set of that round; .* rounds 1, 2"):
        show(tmp_path, rounds=[7])
    with pytest.raises(RequestError, match=r"--client 5: sent no set in round 1; .* of 0, 1"):
        show(tmp_path, clients=[5])
    with pytest.raises(RequestError, match="no such folder; name a run folder"):
        show(tmp_path / "nowhere")
