"""Small run folders to read: a real one, and ones as trouble leaves them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import fedstill
from fedstill.data import arrays

NASTY = "<script>alert(1)</script>"


def nasty_data(classes: tuple[str, ...] = (NASTY, "</script>", "a & b", "'\"")) -> Any:
    """Pictures whose classes have names that are markup."""
    draw = np.random.default_rng(0)
    labels = np.arange(80) % len(classes)
    inputs = (draw.random((80, 1, 8, 8)) * 100 + 30 * labels[:, None, None, None]).astype(np.uint8)
    return arrays(
        inputs[:60], labels[:60], inputs[60:], labels[60:], class_names=classes, name=NASTY
    )


def feddm_run(folder: Path, **more: Any) -> Path:
    """Two rounds of FedDM on pictures with nasty names, in a second."""
    settings = {
        "method.images_per_class": 2,
        "method.iterations": 1,
        "method.server_epochs": 2,
        "method.real_batch": 8,
    }
    options = {"rounds": 2, "clients": 3, "workers": 1, "model": "convnet-small", **more}
    fedstill.run("feddm", data=nasty_data(), partition="iid", out=folder, set=settings, **options)
    return folder


def written_run(folder: Path, **more: Any) -> Path:
    """A folder as a run of ``fedavg`` would leave it, written by hand."""
    folder.mkdir(parents=True)
    accuracy = more.pop("accuracy", [0.5, 0.7, 0.8])
    method = more.pop("method", "fedavg")
    seed, data = more.pop("seed", 0), more.pop("data", "digits")
    (folder / "config.toml").write_text(
        f'rounds = {len(accuracy)}\nseed = {seed}\nclients = 2\npartition = "iid"\n'
        f'[method]\nname = "{method}"\n[data]\nname = "{data}"\n[model]\nname = "mlp"\n'
    )
    lines = [
        {
            "round": i + 1,
            "accuracy": value,
            "loss": 1 - value if value is not None else None,
            "up_bytes": 1000,
            "down_bytes": 3000,
            "seconds": 2.0,
            "epsilon": None,
            "clients": [0, 1],
            "uploads": {"0": 400, "1": 600},
            "details": {},
            **more.get("each", {}),
        }
        for i, value in enumerate(accuracy)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "method": method,
        "data": data,
        "clients": 2,
        "partition": "iid",
        "seed": seed,
        "status": "done",
        "data_sha256": f"of {data}",
        "model": "mlp",
        "version": "0.1.0",
        **more.get("summary", {}),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
