"""Messages whose form is fixed, as one buffer: updates, gradients and weights of a known network.

Where a declaration leaves no dimension open and all tensors are of single precision, two messages
differ in their numbers alone. The header is then made once, and so is where each tensor lies; one
pass over the buffer shows that every value is finite and that the norms are within their limits.
The bytes are those of ``layout.write_tensors``. Whatever is not exactly so takes the general way,
which also finds the words for what is wrong.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import torch
from torch import Tensor

from fedstill.files import HEADER
from fedstill.wire.layout import header_of, padded
from fedstill.wire.spec import TensorSpec

_BEGIN = b'{"__metadata__":{' + msgspec.json.encode(HEADER) + b":"
_LENGTH = 8  # bytes before the header
_FEW, _LEAST = 2**22, 1e-12  # numbers, and the least norm, for which single precision can suffice


@dataclass(frozen=True)
class NormedPart:
    """A part of the buffer whose norm is bounded."""

    begin: int
    end: int
    most: float

    def surely_holds(self, piece: Tensor) -> bool:
        """Whether the norm is within its limit by so much that single precision, which is faster,
        leaves no doubt: rounding takes at most a seventh from the norm of so few numbers, and what
        underflows is less than a thousandth of the least. No comparison with NaN is true."""
        few = self.end - self.begin <= _FEW
        return few and _LEAST < float(torch.linalg.vector_norm(piece)) < self.most / 2


@dataclass(frozen=True)
class FlatForm:
    """Where everything lies in messages of one fixed form."""

    names: tuple[str, ...]  # in the order of the file
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    parts: tuple[NormedPart, ...]  # all of the buffer, in pieces
    end: bytes  # of the header, after the text that differs from message to message

    @classmethod
    def of(cls, specs: Mapping[str, TensorSpec], norms: Mapping[str, float]) -> "FlatForm | None":
        """The form of messages with these tensors and bounds; ``None`` if it is not fixed."""
        names = tuple(sorted(specs, key=str.encode))
        if not names or sys.byteorder != "little" or not all(map(_is_fixed, specs.values())):
            return None
        shapes = tuple(_whole(specs[name]) for name in names)
        sizes = tuple(math.prod(shape) for shape in shapes)
        parts = _parts(names, sizes, norms)
        if parts is None:
            return None
        described = zip(names, shapes, strict=True)
        entries = header_of((name, torch.float32, shape) for name, shape in described)
        return cls(names, shapes, sizes, parts, b"}," + msgspec.json.encode(entries)[1:])

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are the tensors of this form, on one device, whatever their values."""
        if tensors.keys() != self._names:
            return False
        ordered = [tensors[name] for name in self.names]
        if tuple([tensor.shape for tensor in ordered]) != self.shapes:
            return False
        single = {tensor.dtype for tensor in ordered} == {torch.float32}
        return single and len({tensor.device for tensor in ordered}) == 1

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.names)

    def joined(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """All these tensors, which are of this form, as one buffer on the CPU."""
        return torch.cat([tensors[name].flatten() for name in self.names]).detach().cpu()

    def accepts(self, flat: Tensor) -> bool:
        """Whether all values are finite and all norms within their limits.

        In double precision squares of finite values do not overflow: a norm is finite if and only
        if the values are.
        """
        for part in self.parts:
            piece = flat if len(self.parts) == 1 else flat[part.begin : part.end]
            if part.surely_holds(piece):
                continue
            norm = float(torch.linalg.vector_norm(piece, dtype=torch.float64))
            if not (math.isfinite(norm) and norm <= part.most):
                return False
        return True

    def write(self, flat: Tensor, header: Mapping[str, Any]) -> bytes:
        """The file with these numbers and this header."""
        return b"".join([self._head(msgspec.json.encode(header)), flat.numpy().data])

    def _head(self, header: bytes) -> bytes:
        """What comes before the numbers. It is kept: most clients write the same."""
        if header not in self._heads:
            text = msgspec.json.encode(header.decode())
            self._heads.clear()
            self._heads[header] = b"".join(padded(b"".join([_BEGIN, text, self.end])))
        return self._heads[header]

    @cached_property
    def _heads(self) -> dict[bytes, bytes]:
        """The last header, and what it was written as."""
        return {}

    def read(self, data: bytes) -> tuple[Tensor, dict[str, Any]] | None:
        """Numbers and header of a file that ``write`` wrote; ``None`` of any other."""
        start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        if len(data) != start + 4 * sum(self.sizes):
            return None
        head = data[_LENGTH:start].rstrip(b" ")
        if not (head.startswith(_BEGIN) and head.endswith(self.end)):
            return None
        try:
            text = msgspec.json.decode(head[len(_BEGIN) : -len(self.end)], type=str)
            header = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        # A copy: nobody else holds these bytes, and they are aligned.
        return torch.frombuffer(bytearray(memoryview(data)[start:]), dtype=torch.float32), header

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors by name: views of the buffer."""
        pieces = flat.split_with_sizes(self.sizes)
        named = zip(self.names, pieces, self.shapes, strict=True)
        return {
            name: piece if len(shape) == 1 else piece.view(shape) for name, piece, shape in named
        }


def _whole(spec: TensorSpec) -> tuple[int, ...]:
    """The dimensions that are declared as one number."""
    return tuple(size for size in spec.shape if isinstance(size, int))


def _is_fixed(spec: TensorSpec) -> bool:
    fixed = len(_whole(spec)) == len(spec.shape) and spec.most > 0
    return fixed and spec.dtype is torch.float32 and not spec.bounded


def _parts(
    names: tuple[str, ...], sizes: tuple[int, ...], norms: Mapping[str, float]
) -> tuple[NormedPart, ...] | None:
    """Every bounded field, and what lies outside of all; ``None`` if a field is not in one piece,
    or overlaps with another."""
    parts: list[NormedPart] = []
    begin, before = 0, None
    seen: set[str | None] = set()
    for name, size in zip(names, sizes, strict=True):
        owners = [key for key in norms if name == key or name.startswith(f"{key}.")]
        owner = owners[0] if owners else None
        if len(owners) > 1 or (owner is not None and owner != before and owner in seen):
            return None
        if owner == before and parts:
            parts[-1] = NormedPart(parts[-1].begin, begin + size, parts[-1].most)
        else:
            most = math.inf if owner is None else norms[owner]
            parts.append(NormedPart(begin, begin + size, most))
        seen.add(owner)
        begin, before = begin + size, owner
    return tuple(parts) if set(norms) <= seen else None
