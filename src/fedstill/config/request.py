"""A request as it is written: options, files and ``--set``, before anything is looked up.

PyTorch is not imported here, so that a wrong request is refused at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.config.experiment import Experiment
from fedstill.config.nested import (
    Table,
    convert,
    merged,
    nested,
    read_toml,
    refuse_deep,
    without_none,
)
from fedstill.errors import RequestError

# Options that may be given as a plain string: it is the table's ``name``.
_SHORTHANDS = ("method", "start", "model", "data", "engine")
# The options of ``fedstill run`` and ``fedstill.run`` that are settings, by name.
_SETTINGS = {
    "method": "method",
    "data": "data.name",
    "data_dir": "data.dir",
    "clients": "clients",
    "partition": "partition",
    "participation": "participation",
    "rounds": "rounds",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "model": "model",
    "features": "features",
    "engine": "engine.name",
    "workers": "engine.workers",
    "device": "device",
    "seed": "seed",
}


def requested(
    options: Mapping[str, Any],
    set: Mapping[str, Any] | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
) -> tuple[Table, Table]:
    """What a configuration file says, and what the options and ``set`` say, which wins over it."""
    table = read_toml(Path(config)) if isinstance(config, str | Path) else dict(config or {})
    check_types(table)
    given = {_SETTINGS[key]: value for key, value in options.items() if value is not None}
    return spelled_out(table), merged(spelled_out(nested(given)), spelled_out(nested(set or {})))


def check_types(request: Mapping[str, Any]) -> None:
    """Refuse wrong keys and types in a table that others will be merged over."""
    convert({"method": {}, **spelled_out(request)}, Experiment, "")


def spelled_out(request: Mapping[str, Any]) -> Table:
    """The request without open options, and ``method = "fedavg"`` written as a table.

    ``features = "scatter"`` stands for a linear layer on that feature map.
    """
    refuse_deep(dict(request), "configuration")
    table = {
        key: {"name": value} if key in _SHORTHANDS and isinstance(value, str) else value
        for key, value in without_none(request).items()
    }
    if "features" in table:
        model = table.get("model", {})
        if not isinstance(model, dict) or model.get("name", "linear") != "linear":
            raise RequestError(
                "features: a feature map belongs to model 'linear'; leave the model out"
            )
        feature_map = table.pop("features")
        table["model"] = {"name": "linear", **model, "feature_map": feature_map}
    return table
