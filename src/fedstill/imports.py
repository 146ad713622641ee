"""User-supplied code, found by its name: ``package.module:Name``."""

import importlib
import os
import sys
from typing import Any

from fedstill.errors import RequestError


def import_object(key: str, path: str) -> Any:
    """The object that ``package.module:Name`` names; ``key`` is the setting that asked for it."""
    module_name, _, attribute = path.partition(":")
    # A command does not have the user's folder on its path, as `python script.py` has.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's code raises while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"{key}: cannot import '{module_name}': {reason}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise RequestError(f"{key}: '{module_name}' has no '{attribute}'")
        found = getattr(found, part)
    return found
