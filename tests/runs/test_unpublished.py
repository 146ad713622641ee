"""What may be published of a private run does not depend on its records outside releases."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.data import Dataset
from fedstill.data.partition import Partition
from fedstill.errors import Interrupted, RequestError
from fedstill.observe.observer import Observer
from fedstill.privacy.mechanism import PrivateRecords
from fedstill.records import Records
from fedstill.report import write_report
from fedstill.report.comparison import compare
from fedstill.report.source import open_run
from fedstill.runs.folder import RunFolder
from fedstill.runs.provenance import Session
from fedstill.runs.sets import load_set
from fedstill.tune.vote import voters_of

SETTINGS: dict[str, Any] = {
    "model.width": 8,
    "privacy.sigma": 1.0,
    "privacy.sampling_rate": 0.5,
    "privacy.public_size": 20,
    "privacy.delta": 1e-4,
    "privacy.reproducible": True,
}
FAST: dict[str, Any] = {"rounds": 2, "workers": 1, "clients": 3, "model": "mlp"}
FEDDM = {
    **SETTINGS,
    "method.images_per_class": 1,
    "method.iterations": 2,
    "method.server_epochs": 1,
}


def dataset(records: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (80, 1, 4, 4), dtype=torch.uint8, generator=generator)
    y = torch.arange(80) % 4
    return fedstill.arrays(x[:records], y[:records], x[60:], y[60:], name="toy")


def public_files(folder: Path) -> dict[str, bytes]:
    """Everything but what is set apart."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    found = {str(p.relative_to(folder)): p.read_bytes() for p in files}
    return {name: data for name, data in found.items() if not name.startswith("unpublished/")}


