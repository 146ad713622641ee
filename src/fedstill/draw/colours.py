"""One colour scale for the picture and for the terminal: pale for few records, deep for many."""

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]

NOTHING: Colour = (241, 244, 248)  # an empty cell: visible, but pale
# Evenly falling lightness, so that it also reads in grey and for colour-blind eyes.
_STOPS = np.array(
    [
        (209, 234, 231),
        (148, 206, 210),
        (86, 170, 192),
        (47, 128, 172),
        (40, 86, 143),
        (35, 45, 98),
    ],
    dtype=np.float64,
)


def shade(strength: float) -> Colour:
    """The colour of a strength 0..1; exactly 0 is ``NOTHING``."""
    if strength <= 0:
        return NOTHING
    at = min(strength, 1.0) * (len(_STOPS) - 1)
    low = min(int(at), len(_STOPS) - 2)
    mixed = _STOPS[low] + (at - low) * (_STOPS[low + 1] - _STOPS[low])
    red, green, blue = (round(float(part)) for part in mixed)
    return red, green, blue


def strength(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts to 0..1 by the square root: a handful of records stays visible beside thousands."""
    return np.sqrt(counts / max(float(counts.max()), 1e-12))


def is_dark(colour: Colour) -> bool:
    """Whether writing on it should be white."""
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 140


def short_number(value: float) -> str:
    """A count in at most five characters: 7, 950, 1.2k, 60k, 1.5M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size * 0.9995:
            text = f"{value / size:.1f}" if value < size * 9.95 else f"{value / size:.0f}"
            return text.removesuffix(".0") + unit
    return f"{value:.0f}"
