"""Named random streams: every draw is addressed, none depends on time, order or global state.

``Rng(7).at("round", 3, "client", 5).at("batches").torch()`` gives the same numbers on every
call, in every process, in whatever order clients run. Streams are derived by hashing
their path, so adding one never shifts another.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

_WORDS = 624  # size of the Mersenne Twister's state
_HEAD = struct.Struct("<QiiQ")


@dataclass(frozen=True)
class Rng:
    """A node in the tree of streams. Values, not state: ``at`` returns a child, draws restart."""

    seed: int
    path: tuple[str | int, ...] = ()

    def at(self, *names: str | int) -> "Rng":
        """The child stream named ``names``."""
        return Rng(self.seed, self.path + names)

    def numpy(self) -> np.random.Generator:
        """A new NumPy generator at the start of this stream."""
        return np.random.Generator(np.random.PCG64(self._entropy()))

    def torch(self) -> "torch.Generator":
        """A new PyTorch generator (on the CPU) at the start of this stream.

        Draw on the CPU and move the result: then a GPU run sees the same numbers.
        ``Generator.manual_seed`` keeps only 32 bits of its seed on the CPU, so among some
        ten thousand streams two would coincide; we fill the whole state instead.
        """
        import torch  # here: a partition is checked without it

        raw = _empty_state().copy()
        _fill(raw[_HEAD.size : _HEAD.size + 8 * _WORDS], self._entropy().pool)
        generator = torch.Generator()
        generator.set_state(torch.from_numpy(raw))
        return generator

    def _entropy(self) -> np.random.SeedSequence:
        # JSON keeps 1 and "1" apart, and ("a", "b") and ("a/b",) too.
        name = json.dumps([self.seed, *self.path]).encode()
        return np.random.SeedSequence(int.from_bytes(hashlib.sha256(name).digest()))


def _fill(state: NDArray[np.uint8], pool: NDArray[np.uint32]) -> None:
    """Fill the words of a Mersenne Twister as ``np.random.MT19937`` does, in a tenth of its time.

    They are those of ``SeedSequence.generate_state(624)``, which NumPy makes one after another:
    word i is pool[i % 4] hashed with the i-th of a fixed sequence of constants. A round of many
    clients begins streams for each of them.
    """
    before, after = _hash_constants()
    words = before ^ pool
    words *= after
    low = state.view("<u4")[::2]  # each word has 8 bytes in PyTorch's state, of which 4 are zero
    np.bitwise_xor(words.reshape(-1), (words >> np.uint32(16)).reshape(-1), out=low)
    low[0] = 0x80000000  # so that a state is never all zero


@cache
def _hash_constants() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The constants of ``SeedSequence.generate_state``, powers of a multiplier modulo 2^32: what
    word i is combined with, and what it is then multiplied with, as rows of the pool's length."""
    first, multiplier = 0x8B51F9DD, 0x58F38DED
    powers = [first]
    for _ in range(_WORDS):
        powers.append(powers[-1] * multiplier % 2**32)
    constants = np.array(powers, dtype=np.uint32)
    return constants[:-1].reshape(-1, 4), constants[1:].reshape(-1, 4)


@cache
def _empty_state() -> NDArray[np.uint8]:
    """The state of PyTorch's CPU generator without the words of the Mersenne Twister.

    Its layout: seed, left = 1 ("refill at the first draw"), seeded, next, state words, then the
    cached normal draws, all empty.
    """
    import torch

    raw = torch.Generator().get_state().numpy().copy()
    raw[: _HEAD.size] = np.frombuffer(_HEAD.pack(0, 1, 1, 0), dtype=np.uint8)
    return raw


@contextmanager
def borrowed(generator: "torch.Generator", device: "torch.device | None" = None) -> Iterator[None]:
    """Within the block, PyTorch's global generator draws from this stream, which advances.

    The global generator's state is restored afterwards. An accelerator's own generator is seeded
    from the stream: its draws differ from the CPU's, and are the same on every call.
    """
    import torch

    on = device if device is not None and device.type != "cpu" else None
    kind = on.type if on is not None else "cuda"
    with torch.random.fork_rng(devices=[on] if on is not None else [], device_type=kind):
        torch.set_rng_state(generator.get_state())
        if on is not None:
            torch.get_device_module(on).manual_seed(int(torch.randint(2**62, ())))
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())
