"""First and second derivatives of the papers' ConvNet, written out.

For the network of blocks [3x3 convolution, instance norm, ReLU, 2x2 average pooling] and a linear
layer. ``Derivatives`` at some weights w has four passes over a chunk of images:

    forward         logits
    backward        gradient of a loss by the weights, from that by the logits
    dot_forward     the derivative of the logits along a direction v of the weights
    dot_backward    the derivative along v of the backward pass: d/dt grad L(w + t v) at t = 0

The last is what matching and unrolling need: its part by the pixels is the pixel gradient of
<grad_w L, v>, its part by the weights is the product of the Hessian with v. Differentiating twice
by autograd needs the same number of convolutions; here these share their transforms
(:mod:`tiles`), the norm and the pooling need few passes over memory (:mod:`norm_pool`), and the
first block hardly any (:mod:`first_block`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstill.models.kernels import first_block, norm_pool, tiles
from fedstill.models.kernels.first_block import First, FirstKept, FirstReturned
from fedstill.models.kernels.norm_pool import Affine, Moved, Normed, Returned
from fedstill.types import Params


@dataclass(frozen=True)
class Form:
    """The network: how many blocks, and the padding of the first convolution."""

    blocks: int
    padding: int


@dataclass(frozen=True)
class Block:
    """A block after the first: the weights in Winograd's domain, for both directions."""

    ahead: Tensor
    back: Tensor
    norm: Affine


@dataclass(frozen=True)
class Prepared:
    """Weights, or a direction of them, in the form in which they are used."""

    first: First
    blocks: tuple[Block, ...]
    weight: Tensor  # of the linear layer, inputs in the order [H, W, C]
    bias: Tensor

    @classmethod
    def of(cls, params: Mapping[str, Tensor], form: Form, sides: tuple[int, int]) -> "Prepared":
        """``sides``: of the linear layer's input."""
        weights = {name: value.detach() for name, value in params.items()}
        blocks = tuple(
            Block(
                tiles.enter(weights[f"block{i}.conv.weight"]),
                tiles.enter_reversed(weights[f"block{i}.conv.weight"]),
                _norm(weights, i),
            )
            for i in range(1, form.blocks)
        )
        first = First(weights["block0.conv.weight"].flatten(1), _norm(weights, 0))
        linear = weights["linear.weight"].unflatten(1, (-1, *sides)).permute(0, 2, 3, 1)
        return cls(first, blocks, linear.flatten(1), weights["linear.bias"])


def _norm(weights: Mapping[str, Tensor], block: int) -> Affine:
    return Affine(weights[f"block{block}.norm.weight"], weights[f"block{block}.norm.bias"])


@dataclass
class BlockTrace:
    """What a block keeps of one chunk."""

    sides: tuple[int, int]  # of its input
    spread: Tensor  # its input in the domain
    kept: Normed
    returned: Returned | None = None
    spread_back: Tensor | None = None  # its output gradient in the domain
    scattered: Tensor | None = None  # the same, for the weight gradient
    moved: Moved | None = None
    dot_spread: Tensor | None = None


@dataclass
class Trace:
    """What the network keeps of one chunk of images."""

    sides: tuple[int, int]
    first: FirstKept
    blocks: list[BlockTrace]
    last: Tensor  # the linear layer's input
    logits: Tensor
    by_logits: Tensor | None = None
    returned: FirstReturned | None = None
    dot_folded: Tensor | None = None
    dot_last: Tensor | None = None


