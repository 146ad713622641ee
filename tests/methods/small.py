"""Settings that make a method quick on the toy problem; without an entry the defaults serve."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "distdd": {
        "images_per_class": 2,
        "steps_s": 2,
        "steps_theta": 3,
        "real_batch": 16,
        "fresh_every": 1,
        "fresh_networks": 2,
        "fresh_epochs": 10,
    },
    "feddm": {"images_per_class": 2, "iterations": 4, "server_epochs": 10, "real_batch": 16},
    "feddualmatch": {
        "images_per_class": 2,
        "iterations": 4,
        "gradient_rounds": 2,
        "gradient_steps": 2,
        "server_iterations": 20,
        "server_learning_rate": 0.05,
    },
    "real": {"images_per_class": 2, "server_epochs": 10},
}
