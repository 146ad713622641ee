"""A binary arithmetic coder: bits with known probabilities as bytes, close to their entropy."""

from collections.abc import Iterable, Sequence

ONE = 1 << 16  # probability 1

_WIDTH = 56  # bits of the interval's ends
_BYTES = _WIDTH // 8
_SMALL = 1 << (_WIDTH - 16)  # an interval shorter than this is made 256 times longer
_TOP = _WIDTH - 8
_REST = (1 << _TOP) - 1


class Encoder:
    """Narrows an interval by one bit after another; its leading bytes are what is sent."""

    def __init__(self) -> None:
        self._low, self._length = 0, 1 << _WIDTH
        self._sent = bytearray()

    def write(self, bits: Iterable[int], probabilities: Iterable[int]) -> None:
        """Code these bits; ``probabilities`` are those of a one, in 1 / ``ONE``."""
        low, length = self._low, self._length
        for bit, probability in zip(bits, probabilities, strict=True):
            part = (length >> 16) * probability
            if bit:
                length = part
            else:
                low += part
                length -= part
            while length < _SMALL:
                self._carry(low)
                self._sent.append(low >> _TOP & 255)
                low, length = (low & _REST) << 8, length << 8
        self._low, self._length = low, length

    def _carry(self, low: int) -> None:
        """Add the interval's overflow, if there is one, to what was sent."""
        if low >> _WIDTH:
            place = len(self._sent) - 1
            while self._sent[place] == 255:
                self._sent[place] = 0
                place -= 1
            self._sent[place] += 1

    def finished(self) -> bytes:
        """All bytes, with the fewest at the end that lie in the interval if zeros follow."""
        value, number = _end(self._low, self._length)
        self._carry(value)
        last = (value & (1 << _WIDTH) - 1).to_bytes(_BYTES, "big")
        return bytes(self._sent) + last[:number]


class Decoder:
    """Reads what ``Encoder`` wrote, given the same probabilities."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, _BYTES
        self._code = int.from_bytes(data[:_BYTES].ljust(_BYTES, b"\0"), "big")
        self._length = 1 << _WIDTH

    def read(self, probabilities: Sequence[int]) -> list[int]:
        """The next bits; after the end of the data come zeros."""
        code, length, data, place = self._code, self._length, self._data, self._place
        bits = []
        for probability in probabilities:
            part = (length >> 16) * probability
            if code < part:
                length = part
                bits.append(1)
            else:
                code -= part
                length -= part
                bits.append(0)
            while length < _SMALL:
                code = code << 8 | (data[place] if place < len(data) else 0)
                length <<= 8
                place += 1
        self._code, self._length, self._place = code, length, place
        return bits

    @property
    def overrun(self) -> bool:
        """Whether so much was read past the end that no encoder wrote these bytes: it leaves out
        fewer zeros."""
        return self._place - len(self._data) > _BYTES

    @property
    def complete(self) -> bool:
        """Whether these are exactly the bytes that the encoder writes for the bits that were read.

        Other bytes may lie in the same interval; they would decode to the same bits.
        """
        sent = self._place - _BYTES  # bytes that the encoder wrote before its end
        value = int.from_bytes(self._data[sent : self._place].ljust(_BYTES, b"\0"), "big")
        # The lower end may be negative: then the encoder's end was carried to the bytes before.
        end, number = _end(value - self._code, self._length)
        return value == end and len(self._data) == sent + number


def _end(low: int, length: int) -> tuple[int, int]:
    """The first value of the interval that ends in the most zeros, and its bytes before them."""
    for number in range(_BYTES + 1):
        below = (1 << (_WIDTH - 8 * number)) - 1
        value = (low + below) & ~below  # the next that ends in zeros
        if value < low + length:
            break
    return value, number
