"""Memory that is freed stays with the process.

By default the C library returns large blocks to the operating system at once and requests them
again a moment later. The activations of every chunk are then faulted in page by page, which took
a quarter of a small network's training step when it was measured.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_LARGEST_BLOCK = 32 * 2**20  # the largest value allowed; a chunk's activations fit in
_KEPT = 512 * 2**20


def keep_freed_memory() -> bool:
    """Keep up to 512 MiB for the next use; whether the C library supports it."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        and library.mallopt(_M_TRIM_THRESHOLD, _KEPT)
    )


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory within the block, and give it back at its end: for a process that is not
    ours, which calls ``fedstill.run`` and goes on."""
    kept = keep_freed_memory()
    try:
        yield
    finally:
        if kept:
            ctypes.CDLL(None).malloc_trim(0)
