"""The environment of Flower's programs: no telemetry, no update check, nothing is installed.

By default Flower sends usage events, checks for updates, and a SuperLink installs an app's
dependencies while it runs; Ray sends usage statistics.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

QUIET: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def flower_environment(home: Path) -> dict[str, str]:
    """Our environment with Flower's programs first on the path and its files below ``home``."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        **QUIET,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
    }


def command(name: str) -> str:
    """The path of one of Flower's programs in this environment."""
    return str(Path(sys.executable).parent / name)
