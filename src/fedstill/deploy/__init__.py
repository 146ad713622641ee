"""A Flower app of an experiment for real machines, and a check of it before anything starts."""

from typing import TYPE_CHECKING

from fedstill.imports import import_when_used

if TYPE_CHECKING:
    from fedstill.deploy.app import write_app
    from fedstill.deploy.check import Finding, check_app

__all__ = ["Finding", "check_app", "write_app"]

import_when_used(
    __name__,
    {
        "Finding": "fedstill.deploy.check",
        "check_app": "fedstill.deploy.check",
        "write_app": "fedstill.deploy.app",
    },
)