@pytest.mark.parametrize(("method", "settings"), [("fedavg", SETTINGS), ("feddm", FEDDM)])
def test_a_record_more_changes_no_public_byte_but_through_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    """Where releases are noise alone, the folders of neighbouring data sets are the same."""

    def nothing(*_: Any) -> Iterator[Records]:
        return iter(())

    monkeypatch.setattr(PrivateRecords, "_sample", nothing)
    monkeypatch.setattr("fedstill.federation.time.monotonic", lambda: 0.0)
    session = Session("now", "fedstill.run(...)", {}, {})
    monkeypatch.setattr(sys.modules["fedstill.execute"], "this_session", lambda _device: session)
    folders = []
    for records in (60, 59):
        folders.append(tmp_path / str(records) / "run")
        fedstill.run(method, data=dataset(records), out=folders[-1], set=settings, **FAST)
    first, second = map(public_files, folders)
    assert {"summary.json", "metrics.jsonl", "report.html", "model.safetensors"} <= set(first)
    assert not {"holdings.json", "confusion.json"} & set(first)
    assert set(first) == set(second)
    for name in first:
        assert first[name] == second[name], name
    apart = [(f / "unpublished" / "digests.json").read_bytes() for f in folders]
    assert apart[0] != apart[1]  # the data do differ


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes."""
    out = tmp_path_factory.mktemp("runs") / "private"
    fedstill.run("feddm", out=out, set=FEDDM, **FAST)
    return out


def test_what_is_set_apart(private: Path) -> None:
    names = sorted(p.name for p in (private / "unpublished").iterdir())
    assert names == ["NOTE.txt", "digests.json", "partition.safetensors"]
    assert "Never publish" in (private / "unpublished" / "NOTE.txt").read_text()
    assert not (private / "partition.safetensors").exists()
    digests = json.loads((private / "unpublished" / "digests.json").read_text())
    for name, data in public_files(private).items():
        for digest in digests.values():
            assert digest.encode() not in data, name
    summary = json.loads((private / "summary.json").read_text())
    assert summary["data_sha256"] is None
    assert summary["partition_sha256"] is None
    assert summary["experiment_sha256"]


def test_a_public_run_keeps_all_in_one_place(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = fedstill.run("fedavg", out=out, set={"model.width": 8}, **FAST)
    assert not (out / "unpublished").exists()
    assert (out / "holdings.json").exists()
    assert (out / "confusion.json").exists()
    saved = Partition.load(out / "partition.safetensors")
    assert saved.digest == result.summary.partition_sha256
    assert RunFolder(out).read_digests().data_sha256 == result.summary.data_sha256


class Stop(Observer):
    def round_done(self, metrics: Any) -> None:
        raise KeyboardInterrupt


class Fail(Observer):
    def round_done(self, metrics: Any) -> None:
        raise ValueError("a record is quoted here")


def test_resuming_still_looks_at_the_data(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fedstill.run("fedavg", data=dataset(60), out=out, set=SETTINGS, observer=Stop(), **FAST)
    with pytest.raises(RequestError, match="the data are not those"):
        fedstill.run(data=dataset(59), out=out, resume=True)
    assert fedstill.run(data=dataset(60), out=out, resume=True).summary.status == "done"


def test_tracebacks_are_set_apart(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(fedstill.errors.RunError, match=r"unpublished/errors\.log"):
        fedstill.run("fedavg", out=out, set=SETTINGS, observer=Fail(), **FAST)
    assert "is quoted" in (out / "unpublished" / "errors.log").read_text()
    assert all(b"is quoted" not in data for data in public_files(out).values())


def test_votes_find_what_is_set_apart(private: Path, tmp_path: Path) -> None:
    stored = load_set(private)
    voters = voters_of(RunFolder(private), private, stored)
    assert len(voters.built.partition.owner) == 1438
    copy = tmp_path / "copy"
    shutil.copytree(private, copy)
    path = copy / "unpublished" / "digests.json"
    digests = json.loads(path.read_text())
    path.write_text(json.dumps({**digests, "data_sha256": "0" * 64}))
    with pytest.raises(RequestError, match="the data are not those"):
        voters_of(RunFolder(copy), copy, stored)


def as_before(private: Path, older: Path) -> dict[str, Any]:
    """The folder as earlier versions wrote it."""
    shutil.copytree(private, older)
    digests: dict[str, Any] = json.loads((older / "unpublished" / "digests.json").read_text())
    (older / "unpublished" / "partition.safetensors").rename(older / "partition.safetensors")
    shutil.rmtree(older / "unpublished")
    summary = json.loads((older / "summary.json").read_text())
    (older / "summary.json").write_text(json.dumps({**summary, **digests}))
    holdings = {"class_names": ["a"], "counts": [[7], [5], [3]], "test_records": 3}
    (older / "holdings.json").write_text(json.dumps(holdings))
    (older / "confusion.json").write_text('{"round": 1, "class_names": ["a"], "counts": [[7]]}')
    return digests


def test_older_folders_are_shown_without_and_tidied_when_resumed(
    private: Path, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    digests = as_before(private, older)
    page = write_report(older).read_text()
    assert not any(digest in page for digest in digests.values())
    assert open_run(older).holdings is None
    assert open_run(older).confusion is None
    fedstill.run(out=older, resume=True)
    assert not (older / "holdings.json").exists()
    assert not (older / "confusion.json").exists()
    assert (older / "unpublished" / "partition.safetensors").exists()
    for name, data in public_files(older).items():
        assert not any(digest.encode() in data for digest in digests.values()), name


def test_private_and_public_runs_on_the_same_data_are_compared(
    private: Path, tmp_path: Path
) -> None:
    as_before(private, tmp_path / "older")
    public, other = tmp_path / "public", tmp_path / "other"
    fedstill.run("fedavg", out=public, set={"model.width": 8}, **FAST)
    fedstill.run("fedavg", data=dataset(60), out=other, set={"model.width": 8}, **FAST)
    found = compare([private, public, other, tmp_path / "older"])
    assert sorted(r.path.name for e in found.entries for r in e.runs) == [
        "older",
        "private",
        "public",
    ]
    assert [reason for reason in found.left_out if "other data (toy)" in reason]
