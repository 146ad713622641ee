"""From an experiment to a Flower app for real machines, and its check before anything starts."""

from fedstill.deploy.app import write_app
from fedstill.deploy.check import Finding, check_app

__all__ = ["Finding", "check_app", "write_app"]