@dataclass
class Sums:
    """Sums of weight gradients over chunks; the convolutions' in the domain."""

    form: Form
    parts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, part: Tensor) -> None:
        """Add a part that may be overwritten later."""
        if name in self.parts:
            self.parts[name] += part
        else:
            self.parts[name] = part

    def add_product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add left^T right, position by position."""
        if name in self.parts:
            self.parts[name].baddbmm_(left.mT, right)
        else:
            self.parts[name] = torch.bmm(left.mT, right)

    def add_norm(self, block: int, part: Affine) -> None:
        self.add(f"block{block}.norm.weight", part.scale)
        self.add(f"block{block}.norm.bias", part.shift)

    def result(self, params: Params, sides: tuple[int, int]) -> Params:
        """The sums in the shapes and the order of the weights; zero for what has no gradient."""
        parts = dict(self.parts)
        for i in range(1, self.form.blocks):
            name = f"block{i}.conv.weight"
            parts[name] = tiles.leave(parts[name])
        linear = parts["linear.weight"].unflatten(1, (*sides, -1))
        parts["linear.weight"] = linear.permute(0, 3, 1, 2).reshape(len(linear), -1)
        found: Params = {}
        for name, weight in params.items():  # a bias before an instance norm has none
            part = parts.get(name)
            found[name] = torch.zeros_like(weight) if part is None else part.view(weight.shape)
        return found


def _linear_sides(params: Mapping[str, Tensor], shape: tuple[int, ...], form: Form) -> tuple[int, int]:
    height, width = (side + 2 * form.padding - 2 >> form.blocks for side in shape[1:])
    return height, width


class Derivatives:
    """The four passes at some weights. Not differentiable itself."""

    def __init__(self, params: Params, shape: tuple[int, ...], form: Form) -> None:
        self.form, self.params = form, params
        self.sides = _linear_sides(params, shape, form)
        self.at = self.direction(params)

    def direction(self, params: Mapping[str, Tensor]) -> Prepared:
        """A direction of the weights, for the last two passes."""
        return Prepared.of(params, self.form, self.sides)

    def sums(self) -> Sums:
        return Sums(self.form)

    def result(self, sums: Sums) -> Params:
        """The summed gradients, by name and in the shapes of the weights."""
        return sums.result(self.params, self.sides)

    def forward(self, x: Tensor) -> Trace:
        """Logits, and what the other passes need."""
        out, first = first_block.forward(self.at.first, x, self.form.padding)
        blocks: list[BlockTrace] = []
        for block in self.at.blocks:
            spread = tiles.spread(tiles.padded(out))
            z = tiles.collect(torch.bmm(spread, block.ahead))
            pooled, kept = norm_pool.forward(_by_image(z, len(x)), block.norm)
            blocks.append(BlockTrace((out.shape[1], out.shape[2]), spread, kept))
            out = _images(pooled, out)
        last = out.flatten(1)
        logits = torch.addmm(self.at.bias, last, self.at.weight.t())
        return Trace((x.shape[2], x.shape[3]), first, blocks, last, logits)

    def backward(self, trace: Trace, by_logits: Tensor, sums: Sums | None, *, keep: bool) -> None:
        """Adds the gradient by the weights to ``sums``; ``keep``: for the last pass."""
        many = len(by_logits)
        if sums is not None:
            sums.add("linear.weight", by_logits.t() @ trace.last)
            sums.add("linear.bias", by_logits.sum(0))
        by_out = (by_logits @ self.at.weight).view(many, *self.sides, -1)
        for i, (block, own) in reversed(list(enumerate(zip(self.at.blocks, trace.blocks), 1))):
            dz, norm, returned = norm_pool.backward(own.kept, _pooled(by_out))
            flat = dz.flatten(1, 2)
            spread_back = tiles.spread(tiles.padded_from_tiles(flat, many, own.sides))
            scattered = tiles.scatter(flat)
            if sums is not None:
                sums.add_norm(i, norm)
                sums.add_product(f"block{i}.conv.weight", own.spread, scattered)
            out = tiles.collect(torch.bmm(spread_back, block.back))
            by_out = tiles.as_images(out, many, own.sides).reshape(many, *own.sides, -1)
            if keep:
                own.returned, own.spread_back, own.scattered = returned, spread_back, scattered
        found, first = first_block.backward(self.at.first, trace.first, by_out)
        if sums is not None:
            sums.add("block0.conv.weight", found.weight)
            sums.add_norm(0, found.norm)
        if keep:
            trace.by_logits, trace.returned = by_logits, first

    def dot_forward(self, trace: Trace, along: Prepared) -> Tensor:
        """The derivative of the logits along a direction."""
        out, trace.dot_folded = first_block.dot_forward(self.at.first, trace.first, along.first)
        for block, v, own in zip(self.at.blocks, along.blocks, trace.blocks, strict=True):
            own.dot_spread = tiles.spread(tiles.padded(out))
            products = torch.bmm(own.spread, v.ahead).baddbmm_(own.dot_spread, block.ahead)
            dot_z = _by_image(tiles.collect(products), len(out))
            pooled, own.moved = norm_pool.dot_forward(own.kept, dot_z, v.norm)
            out = _images(pooled, out)
        trace.dot_last = out.flatten(1)
        logits = torch.addmm(along.bias, trace.last, along.weight.t())
        return logits.addmm_(trace.dot_last, self.at.weight.t())

    def dot_backward(
        self, trace: Trace, along: Prepared, dot_by_logits: Tensor, sums: Sums | None
    ) -> Tensor:
        """The derivative along a direction of the gradient by the pixels, and, added to ``sums``,
        of that by the weights."""
        assert trace.by_logits is not None and trace.dot_last is not None
        many, by_logits = len(dot_by_logits), trace.by_logits
        if sums is not None:
            by_weight = dot_by_logits.t() @ trace.last
            sums.add("linear.weight", by_weight.addmm_(by_logits.t(), trace.dot_last))
            sums.add("linear.bias", dot_by_logits.sum(0))
        by_last = (dot_by_logits @ self.at.weight).addmm_(by_logits, along.weight)
        by_out = by_last.view(many, *self.sides, -1)
        parts = list(zip(self.at.blocks, along.blocks, trace.blocks, strict=True))
        for i, (block, v, own) in reversed(list(enumerate(parts, 1))):
            assert own.returned is not None and own.moved is not None
            assert own.spread_back is not None
            dot_dz, norm = norm_pool.dot_backward(
                own.kept, own.returned, own.moved, _pooled(by_out)
            )
            flat = dot_dz.flatten(1, 2)
            if sums is not None:
                assert own.scattered is not None and own.dot_spread is not None
                name = f"block{i}.conv.weight"
                sums.add_norm(i, norm)
                sums.add_product(name, own.dot_spread, own.scattered)
                sums.add_product(name, own.spread, tiles.scatter(flat))
            spread_back = tiles.spread(tiles.padded_from_tiles(flat, many, own.sides))
            products = torch.bmm(spread_back, block.back).baddbmm_(own.spread_back, v.back)
            out = tiles.collect(products)
            by_out = tiles.as_images(out, many, own.sides).reshape(many, *own.sides, -1)
        assert trace.returned is not None and trace.dot_folded is not None
        by_patches, found = first_block.dot_backward(
            self.at.first, trace.first, trace.returned, along.first, trace.dot_folded, by_out
        )
        if sums is not None:
            sums.add("block0.conv.weight", found.weight)
            sums.add_norm(0, found.norm)
        return first_block.to_pixels(by_patches, trace.sides, self.form.padding)


def _by_image(z: Tensor, many: int) -> Tensor:
    """Tiles of outputs [16, N, tiles of an image, C]."""
    return z.view(len(z), many, -1, z.shape[-1])


def _images(pooled: Tensor, before: Tensor) -> Tensor:
    """A pooled tensor [2, 2, N, tiles, C] as images of half the sides of ``before``."""
    many, height, width, _ = before.shape
    split = pooled.view(2, 2, many, height // 4, width // 4, -1).permute(2, 3, 0, 4, 1, 5)
    return split.reshape(many, height // 2, width // 2, -1)


def _pooled(images: Tensor) -> Tensor:
    """The reverse of ``_images``."""
    many, height, width, channels = images.shape
    split = images.view(many, height // 2, 2, width // 2, 2, channels).permute(2, 4, 0, 1, 3, 5)
    return split.reshape(2, 2, many, -1, channels)
