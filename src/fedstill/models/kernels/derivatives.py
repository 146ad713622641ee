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
from fedstill.models.kernels.first_block import First, FirstKept, FirstMoved, FirstReturned
from fedstill.models.kernels.norm_pool import Affine, Moved, Normed, Returned
from fedstill.types import Params


@dataclass(frozen=True)
class Form:
    """The network: its blocks, the padding of the first convolution, the sides of the linear
    layer's input, and how many images are computed at a time."""

    blocks: int
    padding: int
    sides: tuple[int, int]
    chunk: int


@dataclass(frozen=True)
class Block:
    """A block after the first: the weights in Winograd's domain."""

    weight: Tensor
    norm: Affine


@dataclass(frozen=True)
class Prepared:
    """Weights, or a direction of them, in the form in which they are used."""

    first: First
    blocks: tuple[Block, ...]
    weight: Tensor  # of the linear layer, inputs in the order [H, W, C]
    bias: Tensor

    @classmethod
    def of(cls, params: Mapping[str, Tensor], form: Form) -> "Prepared":
        """From the weights by name; convolution biases are not needed."""
        weights = {name: value.detach() for name, value in params.items()}
        blocks = tuple(
            Block(tiles.enter(weights[f"block{i}.conv.weight"]), _norm(weights, i))
            for i in range(1, form.blocks)
        )
        first = First(weights["block0.conv.weight"].flatten(1).t().contiguous(), _norm(weights, 0))
        linear = weights["linear.weight"].unflatten(1, (-1, *form.sides)).permute(0, 2, 3, 1)
        return cls(first, blocks, linear.flatten(1), weights["linear.bias"])


def _norm(weights: Mapping[str, Tensor], block: int) -> Affine:
    return Affine(weights[f"block{block}.norm.weight"], weights[f"block{block}.norm.bias"])


@dataclass(frozen=True)
class BlockTrace:
    """A block after the first, of one chunk: after the forward pass."""

    sides: tuple[int, int]  # of its input
    spread: Tensor  # its input in the domain
    kept: Normed


@dataclass(frozen=True)
class BlockBack:
    """After the backward pass: the gradient by the convolution's output in the domain."""

    scattered: Tensor
    returned: Returned


@dataclass(frozen=True)
class BlockDot:
    """After the forward pass of the tangents: the input's in the domain."""

    spread: Tensor
    moved: Moved


@dataclass(frozen=True)
class Trace:
    """One chunk of images after the forward pass."""

    sides: tuple[int, int]
    first: FirstKept
    blocks: tuple[BlockTrace, ...]
    last: Tensor  # the linear layer's input
    logits: Tensor


@dataclass(frozen=True)
class Back:
    """After the backward pass."""

    first: FirstReturned
    blocks: tuple[BlockBack, ...]
    by_logits: Tensor


@dataclass(frozen=True)
class Dot:
    """After the forward pass of the tangents."""

    first: FirstMoved
    blocks: tuple[BlockDot, ...]
    last: Tensor
    logits: Tensor


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
        """Add gradients by scale and shift."""
        self.add(f"block{block}.norm.weight", part.scale)
        self.add(f"block{block}.norm.bias", part.shift)

    def result(self, params: Params) -> Params:
        """The sums in the shapes and the order of the weights; zero for what has no gradient."""
        parts = dict(self.parts)
        for i in range(1, self.form.blocks):
            name = f"block{i}.conv.weight"
            parts[name] = tiles.leave(parts[name])
        linear = parts["linear.weight"].unflatten(1, (*self.form.sides, -1))
        parts["linear.weight"] = linear.permute(0, 3, 1, 2).reshape(len(linear), -1)
        found: Params = {}
        for name, weight in params.items():  # a bias before an instance norm has none
            part = parts.get(name)
            found[name] = torch.zeros_like(weight) if part is None else part.reshape(weight.shape)
        return found


