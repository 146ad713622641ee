"""Finding methods and models: by a name of ours, or by ``package.module:Name`` of a user's."""

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from fedstill.errors import RequestError, did_you_mean


def import_object(key: str, path: str) -> Any:
    """The object that ``package.module:Name`` names; ``key`` is the setting that asked for it."""
    module_name, _, attribute = path.partition(":")
    # A command does not have the user's folder on its path, as `python script.py` has.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's own code raises while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"{key}: cannot import '{module_name}': {reason}") from error
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise RequestError(f"{key}: '{module_name}' has no '{attribute}'")
        found = getattr(found, part)
    return found


def refuse_unknown(key: str, kind: str, name: str, valid: Iterable[str]) -> RequestError:
    """The error for a name that is neither ours nor of the form ``package.module:Name``."""
    return RequestError(f"{key}: no {kind} '{name}'{did_you_mean(name, valid)}")
