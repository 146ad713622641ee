"""Files of a run folder that were made to do harm."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save

from fedstill.data import Partition
from fedstill.errors import RequestError, RunError
from fedstill.privacy.ledger import Ledger
from fedstill.report import write_report
from fedstill.report.source import open_run
from fedstill.runs.checkpoint import Checkpoints
from fedstill.runs.folder import RunFolder
from fedstill.runs.metrics import RoundMetrics
from fedstill.runs.sets import load_set
from fedstill.wire.tree import MalformedError, unpack

DEEP = b"[" * 100_000
LONG = b'{"round": ' + b"9" * 5000 + b"}"
BAD = b'{"round": 1, "mechanism": "\xff\xfe"}'
HOSTILE = (DEEP, LONG, BAD, b"", b"null", b'{"round": {}}')


def set_file(path: Path, header: Any = None, **change: Any) -> Path:
    metadata = {
        "method": "feddm",
        "round": 1,
        "data": "toy",
        "class_names": ["a", "b"],
        "mean": [0.5],
        "std": [0.5],
        "shape": [1, 2, 2],
        **change,
    }
    tensors = {
        "images": torch.zeros(2, 1, 2, 2),
        "labels": torch.tensor([0, 1]),
        "client": torch.zeros(2, dtype=torch.int32),
    }
    text = json.dumps(metadata) if header is None else header
    path.write_bytes(save(tensors, metadata={"fedstill": text}))
    return path


def refused(path: Path) -> str:
    with pytest.raises(RequestError) as caught:
        load_set(path)
    return str(caught.value)


def test_sets_with_a_hostile_header(tmp_path: Path) -> None:
    path = tmp_path / "set.safetensors"
    assert len(load_set(set_file(path))) == 2
    for header in (DEEP.decode(), '{"round": ' + "9" * 5000 + "}", "null", "[]", "", "{}"):
        assert "not a file of synthetic sets" in refused(set_file(path, header))
    assert "no readable name" in refused(set_file(path, class_names=["a", "\x1b[2J"]))
    assert "no readable name" in refused(set_file(path, data="toy\x1b]0;x\x07"))
    assert "shape" in refused(set_file(path, shape=[1, 10**9, 10**9]))
    assert "not a file of synthetic sets" in refused(set_file(path, shape=[-1, -2, -2]))


def test_safetensors_files_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "lie.safetensors"
    entry = {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}
    cases = [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 100) + b"{}",
        *(struct.pack("<Q", len(h)) + h for h in (json.dumps({"images": entry}).encode(), DEEP)),
        b"",
        b"\x00" * 7,
    ]
    for data in cases:
        path.write_bytes(data)
        assert "not a file of synthetic sets" in refused(path)
        with pytest.raises(MalformedError):
            unpack(data)
        with pytest.raises(RequestError, match="not a readable partition"):
            Partition.load(path)


def test_manifests_summaries_and_metrics(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    for data in HOSTILE:
        (tmp_path / "checkpoint" / "round-0001.json").write_bytes(data)
        assert Checkpoints(tmp_path / "checkpoint").load() is None
        (tmp_path / "summary.json").write_bytes(data)
        with pytest.raises(RunError, match=r"summary\.json"):
            folder.read_summary()
        (tmp_path / "metrics.jsonl").write_bytes(data + b"\n")
        assert folder.read_metrics() == []


def test_a_ledger_counts_a_hostile_line_as_an_access(tmp_path: Path) -> None:
    path = tmp_path / "client-00000.jsonl"
    path.write_bytes(b"\n".join((DEEP, LONG, BAD, b"null", b"")))
    assert Ledger(path, 0.1, 1.0).count == 4


def test_a_page_of_numbers_that_cannot_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('method = "fedavg"\n')
    good = RoundMetrics(1, 0.5, 1.0, 10, 10, 1.0, None, [0])
    lines = [replace(good, round=2, up_bytes=10**400), replace(good, round=3, clients=[2**70])]
    text = b"\n".join(map(msgspec.json.encode, (good, *lines)))
    odd = msgspec.json.encode(good).replace(b'"seconds":1.0', b'"seconds":"inf"')
    (tmp_path / "metrics.jsonl").write_bytes(text + b"\n" + odd.replace(b'"round":1', b'"round":4'))
    (tmp_path / "summary.json").write_text('{"seconds": 1e999, "model_size": ' + "9" * 400 + "}")
    page = write_report(tmp_path).read_text()
    assert "3 of 4 lines cannot be read" in page
    assert [m.round for m in open_run(tmp_path).rounds] == [1]


def test_a_page_of_a_hostile_folder(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('method = "fedavg"\n')
    names = (
        "summary.json",
        "holdings.json",
        "confusion.json",
        "metrics.jsonl",
        "sessions.jsonl",
        "forecast.json",
    )
    for data in HOSTILE:
        for name in names:
            (tmp_path / name).write_bytes(data)
        assert "fedavg" in write_report(tmp_path).read_text()
    (tmp_path / "config.toml").write_bytes(b"a = " + DEEP)
    assert "config.toml cannot be read" in write_report(tmp_path).read_text()
