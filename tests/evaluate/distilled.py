"""A finished run with a small synthetic set, for the tests that use such a set."""

from pathlib import Path

import fedstill


def distilled_run(folder: Path) -> Path:
    """Three clients, two images per class that each holds."""
    fedstill.run(
        "feddm",
        rounds=1,
        clients=3,
        partition="iid",
        workers=1,
        out=folder,
        set={
            "model.width": 4,
            "method.images_per_class": 2,
            "method.iterations": 1,
            "method.real_batch": 8,
            "method.server_epochs": 10,
        },
    )
    return folder
