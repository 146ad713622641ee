"""Short runs whose numbers must not change unnoticed.

``make golden`` rewrites ``golden.json``; say why in the changelog, under "Numbers changed".
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import fedstill
from fedstill.methods import METHODS
from tests.methods.small import SMALL

FILE = Path(__file__).parent / "golden.json"


def golden_run(name: str) -> list[dict[str, Any]]:
    """Loss, accuracy and bytes of two rounds on the built-in data."""
    settings = {f"method.{k}": v for k, v in SMALL.get(name, {}).items()}
    with tempfile.TemporaryDirectory() as folder:
        result = fedstill.run(
            name,
            rounds=2,
            clients=4,
            workers=1,
            out=Path(folder) / "run",
            set={"model.width": 8, **settings},
        )
    return [
        {"loss": m.loss, "accuracy": m.accuracy, "up": m.up_bytes, "down": m.down_bytes}
        for m in result.metrics
    ]


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: golden_run(name) for name in METHODS}, indent=2) + "\n")
