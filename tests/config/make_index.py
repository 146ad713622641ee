"""Write ``config/index.json``: what can be named, and its settings (`make index`)."""

from pathlib import Path

import fedstill.config.index as known
from fedstill.features import FEATURES
from fedstill.methods import METHODS, describe_method
from fedstill.models import MODELS


def from_the_code() -> known.Index:
    """The index of what the tables hold now."""
    return known.Index(
        methods={
            name: known.described(cls, describe_method(cls) + _private(cls))
            for name, cls in METHODS.items()
        },
        models={
            name: known.described(entry.cls, entry.description, without=("shape", "classes"))
            for name, entry in MODELS.items()
        },
        features={name: known.Entry(entry.description) for name, entry in FEATURES.items()},
    )


def _private(cls: type) -> str:
    return " [private form]" if cls().private_form(1.0) is not None else ""


if __name__ == "__main__":
    Path(known.__file__).with_suffix(".json").write_bytes(known.as_json(from_the_code()))
