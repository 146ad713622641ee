"""What a run was computed with: the command, the versions and the machine.

A run folder gets one such line in ``sessions.jsonl`` each time a run is begun or resumed, because a
run may be resumed by another version or on another machine.
"""

import os
import platform
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec
import torch

from fedstill.errors import UNREADABLE, RequestError
from fedstill.models.kernels.library import SWITCH, in_use
from fedstill.version import VERSION

_PACKAGES = ("torch", "numpy", "safetensors", "msgspec", "pillow")


@dataclass(frozen=True)
class Session:
    """One line of ``sessions.jsonl``."""

    started: str  # UTC, to the second
    command: str
    versions: dict[str, str]
    hardware: dict[str, str]


def this_session(device: str) -> Session:
    """The process that is running now. Neither user nor host is named: reports are shared."""
    return Session(
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        command=_command(),
        versions=_versions(),
        hardware=_hardware(device),
    )


def sessions_in(folder: Path) -> list[Session]:
    """The lines of a run folder's ``sessions.jsonl``."""
    file = folder / "sessions.jsonl"
    found = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        try:
            found.append(msgspec.json.decode(line, type=Session))
        except UNREADABLE:
            continue  # cut short by a kill
    return found


def refuse_another_kernel(folder: Path, now: Session) -> None:
    """A run that is resumed by another kernel would not end as if it had not been interrupted."""
    for before in sessions_in(folder)[-1:]:
        used, uses = (session.hardware.get("kernel") for session in (before, now))
        if used != uses:
            value = "on" if used else "off"
            raise RequestError(f"{folder}: begun with {SWITCH}={value}; resume with the same")


def _command() -> str:
    program = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path("python")
    if "fedstill" in (program.name, program.parent.name):  # the command, or python -m fedstill
        return shlex.join(["fedstill", *sys.argv[1:]])
    return f"fedstill.run(...) in {program.name}"


def _versions() -> dict[str, str]:
    versions = {"fedstill": VERSION, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _hardware(device: str) -> dict[str, str]:
    found = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": str(os.cpu_count() or 1),
        "memory": _memory(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": device,
    }
    if in_use():
        found["kernel"] = "native"
    if device.startswith("cuda") and torch.cuda.is_available():
        found["accelerator"] = torch.cuda.get_device_name(torch.device(device))
    return {key: value for key, value in found.items() if value}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return ""
    return f"{size / 2**30:.0f} GiB"
