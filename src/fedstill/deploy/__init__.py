"""A Flower app of an experiment for real machines, and a check of it before anything starts."""

from fedstill.deploy.app import write_app
from fedstill.deploy.check import Finding, check_app

__all__ = ["Finding", "check_app", "write_app"]
