"""Settings that make a method quick on the toy problem; without an entry the defaults serve."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "feddm": {"images_per_class": 2, "iterations": 4, "server_epochs": 10, "real_batch": 16},
    "feddualmatch": {
        "images_per_class": 2,
        "iterations": 4,
        "gradient_rounds": 2,
        "gradient_steps": 2,
        "server_iterations": 20,
        "server_learning_rate": 0.05,
    },
    "psg": {
        "images_per_class": 2,
        "restarts": 2,
        "gradients": 2,
        "pixel_steps": 2,
        "server_epochs": 10,
    },
    "real": {"images_per_class": 2, "server_epochs": 10},
}

# And what makes them quick with privacy on; the settings that a private run has by default are
# filled in.
SMALL_PRIVATE: dict[str, dict[str, Any]] = {
    "feddm": {"iterations": 2, "release_steps": 2},
    "feddualmatch": {"iterations": 2, "release_steps": 2},
}
