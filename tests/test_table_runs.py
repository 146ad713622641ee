"""Runs on tables of numbers and categories: clients, models, privacy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstill
from fedstill.config import resolve
from fedstill.config.resolve import resolve_partitioning
from fedstill.errors import RequestError
from fedstill.observe.observer import Observer
from fedstill.observe.progress import title

HOSPITALS = ("east", "north", "west")
PUBLIC = {"data.ranges": {"age": [20, 80], "dose": [0, 10]}, "data.categories": {"sex": ["f", "m"]}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Three hospitals; who is old and has a high dose is sick."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for name in HOSPITALS:
        lines = ["age,dose,sex,sick,split"]
        for row in range(60):
            age, dose = generator.uniform(20, 80), generator.uniform(0, 10)
            sick = "yes" if (age - 50) / 30 + (dose - 5) / 5 > 0 else "no"
            split = "test" if row % 4 == 0 else "train"
            lines.append(f"{age:.1f},{dose:.2f},{'fm'[row % 2]},{sick},{split}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def run(method: str, data: Path, out: Path, **options: Any) -> fedstill.Result:
    given = {"data.label_column": "sick", "data.split_column": "split", **options.pop("set", {})}
    return fedstill.run(method, data=data, out=out, workers=1, set=given, **options)


def test_every_file_is_a_client_and_the_first_line_says_so(hospitals: Path, tmp_path: Path) -> None:
    result = run("fedavg", hospitals, tmp_path / "run", rounds=15, set={"method.local_epochs": 3})
    summary = result.summary
    assert (summary.clients, summary.partition, summary.model) == (3, "natural", "mlp")
    assert title(summary).startswith(
        "fedavg on hospitals: 3 clients, natural: one per file (east, north, west), mlp ("
    )
    assert summary.accuracy is not None
    assert summary.accuracy > 0.85
    assert set(result.metrics[-1].details) == {f"accuracy/{name}" for name in HOSPITALS}


def test_distilled_rows(hospitals: Path, tmp_path: Path) -> None:
    options = {"model.width": 16, "method.images_per_class": 5, **PUBLIC}
    result = run("feddm", hospitals, tmp_path / "run", rounds=2, set=options)
    stored = fedstill.load_set(result.folder)
    assert stored.images.shape == (30, 4)
    assert result.summary.accuracy is not None
    assert result.summary.accuracy > 0.8
    assert (result.folder / "report.html").is_file()


def test_rows_are_not_augmented(hospitals: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"method\.augment = 'dsa'.*set method\.augment=none"):
        run("fedgloss", hospitals, tmp_path / "run", rounds=1)


@pytest.mark.parametrize("model", ["convnet", "resnet18"])
def test_a_network_for_images_is_refused(hospitals: Path, tmp_path: Path, model: str) -> None:
    with pytest.raises(RequestError, match=r"needs images, not inputs of shape \(4,\); use mlp"):
        run("fedavg", hospitals, tmp_path / "run", model=model)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({}, r"data\.ranges: column 'age' \(and 2 more columns\): its range was computed from the"),
        ({"data.ranges": PUBLIC["data.ranges"]}, r"data\.categories: column 'sex'"),
        ({**PUBLIC, "hole": True}, r"data\.missing: column 'age'"),
    ],
)
def test_where_privacy_is_on_nothing_is_computed_from_the_records(
    hospitals: Path, tmp_path: Path, declared: dict[str, Any], said: str
) -> None:
    declared = dict(declared)
    if declared.pop("hole", False):
        path = hospitals / "east.csv"
        path.write_text(path.read_text() + ",1.0,f,no,train\n")
    settings = {"privacy.public_size": 40, **declared}
    with pytest.raises(RequestError, match=said):
        run("fedavg", hospitals, tmp_path / "run", epsilon=3.0, set=settings)
    assert not (tmp_path / "run").exists()
    if "data.ranges" in declared:
        # privacy.scaling is about data.mean and data.std, which the user computes
        settings["privacy.scaling"] = "public"
        with pytest.raises(RequestError, match=said):
            run("fedavg", hospitals, tmp_path / "run", epsilon=3.0, set=settings)


def test_a_private_run_with_declared_columns(hospitals: Path, tmp_path: Path) -> None:
    settings = {"privacy.public_size": 40, "model.width": 8, **PUBLIC}
    result = run("fedavg", hospitals, tmp_path / "run", rounds=2, epsilon=3.0, set=settings)
    assert result.summary.epsilon is not None
    assert 0 < result.summary.epsilon <= 3
    assert result.summary.owners == "one per file"  # without the names


def test_owners_decide_the_partition(hospitals: Path) -> None:
    def partition_of(**data: Any) -> str:
        return resolve({"method": "fedavg", "data": data}).partition

    one = str(hospitals / "east.csv")
    assert partition_of(name=one) == "dirichlet:0.1"
    assert partition_of(name=one, client_column="sex") == "natural"
    assert partition_of(name=str(hospitals)) == "natural"
    assert partition_of(name="digits") == "dirichlet:0.1"
    assert partition_of(name="hub:some/set", client_column="who") == "natural"
    chosen = {"method": "fedavg", "partition": "iid", "data": {"name": str(hospitals)}}
    assert resolve(chosen).partition == "iid"
    assert resolve_partitioning({"data": {"name": str(hospitals)}}).partition == "natural"


def test_owners_of_arrays_decide_the_partition(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    owners = np.repeat(["ann", "ben"], 20)
    data = fedstill.arrays(x, y, x, y, clients=owners)
    result = fedstill.run("fedavg", data=data, rounds=1, workers=1, out=tmp_path / "run")
    assert (result.summary.clients, result.summary.partition) == (2, "natural")
    assert result.summary.owners == "one per owner (ann, ben)"
    assert result.summary.model == "mlp"
    with pytest.raises(RequestError, match=r"has 2 clients.*choose another partition"):
        fedstill.run("fedavg", data=data, clients=10, out=tmp_path / "other")


def test_worker_processes_read_the_same_tables(hospitals: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data.label_column": "sick", "data.split_column": "split"}
    results = [
        fedstill.run(
            "fedavg", data=hospitals, rounds=2, workers=w, out=tmp_path / f"{w}", set=options
        )
        for w in (1, 2)
    ]
    assert results[0].summary.loss == results[1].summary.loss


def test_a_participation_of_one_client_is_said(tmp_path: Path) -> None:
    class Notes(Observer):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    for share, said in (
        (0.01, ["participation = 0.01 of 10 clients is one client per round"]),
        (0.2, []),
    ):
        notes = Notes()
        fedstill.run(
            "fedavg",
            participation=share,
            rounds=1,
            workers=1,
            out=tmp_path / str(share),
            observer=notes,
            set={"model.width": 4},
        )
        assert notes.notes == said
