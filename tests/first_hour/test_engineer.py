"""The first hour of an engineer: own data in many forms, own network, to a report and a model."""

import json
import shutil
from pathlib import Path

import pytest

from tests.first_hour.desk import Desk

HERE = Path(__file__).parent
OWNED = "3 clients, natural: one per"
NAMES = "(east, north, west)"
THREE = "--clients 3 --partition iid"
# What is on disk, the options it takes, and what the run's first lines must say.
FORMS = {
    "photos": (THREE, ["3 clients, iid", "every fifth"]),
    "split": (THREE, ["3 clients, iid"]),
    "sites": ("", [OWNED, NAMES, "every fifth"]),
    "index.csv": (
        "--set data.image_column=photo --set data.label_column=kind "
        "--set data.client_column=hospital",
        [OWNED, NAMES, "held out"],
    ),
    "table.csv": (
        "--set data.label_column=kind --set data.client_column=hospital",
        [OWNED, NAMES, "held out", "mlp"],
    ),
    "hospitals": ("--set data.label_column=kind", [OWNED, NAMES, "held out", "mlp"]),
    "images.parquet": ("--set data.client_column=hospital", [OWNED, NAMES, "held out"]),
    "arrays.npz": (THREE, ["3 clients, iid"]),
}
IN_MEMORY = """
import json
import numpy as np, pyarrow.parquet as pq, torch
import fedstill

stored = np.load("arrays.npz")
x, y = stored["x_train"], stored["y_train"]
third = len(y) // 3
words = np.array(["round", "straight", "bent"])[y]
tensors = [
    torch.utils.data.TensorDataset(
        torch.from_numpy(x[k::3]).float()[:, None] / 255, torch.from_numpy(y[k::3])
    )
    for k in range(3)
]
forms = {
    "pair": (x, words),
    "four": (x, y, stored["x_test"], stored["y_test"]),
    "datasets": tensors,
    "by_name": {"ann": (x[:third], y[:third]), "ben": (x[third:], y[third:])},
    "arrow": pq.read_table("images.parquet").drop_columns("hospital"),
    "files": ["hospitals/east.csv", "hospitals/west.csv"],
}
for name, data in forms.items():
    alone = name in ("pair", "four", "arrow")
    options = {"clients": 3, "partition": "iid"} if alone else {}
    if name == "files":
        options["set"] = {"data.label_column": "kind"}
    result = fedstill.run(
        "fedavg", data=data, rounds=5, out=f"runs/memory-{name}", progress=False, **options
    )
    said = {"accuracy": result.summary.accuracy, "clients": result.summary.clients}
    print(json.dumps({"name": name, "classes": result.class_names, **said}))
"""
STEPS = (
    "--rounds 5 --set method.local_epochs=5 --set method.learning_rate=0.03 "
    "--set method.batch_size=16"
)
NETWORK = """
import torch
import fedstill
from my_resnet import ResNet

torch.manual_seed(0)
network = ResNet(1, 3)
assert any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
plain = fedstill.convert_norms(network, "group")
assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in plain.modules())
steps = {"method.local_epochs": 5, "method.learning_rate": 0.03, "method.batch_size": 16}
result = fedstill.run(
    "fedavg", data="sites", model=plain, rounds=5, set=steps, out="runs/resnet-python"
)
images = torch.stack([torch.zeros(8, 8), torch.ones(8, 8)])[:, None]
assert result.predict(images).shape == (2,)
trained = result.module()
logits = trained(result.inputs(images))
assert logits.argmax(1).tolist() == result.predict(images).tolist()
print(result.summary.accuracy)
"""


@pytest.fixture
def data(desk: Desk) -> Desk:
    desk.python((HERE / "write_data.py").read_text())
    return desk


@pytest.mark.slow
def test_own_data_in_eight_forms_to_reports(data: Desk) -> None:
    for number, (path, (options, told)) in enumerate(FORMS.items()):
        out = f"runs/form-{number}"
        said = data.command(f"fedstill run fedavg --data {path} --rounds 5 --out {out} {options}")
        told_in_one_line = " ".join(said.split())
        for words in told:
            assert words in told_in_one_line, f"{path}: {said}"
        summary = json.loads(data.file(f"{out}/summary.json"))
        assert summary["accuracy"] > 0.8, path  # three classes
        report = data.file(f"{out}/report.html")
        assert 'href="#classes"' in report
        assert "</html>" in report

    said = data.command("fedstill report runs/")
    index = data.file("runs/index.html")
    assert "index.html" in said
    for number in range(len(FORMS)):
        assert f"form-{number}" in index


@pytest.mark.slow
def test_own_data_in_memory(data: Desk) -> None:
    found = {}
    for line in data.python(IN_MEMORY).splitlines():
        run = json.loads(line)
        found[run["name"]] = run
        assert (data.folder / "runs" / f"memory-{run['name']}" / "report.html").exists()
        assert run["accuracy"] > 0.7, run
    clients = {name: run["clients"] for name, run in found.items()}
    three = dict.fromkeys(("pair", "four", "datasets", "arrow"), 3)
    assert clients == {**three, "by_name": 2, "files": 2}
    assert found["pair"]["classes"] == ["bent", "round", "straight"]


@pytest.mark.slow
def test_own_resnet_with_batch_norm(data: Desk) -> None:
    shutil.copy(HERE.parent / "models" / "resnets.py", data.folder / "my_resnet.py")
    run = "fedstill run fedavg --data sites --model my_resnet:resnet"
    refused = " ".join(data.command(run, code=2).split())
    assert "batch norm" in refused
    assert "model.norm" in refused
    for norm in ("group", "batch"):
        data.command(f"{run} {STEPS} --set model.norm={norm} --out runs/resnet-{norm}")
        summary = json.loads(data.file(f"runs/resnet-{norm}/summary.json"))
        assert summary["accuracy"] > 0.7, norm
    assert float(data.python(NETWORK)) > 0.7


@pytest.mark.slow
def test_distil_look_evaluate_and_export(data: Desk) -> None:
    short = "--rounds 2 --set method.iterations=20 --out runs/photos"
    said = data.command(f"fedstill run feddm --data sites {short}")
    assert "FedAvg:" in said  # the forecast
    data.command("fedstill show runs/photos --round 2 --client 1 --out pictures")
    assert list((data.folder / "pictures").glob("*.png"))
    said = data.command("fedstill evaluate runs/photos --networks 1 --epochs 20")
    assert "accuracy" in said
    data.command("fedstill export runs/photos --to folder --out small-photos")
    kinds = {path.name for path in (data.folder / "small-photos").rglob("*") if path.is_dir()}
    assert {"round", "straight", "bent"} <= kinds
    # What was exported is data in its turn.
    said = data.command(f"fedstill run fedavg --data small-photos {THREE} --rounds 1")
    assert "after 1 round," in said
