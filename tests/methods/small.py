"""Settings that make a method fast on the toy problem; without an entry the defaults are used."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "dynafed": {
        "trajectory_rounds": 2,
        "span": 1,
        "images_per_class": 1,
        "matching_iterations": 2,
        "matching_steps": 2,
        "tuning_steps": 1,
    },
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
    "fedgloss": {
        "images_per_class": 2,
        "trajectory_steps": 2,
        "pixel_steps": 2,
        "pixel_learning_rate": 1.0,
        "radius_epochs": 5,
        "server_learning_rate": 0.1,
    },
    "gm": {"images_per_class": 2, "networks": 1, "matching_steps": 2, "server_epochs": 10},
    "local-gm": {"images_per_class": 2, "networks": 1, "matching_steps": 2, "server_epochs": 10},
    "fedsynth": {"batches": 2, "batch_size": 2, "iterations": 2},
    "psg": {
        "images_per_class": 2,
        "restarts": 2,
        "gradients": 2,
        "pixel_steps": 2,
        "server_epochs": 10,
    },
    "sketch": {"networks": 2, "images_per_class": 2, "steps": 10, "server_steps": 10},
    "real": {"images_per_class": 2, "server_epochs": 10},
}

# The same with privacy on; the defaults of a private run are added.
SMALL_PRIVATE: dict[str, dict[str, Any]] = {
    "fedgloss": {"trajectories": 1, "real_batches": 2, "local_steps": 1, "radius": 0.01},
    "feddm": {"iterations": 2, "release_steps": 2},
    "feddualmatch": {"iterations": 2, "release_steps": 2},
}
