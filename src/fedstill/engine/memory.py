"""Memory that is freed stays with the process.

By default the C library gives large blocks back to the operating system at once and asks for
them again a moment later: every chunk's activations are then faulted in page by page, which took
a quarter of the time of a small network's training step when it was measured.
"""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_LARGEST_BLOCK = 32 * 2**20  # the largest that may be asked for; a chunk's activations fit in
_KEPT = 512 * 2**20


def keep_freed_memory() -> bool:
    """Keep up to half a gigabyte for the next use; whether the C library knows how to."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        and library.mallopt(_M_TRIM_THRESHOLD, _KEPT)
    )
