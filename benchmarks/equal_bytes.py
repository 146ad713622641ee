"""Distilled sets against records at equal bytes: accuracy of one round, and its measured upload.

    python benchmarks/equal_bytes.py --data-dir DIR [--data cifar10] [--seeds 0] ROW ...

A row is SHRINK/BITS/IMAGES[/START[/NETWORKS]]: images at 1/SHRINK of their sides, BITS per pixel by
the context coder, IMAGES per class and client. START: `random` records, the records `near` centres
of k-means (`choose = "centres"`), or the `mean` of the 4 records nearest to each centre
(in pixels). NETWORKS: the pixels are then matched, as they will arrive, to the features of `new`
networks, or of `local` ones that the client trains a little. Rows without a start are those of
`fedstill run real --set method.shrink=SHRINK --set wire.up=bitsBITS+context`, to the bit.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedstill import wire
from fedstill.build import BuiltExperiment, build
from fedstill.data import DataSettings, load
from fedstill.methods.real import Real
from fedstill.methods.shared.surrogate import Distilled
from fedstill.records import SyntheticSet
from fedstill.steps.augment import draw_augmentation
from fedstill.steps.centres import k_means
from fedstill.steps.classes import ByClass, labels_of, real_images
from fedstill.steps.distil import PixelSteps, after, seen_images
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.matching import Matching, class_means, pixel_gradient
from fedstill.steps.pixel_optimiser import PixelAdam
from fedstill.steps.resize import shrunk
from fedstill.steps.scores import score
from fedstill.steps.training import Descent, Training
from fedstill.steps.warp import WARPS
from fedstill.types import ClientContext, Params, Reply, ServerContext

SKEW = {"cifar10": "dirichlet:0.1"}  # others: 0.01
CHOICES: dict[str, Literal["random", "centres"]] = {"random": "random", "near": "centres"}
MOST_CLUSTERED, MEAN_OF, LOCAL_RATE = 500, 4, 0.02


@dataclass(frozen=True)
class Row:
    """One way to make a set."""

    shrink: int
    bits: int
    images: int
    start: str = "random"
    networks: str = "none"

    @classmethod
    def parse(cls, text: str) -> "Row":
        shrink, bits, images, *rest = text.split("/")
        return cls(int(shrink), int(bits), int(images), *rest)


def first_images(ctx: ClientContext, by_class: ByClass, row: Row, params: Params) -> Tensor:
    """The start of a client's set, small, in slot form."""
    if row.start != "mean":
        method = Real(images_per_class=row.images, shrink=row.shrink, choose=CHOICES[row.start])
        return shrunk(method.chosen(ctx, by_class, params), row.shrink)
    generator, labels = ctx.rng.at("images").torch(), ctx.records.labels
    images = shrunk(real_images(ctx, by_class, row.images, generator), row.shrink)
    for slot, label in enumerate(by_class.held.tolist()):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) <= row.images:
            continue
        rows = rows[torch.randperm(len(rows), generator=generator)[:MOST_CLUSTERED]]
        small = shrunk(ctx.records.take(rows)[0], row.shrink)
        pixels = small.flatten(1)
        order = torch.cdist(pixels, k_means(pixels, row.images, generator)).argsort(0)
        images[slot] = small[order[:MEAN_OF]].mean(0)
    return images


def networks(ctx: ClientContext, by_class: ByClass, kind: str, draws: int) -> Iterator[Params]:
    """New weights per draw, or those of one network that is trained on records between draws."""
    stream, local = ctx.rng.at("weights").torch(), ctx.rng.at("local").torch()
    if kind == "new":
        yield from (ctx.task.model.init(stream) for _ in range(draws))
        return
    params = tracked(ctx.task.model.init(stream))
    descent = Descent(params, Training(LOCAL_RATE, momentum=0.9))
    for _ in range(draws):
        yield {name: weight.detach() for name, weight in params.items()}
        for _ in range(3):
            x, y = ctx.records.take(by_class.draw(8, local)[0])
            if ctx.task.kind == "photo":
                x = WARPS["photo"](x, local)
            descent.step(batch_gradient(ctx.task, params, x, y, None, local)[0], LOCAL_RATE)


