import warnings
from pathlib import Path
from typing import Any

import torch

from fedstill.methods.feddm import FedDM
from fedstill.methods.real import Real
from fedstill.runs.sets import load_set
from fedstill.testing import bits, toy_run


def test_real_is_feddm_without_iterations(tmp_path: Path) -> None:
    options: dict[str, Any] = {"images_per_class": 2, "server_epochs": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real = toy_run(Real(**options), tmp_path / "real")
        feddm = toy_run(FedDM(iterations=0, **options), tmp_path / "feddm")
    assert bits(real.state) == bits(feddm.state)
    assert [m.up_bytes for m in real.history] == [m.up_bytes for m in feddm.history]


def test_what_is_sent_are_records(tmp_path: Path) -> None:
    federation = toy_run(Real(images_per_class=2, server_epochs=1), tmp_path / "run", rounds=1)
    stored = load_set(tmp_path / "run" / "synthetic" / "round-0001.safetensors")
    for client in range(3):
        records, labels = federation.built.runner.records.of(client, federation.built.task).all()
        sent = stored.of(client)
        for image, label in zip(sent.images, sent.labels, strict=True):
            assert any(torch.equal(image, x) for x in records[labels == label])
