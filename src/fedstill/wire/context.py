"""A context coder: images of few bits, each bit coded by what is known of the pixels around it.

Pixels are coded in the order of reading, and at each place those of all images one after another,
so that the statistics are computed for all images at once. A pixel's bits come from the highest to
the lowest. The probability of a bit is estimated from counts, at first of all such bits, then of
those with the same neighbours, in ever more detail: the estimate with less detail is a prior of the
next, worth one observation, so that few images suffice. An arithmetic coder of 16-bit
probabilities turns the bits into bytes. All of it is integer arithmetic: the same bytes everywhere.

A stream is accepted only if it is what the encoder writes for the images that it decodes to. There
is no redundancy: one that lacks a byte may be that of images whose last pixels are others.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedstill.errors import WireError
from fedstill.wire.arithmetic import ONE, Decoder, Encoder

Ints = NDArray[np.int64]
Pixels = NDArray[np.uint8]  # [images, channels, height, width]

_NOT_THEIRS = "the coded images are too short or too long for their number"
_LEAST = 32  # of ONE: a bit costs at most 11 bits
_CHEAPEST = 1420  # so many bits cost one or more: 1 / log2(ONE / (ONE - _LEAST)), rounded up
_PAD = 2  # how far neighbours lie


@dataclass(frozen=True)
class Template:
    """Neighbours (channels back, rows up, columns) whose highest ``bits`` are a context."""

    places: tuple[tuple[int, int, int], ...]
    bits: int = 1


_NEAR = ((0, 0, -1), (0, 1, 0), (0, 1, -1), (0, 1, 1))
_FAR = ((0, 0, -2), (0, 2, 0), (0, 2, 1), (0, 2, -1), (0, 1, 2), (0, 1, -2))
_OTHER = ((1, 0, 0), *_NEAR[:2])  # the same place in the channel before
_NOTHING, _COARSE = Template(()), Template(_NEAR)
_DETAILS = {1: (Template(_NEAR + _FAR),), 2: (Template(_NEAR, 2),), 3: (Template(_NEAR, 2),)}
_GREY = (Template(_NEAR, 2), Template(_NEAR[:2], 4))
_COLOUR = (Template(_OTHER, 2), Template(_OTHER, 3))


def templates(bits: int, channels: int) -> tuple[Template, ...]:
    """The contexts, with more and more detail."""
    details = _DETAILS.get(bits, _GREY) if channels == 1 else _COLOUR
    return (_NOTHING, _COARSE, *details)


def encode_images(images: Pixels, bits: int) -> bytes:
    """The images' bytes; every pixel has a value below 2 ** bits."""
    model, coder = Model(images.shape, bits), Encoder()
    for channel, row, column in model.places():
        values = images[:, channel, row, column].astype(np.int64)
        for level, node in model.nodes(values):
            bit = values >> (bits - 1 - level) & 1
            coder.write(bit.tolist(), model.probabilities(node).tolist())
            model.learn(bit)
        model.keep(values)
    return coder.finished()


def decode_images(data: bytes, shape: Sequence[int], bits: int) -> Pixels:
    """The images of this shape.

    The shape bounds the time. A stream that no images of this shape have is refused at once, and
    one that ends too early where its bytes do.
    """
    if len(data) < _least_bytes(math.prod(shape) * bits):
        raise WireError(_NOT_THEIRS)
    model, coder = Model(shape, bits), Decoder(data)
    for _ in model.places():
        if coder.overrun:
            raise WireError(_NOT_THEIRS)
        values = np.zeros(shape[0], np.int64)
        for level, node in model.nodes(values):
            bit = np.array(coder.read(model.probabilities(node).tolist()), np.int64)
            values |= bit << (bits - 1 - level)
            model.learn(bit)
        model.keep(values)
    if not coder.complete:
        raise WireError(_NOT_THEIRS)
    return model.images


def _least_bytes(bits: int) -> int:
    """The fewest bytes of so many bits, each as likely as the coder allows; the coder's interval
    may hold 2 bytes' worth of them that it never writes."""
    return max(0, bits // _CHEAPEST // 8 - 2)


class Model:
    """The counts, and the pixels so far. ``places`` goes through the images."""

    def __init__(self, shape: Sequence[int], bits: int) -> None:
        number, channels, height, width = shape
        self._bits, self._height, self._width = bits, height, width
        # A border of zeros on three sides, and one empty channel in front; images come last.
        self._pixels = np.zeros(
            (channels + 1, height + _PAD, width + 2 * _PAD, number), dtype=np.uint8
        )
        self._templates = templates(bits, channels)
        self._kept = [min(template.bits, bits) for template in self._templates]
        self._counts = [
            np.zeros((2, 1 << (len(t.places) * kept + bits)), np.int64)
            for t, kept in zip(self._templates, self._kept, strict=True)
        ]
        self._at = (0, 0, 0)
        self._contexts: list[Ints] = []
        self._rows: list[Ints] = []

    @property
    def images(self) -> Pixels:
        inside = self._pixels[1:, _PAD:, _PAD : _PAD + self._width]
        return np.ascontiguousarray(inside.transpose(3, 0, 1, 2))

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Channel, row and column of every pixel; the contexts are those of the pixel there."""
        if not self._pixels.shape[-1]:
            return  # no images: nothing is coded, whatever their size
        for row in range(self._height):
            for column in range(self._width):
                for channel in range(len(self._pixels) - 1):
                    self._at = (channel + 1, row + _PAD, column + _PAD)
                    self._contexts = [self._context(i) for i in range(len(self._templates))]
                    yield channel, row, column

    def _context(self, number: int) -> Ints:
        channel, row, column = self._at
        kept = self._kept[number]
        context = np.zeros(self._pixels.shape[-1], np.int64)
        for back, up, right in self._templates[number].places:
            neighbour = self._pixels[channel - back, row - up, column + right]
            context = context << kept | neighbour >> (self._bits - kept)
        return context << self._bits

    def nodes(self, values: Ints) -> Iterator[tuple[int, Ints]]:
        """The number of each bit from the highest, and the bits above it with a one in front."""
        for level in range(self._bits):
            yield level, values >> (self._bits - level) | 1 << level

    def probabilities(self, node: Ints) -> Ints:
        """Of a one, in 1 / ``ONE``."""
        estimate = np.full(len(node), ONE // 2, np.int64)
        self._rows = [context + node for context in self._contexts]
        for rows, (zeros, ones) in zip(self._rows, self._counts, strict=True):
            seen = ones[rows]
            estimate = (seen * ONE + estimate) // (seen + zeros[rows] + 1)
        clipped: Ints = estimate.clip(_LEAST, ONE - _LEAST)
        return clipped

    def learn(self, bit: Ints) -> None:
        """Count what was coded."""
        for rows, counts in zip(self._rows, self._counts, strict=True):
            np.add.at(counts, (bit, rows), 1)

    def keep(self, values: Ints) -> None:
        """The pixels at this place are known."""
        self._pixels[self._at] = values