def matched(
    ctx: ClientContext, by_class: ByClass, row: Row, start: Tensor, options: argparse.Namespace
) -> Tensor:
    """The images after Adam's steps on the distance of mean features, one DSA draw per network."""
    images = start.clone()
    task = replace(ctx.task, sent_bits=row.bits)
    pixels = PixelSteps("adam", options.rate, 0.0, options.real, as_sent=True, shrink=row.shrink)
    optimiser = PixelAdam(images, options.rate)
    batches, augments = ctx.rng.at("batches").torch(), ctx.rng.at("augment").torch()
    scaling, counts = task.scaling, by_class.counts.clamp(max=options.real)
    ends = [scaling(torch.full((1, images.shape[2], 1, 1), end)) for end in (0.0, 1.0)]
    for draw, params in enumerate(networks(ctx, by_class, row.networks, options.draws)):
        augment = draw_augmentation("dsa", augments, flip=ctx.task.kind != "writing")
        seen = after(seen_images(task, pixels), augment)
        positions, slots = by_class.draw(options.real, batches)
        chunks = zip(positions.split(32), slots.split(32), strict=True)
        real = ((augment(ctx.records.take(p)[0]), s) for p, s in chunks)
        features = Matching(layers=2)
        wanted = class_means(ctx.task, params, real, counts, features)
        # The logits are left out: those of new networks say nothing.
        weights = {name: w * (not name.startswith("linear")) for name, w in params.items()}
        wanted = (wanted[0], torch.zeros_like(wanted[1]))
        for _ in range(options.steps):
            images.grad, _ = pixel_gradient(ctx.task, weights, images, wanted, features, seen)
            optimiser._rate = options.rate * (1 - 0.9 * draw / options.draws)
            optimiser.step()
        images.grad = None
        images.copy_(torch.maximum(torch.minimum(images, ends[1]), ends[0]))
    return images


def measured(built: BuiltExperiment, row: Row, options: argparse.Namespace) -> tuple[int, float]:
    """The bytes that all clients upload, and the test accuracy of the server's fit on them."""
    method = Real(images_per_class=row.images, shrink=row.shrink)
    task, codec = built.task, f"bits{row.bits}+context"
    state = method.init(ServerContext(task, 0, built.rng.at("round", 0, "server")))
    schema, replies, sent = method.upload(task), [], 0
    for client in built.candidates:
        ctx = built.runner.context(1, client)
        by_class = ByClass(ctx.records)
        images = first_images(ctx, by_class, row, state.params)
        if row.networks != "none":
            images = matched(ctx, by_class, row, images, options)
        synthetic = SyntheticSet(images.flatten(0, 1), labels_of(by_class, row.images))
        data = wire.encode(Distilled(synthetic, 0, 0.0), schema, codec)
        replies.append(Reply(client, wire.decode(data, schema, codec, task.device)))
        sent += len(data)
    server = ServerContext(task, 1, built.rng.at("round", 1, "server"))
    state = method.server(server, state, replies)
    test = replace(
        built.runner.records.of(0, task),
        split=built.dataset.test,
        index=torch.arange(len(built.dataset.test)),
    )
    return sent, 100 * score(task, method.params(state), test).accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="+", metavar="SHRINK/BITS/IMAGES[/START[/NETWORKS]]")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--draws", type=int, default=15, help="of networks")
    parser.add_argument("--steps", type=int, default=8, help="on pixels, per network")
    parser.add_argument("--rate", type=float, default=0.05, help="of Adam, per step")
    parser.add_argument("--real", type=int, default=32, help="records per class and network")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # classes with few records repeat them
    dataset = load(DataSettings(options.data, options.data_dir))
    for seed in options.seeds:
        request = {
            "method": {"name": "real"},
            "data": {"name": options.data},
            "model": {"name": "convnet-small"},
            "partition": SKEW.get(options.data, "dirichlet:0.01"),
            "clients": 10,
            "rounds": 1,
            "seed": seed,
        }
        built = build(request, dataset=dataset)
        for text in options.rows:
            begun = time.process_time()
            sent, accuracy = measured(built, Row.parse(text), options)
            seconds = time.process_time() - begun
            print(
                f"{options.data} seed {seed} {text:24} {sent / 1e3:8.1f} kB {accuracy:5.1f}"
                f"  ({seconds:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