class Derivatives:
    """The four passes at some weights. Not differentiable itself."""

    def __init__(self, params: Params, form: Form) -> None:
        self.form, self.params = form, params
        self.at = self.direction(params)

    @property
    def chunk(self) -> int:
        """How many images are computed at a time."""
        return self.form.chunk

    @torch.no_grad()
    def direction(self, params: Mapping[str, Tensor]) -> Prepared:
        """A direction of the weights, for the last two passes."""
        return Prepared.of(params, self.form)

    def sums(self) -> Sums:
        """Nothing yet."""
        return Sums(self.form)

    @torch.no_grad()
    def result(self, sums: Sums) -> Params:
        """The summed gradients, by name and in the shapes of the weights."""
        return sums.result(self.params)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Trace:
        """Logits, and what the other passes need."""
        out, first = first_block.forward(self.at.first, x, self.form.padding)
        blocks: list[BlockTrace] = []
        for block in self.at.blocks:
            spread = tiles.spread(tiles.padded(out))
            z = tiles.collect(torch.bmm(spread, block.weight))
            pooled, kept = norm_pool.forward(_by_image(z, len(x)), block.norm)
            blocks.append(BlockTrace((out.shape[1], out.shape[2]), spread, kept))
            out = _images(pooled, out)
        last = out.flatten(1)
        logits = torch.addmm(self.at.bias, last, self.at.weight.t())
        return Trace((x.shape[2], x.shape[3]), first, tuple(blocks), last, logits)

    @torch.no_grad()
    def backward(self, trace: Trace, by_logits: Tensor, sums: Sums | None) -> Back:
        """Adds the gradient by the weights to ``sums``."""
        if sums is not None:
            sums.add("linear.weight", by_logits.t() @ trace.last)
            sums.add("linear.bias", by_logits.sum(0))
        by_out = (by_logits @ self.at.weight).view(len(by_logits), *self.form.sides, -1)
        blocks: list[BlockBack] = []
        parts = list(zip(self.at.blocks, trace.blocks, strict=True))
        for i, (block, own) in reversed(list(enumerate(parts, 1))):
            dz, norm, returned = norm_pool.backward(own.kept, _pooled(by_out))
            scattered = tiles.scatter(dz.flatten(1, 2))
            if sums is not None:
                sums.add_norm(i, norm)
                sums.add_product(f"block{i}.conv.weight", own.spread, scattered)
            products = torch.bmm(scattered, block.weight.mT)
            by_out = tiles.unspread(products, len(by_out), own.sides)
            blocks.append(BlockBack(scattered, returned))
        found, first = first_block.backward(self.at.first, trace.first, by_out)
        if sums is not None:
            _add_first(sums, found)
        return Back(first, tuple(reversed(blocks)), by_logits)

    @torch.no_grad()
    def dot_forward(self, trace: Trace, along: Prepared) -> Dot:
        """The derivative of the logits along a direction, and what the last pass needs."""
        out, first = first_block.dot_forward(self.at.first, trace.first, along.first)
        blocks: list[BlockDot] = []
        for block, v, own in zip(self.at.blocks, along.blocks, trace.blocks, strict=True):
            spread = tiles.spread(tiles.padded(out))
            products = torch.bmm(own.spread, v.weight).baddbmm_(spread, block.weight)
            dot_z = _by_image(tiles.collect(products), len(out))
            pooled, moved = norm_pool.dot_forward(own.kept, dot_z, v.norm)
            blocks.append(BlockDot(spread, moved))
            out = _images(pooled, out)
        last = out.flatten(1)
        logits = torch.addmm(along.bias, trace.last, along.weight.t())
        return Dot(first, tuple(blocks), last, logits.addmm_(last, self.at.weight.t()))

    @torch.no_grad()
    def dot_backward(
        self,
        trace: Trace,
        back: Back,
        dot: Dot,
        along: Prepared,
        dot_by_logits: Tensor,
        sums: Sums | None,
    ) -> Tensor:
        """The derivative along a direction of the gradient by the pixels, and, added to ``sums``,
        of that by the weights."""
        if sums is not None:
            by_weight = dot_by_logits.t() @ trace.last
            sums.add("linear.weight", by_weight.addmm_(back.by_logits.t(), dot.last))
            sums.add("linear.bias", dot_by_logits.sum(0))
        by_last = (dot_by_logits @ self.at.weight).addmm_(back.by_logits, along.weight)
        by_out = by_last.view(len(by_last), *self.form.sides, -1)
        for i in reversed(range(len(trace.blocks))):
            block, v = self.at.blocks[i], along.blocks[i]
            own, own_back, own_dot = trace.blocks[i], back.blocks[i], dot.blocks[i]
            dot_dz, norm = norm_pool.dot_backward(
                own.kept, own_back.returned, own_dot.moved, _pooled(by_out)
            )
            scattered = tiles.scatter(dot_dz.flatten(1, 2))
            if sums is not None:
                name = f"block{i + 1}.conv.weight"
                sums.add_norm(i + 1, norm)
                sums.add_product(name, own_dot.spread, own_back.scattered)
                sums.add_product(name, own.spread, scattered)
            products = torch.bmm(scattered, block.weight.mT)
            products.baddbmm_(own_back.scattered, v.weight.mT)
            by_out = tiles.unspread(products, len(by_out), own.sides)
        by_patches, found = first_block.dot_backward(
            self.at.first, trace.first, back.first, along.first, dot.first, by_out
        )
        if sums is not None:
            _add_first(sums, found)
        return first_block.to_pixels(by_patches, trace.sides, self.form.padding)


def _add_first(sums: Sums, found: First) -> None:
    sums.add("block0.conv.weight", found.weight.t())
    sums.add_norm(0, found.norm)


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
