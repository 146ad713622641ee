"""The compiled kernel: whether it is wanted, and where it comes from.

``FEDSTILL_NATIVE=on`` compiles ``native.cpp`` at its first use with the system's C++ compiler
(``$CXX``, ``c++``, ``g++`` or ``clang++``) for this machine's vector instructions, and keeps the
library in the user's own part of the cache folder under a hash of the source, the compiler and the
processor, beside its SHA-256: one that was damaged is compiled anew. Without a compiler a warning
says so, and PyTorch serves. The default is ``off``: the two agree to rounding, not to the bit, so a
run must be resumed with the value it was begun with.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import warnings
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from fedstill.errors import RequestError
from fedstill.files import cache_folder, replacing
from fedstill.models.kernels import native
from fedstill.models.kernels.kernel import Kernel

SWITCH = "FEDSTILL_NATIVE"
_SOURCE = Path(__file__).with_name("native.cpp")
_OPTIONS = ("-O3", "-std=c++17", "-shared", "-fPIC")
_PATIENCE = 300  # seconds; it takes two


def kernel_for(weight: Tensor, outputs: int) -> Kernel:
    """A kernel for a network with these weights and pooled outputs of the first convolution."""
    library = compiled() if native.serves(weight, outputs) and switched_on() else None
    return Kernel() if library is None else native.NativeKernel(library)


def switched_on() -> bool:
    """What the environment variable says."""
    value = os.environ.get(SWITCH, "off")
    if value not in ("on", "off"):
        raise RequestError(f"{SWITCH} is {value!r}; use on or off")
    return value == "on"


def in_use() -> bool:
    """Whether networks that the library serves are computed by it."""
    return switched_on() and compiled() is not None


@lru_cache(maxsize=1)
def compiled() -> ctypes.CDLL | None:
    """The library, compiled if it is not in the cache; ``None`` and a warning if it cannot."""
    try:
        library = ctypes.CDLL(str(_built(_own_folder())))
    except (OSError, subprocess.SubprocessError) as error:
        output = str(getattr(error, "stderr", None) or "").strip() or str(error)
        reason = output.splitlines()[0]
        warnings.warn(f"{SWITCH}=on: PyTorch serves instead ({reason})", stacklevel=2)
        return None
    library.fedstill_work.restype = ctypes.c_long
    return library


def _own_folder() -> Path:
    """Where this user's libraries are kept. A library can do all that the user can, and a cache
    folder may be shared: whatever others could have put there is not loaded."""
    user = os.geteuid()
    folder = cache_folder() / f"native-{user}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != user or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that this user alone can write to")
    return folder


def _built(folder: Path) -> Path:
    compiler = _compiler()
    target = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    command = [compiler, *_OPTIONS, target]
    path = folder / f"{_key(command)}.so"
    if not _whole(path):
        with replacing(path) as new:  # several processes may do this at once
            _run([*command, "-o", str(new), str(_SOURCE)])
            digest = _digest(new)
        with replacing(_digest_file(path)) as new:
            new.write_text(digest, encoding="ascii")
    return path


def _whole(path: Path) -> bool:
    """Whether the library is the one that was compiled: loading a damaged one may end the process,
    with no error to catch."""
    try:
        return _digest_file(path).read_text("ascii") == _digest(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compiler() -> str:
    names = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise FileNotFoundError("no C++ compiler was found")
    return found


def _key(command: list[str]) -> str:
    """What the library's bits depend on."""
    parts = [*command, _run([command[0], "--version"]), _processor(), _SOURCE.read_text("utf-8")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return "\n".join([platform.machine(), platform.processor(), *dict.fromkeys(named)])


def _run(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
    ).stdout
