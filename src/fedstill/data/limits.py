"""How much a data file may ask for: a small file must not take all memory.

Compressed files say how large their contents are, and may lie, or be made to explode (a file of a
kilobyte can hold gigabytes of zeros). So contents are bounded by a multiple of the file's own size,
and nothing is allocated on a header's word alone.
"""

import os

from fedstill.errors import RequestError

# Images that compress 200 times are nearly blank. Below a quarter of a gigabyte, whatever it is.
_MOST_GROWTH = 200
_FREE = 2**28


def most_bytes(stored: int) -> int:
    """How many bytes a file of ``stored`` bytes may hold."""
    return max(_FREE, _MOST_GROWTH * stored)


def refuse_expanding(held: int, stored: int, place: str) -> None:
    """Refuse contents that are far larger than their file."""
    if held > most_bytes(stored):
        raise RequestError(
            f"{place}: {stored:,} bytes that hold {held:,} or more; real data do not compress so "
            "far: is the file damaged, or made to fill the memory?"
        )


def refuse_without_room(held: int, what: str, remedy: str) -> None:
    """Refuse records that would not fit into this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if held > memory:
        raise RequestError(
            f"{what} need {held / 2**30:,.1f} GiB and this machine has {memory / 2**30:,.1f}; "
            f"{remedy}"
        )
