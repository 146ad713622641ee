"""The operations of :mod:`fedstill.models.kernels.kernel` in compiled C++ (``native.cpp``).

In one thread, in single precision, for widths that are multiples of 32.
"""

from ctypes import CDLL, c_int, c_long, c_void_p

import torch
from torch import Tensor

from fedstill.models.kernels import winograd
from fedstill.models.kernels.kernel import Kept, Kernel, Norm

_PANEL = 32  # channels of a packed panel of weights, as in the source
_INPUTS = (9, 27)  # of the first convolution: one channel or three
_LONGEST = 16  # numbers in the longest vector: it divides the outputs of the first block


def serves(weight: Tensor, outputs: int) -> bool:
    """Whether the first block's weights and pooled outputs are such that the library serves."""
    return (
        weight.dtype == torch.float32
        and weight.shape[0] % _PANEL == 0
        and weight[0].numel() in _INPUTS
        and outputs % _LONGEST == 0
    )


class NativeKernel(Kernel):
    """The library divides the images itself."""

    def __init__(self, library: CDLL) -> None:
        super().__init__()
        self._library = library

    def later_at_once(self, height: int, width: int) -> int:
        return 1 << 30

    def transformed(self, weight: Tensor) -> Tensor:
        panels = winograd.outputs_last(weight).unflatten(3, (-1, _PANEL))
        return winograd.mapped(panels.transpose(2, 3).contiguous())

    def first(self, patches: Tensor, folded: Tensor, into: Tensor) -> None:
        by_image, by_row, _, _ = into.stride()
        self._library.fedstill_first(
            *(_at(patches), _at(folded)),
            *_ints(len(into), patches.shape[1], *into.shape[1:]),
            *(c_void_p(into.data_ptr()), c_long(by_image), c_long(by_row)),
        )

    def first_backward(
        self, patches: Tensor, folded: Tensor, coming: Tensor
    ) -> tuple[Tensor, Tensor]:
        many, size, outputs = patches.shape
        channels = folded.shape[2]
        direct = patches.new_empty(many, size - 1, outputs)
        along = patches.new_empty(many, size - 1, channels)
        by_channel = coming.flatten(1, 2).mT.contiguous()
        self._library.fedstill_first_backward(
            *(_at(patches), _at(folded), _at(by_channel)),
            *_ints(many, size, outputs // 4, channels),
            *(_at(direct), _at(along)),
        )
        return direct, along

    def later(
        self, padded: Tensor, weights: Tensor, norm: Norm, into: Tensor, *, keep: bool
    ) -> Kept | None:
        many, height, width, channels = padded.shape
        height, width = height - 2, width - 2
        if keep:
            centred = padded.new_empty(many, height * width * channels)
            inverse = padded.new_empty(many, channels)
        else:
            centred = inverse = self.scratch("centred", padded, height * width * channels)
        by_image, by_row, _, _ = into.stride()
        self._library.fedstill_later(
            *(_at(padded), _at(weights), _at(norm.scale), _at(norm.shift)),
            *_ints(many, height, width, channels),
            *(c_void_p(into.data_ptr()), c_long(by_image), c_long(by_row)),
            *(_at(centred), _at(inverse), c_int(keep), self._work(padded, height, width)),
        )
        return Kept(centred, inverse) if keep else None

    def later_backward(
        self, coming: Tensor, kept: Kept, weights: Tensor, norm: Norm, into: Tensor
    ) -> None:
        many, height, width, channels = into.shape
        given = coming.contiguous()
        at_once = self._library.fedstill_images_at_once(*_ints(height, width))
        shape = (at_once, height + 2, width + 2, channels)
        padded = self.scratch(f"padded {height} {width}", coming, *shape, zero=True)
        self._library.fedstill_later_backward(
            *(_at(given), _at(kept.centred), _at(kept.inverse), _at(weights)),
            *(_at(norm.scale), _at(norm.shift)),
            *_ints(many, height, width, channels),
            *(_at(into), _at(padded), self._work(coming, height, width)),
        )

    def _work(self, like: Tensor, height: int, width: int) -> c_void_p:
        size = self._library.fedstill_work(*_ints(height, width, like.shape[-1]))
        return _at(self.scratch("work", like, size))


def _at(tensor: Tensor) -> c_void_p:
    """Where its numbers are; the caller keeps the tensor until the library has returned."""
    assert tensor.is_contiguous()
    assert tensor.dtype == torch.float32
    return c_void_p(tensor.data_ptr())


def _ints(*values: int) -> list[c_int]:
    return [c_int(value) for value in values]
