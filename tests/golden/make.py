"""Short runs whose numbers must not change unnoticed.

``make golden`` rewrites ``golden.json``; say why in the changelog, under "Numbers changed".
Losses and accuracies are compared everywhere, to what another processor's rounding may change. The
model's SHA-256 is compared where processor and versions are those it was computed with.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import fedstill
from fedstill.methods import METHODS
from fedstill.runs.provenance import this_session
from tests.methods.small import SMALL

FILE = Path(__file__).parent / "golden.json"


def machine() -> dict[str, str]:
    """What decides the last bits: the processor and the libraries that compute."""
    session = this_session("cpu")
    hardware = {key: session.hardware.get(key, "") for key in ("processor", "instructions")}
    return {**hardware, **{key: session.versions[key] for key in ("torch", "numpy")}}


def golden_run(name: str) -> dict[str, Any]:
    """Loss, accuracy and bytes of two rounds on the built-in data, and the model's SHA-256."""
    settings = {f"method.{k}": v for k, v in SMALL.get(name, {}).items()}
    features = "model" in METHODS[name].DEFAULTS
    network: dict[str, Any] = {"features": "orientation"} if features else {"model.width": 8}
    with tempfile.TemporaryDirectory() as folder:
        result = fedstill.run(
            name,
            rounds=2,
            clients=4,
            workers=1,
            out=Path(folder) / "run",
            set={**network, **settings},
        )
        model = (Path(folder) / "run" / "model.safetensors").read_bytes()
    rounds = [
        {"loss": m.loss, "accuracy": m.accuracy, "up": m.up_bytes, "down": m.down_bytes}
        for m in result.metrics
    ]
    return {"rounds": rounds, "sha256": hashlib.sha256(model).hexdigest()}


if __name__ == "__main__":
    methods = {name: golden_run(name) for name in METHODS}
    FILE.write_text(json.dumps({"machine": machine(), "methods": methods}, indent=2) + "\n")
