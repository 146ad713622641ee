"""Sketch: clients send class sums of random networks' features once; the server distils.

Distribution matching (Zhao and Bilen, WACV 2023) with the parts divided as in CollabDM (ECAI 2024):
statistics are all that leaves a client, and the images are made at the server; a random-feature
release as in DP-MERF (AISTATS 2021), which trains a generator, and Dosser (ICCV 2025).

    1   server: draw the seed of R random networks; from the second round on, of R points in the
              ball around its weights w; send the seed and w
    2   client k: for every record, the outputs of the last L blocks of every network, each divided
              by its norm; all of them together have norm 1
    3   send their sums by class, and the number of records of each class
    4   server: add the sums up; mean vector per class
    5   S <- images_per_class images per class, noise at first, then the last ones
    6   steps times: one network; S <- S - Adam step on the squared distance between the mean
              vectors of S and the clients'
    7   w <- trained on S

Sums add up over clients, so skew does not matter, and lost clients cost only their records. S is an
ordinary synthetic set that any network can be trained on. Only line 2 reads records: in a private
run it is one release of all records by class, one access per round whatever R and L are; lines 4 to
7 are post-processing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.errors import RequestError, RunError
from fedstill.methods.shared.server_fit import ServerFit
from fedstill.private import PrivateForm
from fedstill.records import SERVER, SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.ball import sample_ball
from fedstill.steps.classes import check_images, labels_for
from fedstill.steps.fit import fit
from fedstill.steps.sketching import Distilling, Networks, Sketched, distil_images, sketch_sums
from fedstill.steps.training import Schedule, initial_weights
from fedstill.steps.warp import ImageAugment, chosen_augment
from fedstill.types import ClientContext, Params, Reply, ServerContext, Stateless, Task
from fedstill.wire import Schema, TensorSpec, params_specs

_LEAST = 0.5  # records: a class with fewer is one that nobody holds
_SEEDS = 2**31


@dataclass(frozen=True)
class Sketching:
    """Down: the seed of the random networks, and the weights (in later rounds their centre)."""

    seed: int
    round: int
    params: Params


@dataclass(frozen=True)
class Sums:
    """Up: sums [classes, networks, size] of the records' vectors, and counts [classes]."""

    sums: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Distilled:
    """Server state: the weights, and the images [held classes, images per class, ...], if any."""

    params: Params
    images: Tensor | None = None
    held: Tensor | None = None
    distance: float = 0.0


@dataclass(frozen=True)
class Sketch(ServerFit, Stateless[Distilled, Sketching, Sums]):
    """Clients send sums of features once; the server makes images that match them, and trains."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"rounds": 1}
    private_rate: ClassVar[float] = 1.0

    networks: Annotated[int, Meta(ge=1)] = 12  # R
    blocks: Annotated[int, Meta(ge=1)] = 2  # L
    radius: Annotated[float, Meta(ge=0)] = 5.0  # of the ball in later rounds
    images_per_class: Annotated[int, Meta(ge=1)] = 20
    steps: Annotated[int, Meta(ge=1)] = 600
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    server_steps: Annotated[int, Meta(ge=1)] = 600
    server_batch: Annotated[int, Meta(ge=1)] = 32
    server_schedule: Schedule = "cosine"
    server_augment: ImageAugment = "auto"

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(1)

    def statistic_size(self, task: Task) -> int:
        return self.drawn(task, 0, 1, {}).size  # the noise of many networks averages out

    def init(self, ctx: ServerContext) -> Distilled:
        return Distilled(ctx.first_weights())

    def download(self, task: Task) -> Schema[Sketching]:
        numbers = {"seed": (0, _SEEDS), "round": (1, task.rounds)}
        return Schema(Sketching, params_specs(task, "params"), numbers)

    def upload(self, task: Task) -> Schema[Sums]:
        refuse_not_images(task)
        chosen_augment(self.server_augment, task)  # refuses what does not fit the records
        size = self.drawn(task, 0, 1, {}).size
        # A record adds at most 1 to a number; the rest is room for noise.
        most = task.limits.records + task.limits.norm

        def numbers(*shape: int) -> TensorSpec:
            return TensorSpec(shape, low=-most, high=most, setting="wire.max_norm")

        sums = numbers(task.classes, self.networks, size)
        return Schema(Sums, {"sums": sums, "counts": numbers(task.classes)})

    def broadcast(self, ctx: ServerContext, state: Distilled) -> Sketching:
        seed = int(ctx.rng.at("networks").numpy().integers(_SEEDS))
        return Sketching(seed, ctx.round, state.params)  # line 1

    def drawn(self, task: Task, seed: int, number: int, centre: Params) -> Networks:
        """The networks of a round, the same on both sides."""
        rng = Rng(seed)

        def network(place: int) -> Params:
            stream = rng.at("network", place)
            if number == 1:
                return initial_weights(task, stream)
            return sample_ball(centre, self.radius, stream.torch())

        return Networks(task, tuple(map(network, range(self.networks))), self.blocks)

    def client(self, ctx: ClientContext, message: Sketching, state: None) -> tuple[Sums, None]:
        networks = self.drawn(ctx.task, message.seed, message.round, message.params)
        if ctx.private is None:
            check_images(ctx)
            sums, counts = sketch_sums(ctx.records, networks, ctx.task.classes)  # lines 2, 3
            return Sums(sums.float(), counts.float()), None
        door = ctx.private
        # Vectors of norm 1 are brought to the clip exactly: none is cut, and no noise is wasted.
        found = door.noisy_class_sums(Sketched(networks, door.class_clip))
        shape = (ctx.task.classes, self.networks, networks.size)
        released = torch.zeros(shape, device=ctx.task.device)
        noisy = released.new_zeros(ctx.task.classes)
        released[door.classes] = found.sums["sum"] / door.class_clip
        noisy[door.classes] = found.counts
        return Sums(released, noisy), None

    def server(
        self, ctx: ServerContext, state: Distilled, replies: Sequence[Reply[Sums]]
    ) -> Distilled:
        sums = torch.stack([r.message.sums.double() for r in replies]).sum(0)  # line 4
        counts = torch.stack([r.message.counts.double() for r in replies]).sum(0)
        held = (counts >= _LEAST).nonzero().flatten()
        if not len(held):
            raise RunError("no client has a record: there is nothing to distil")
        means = (sums[held] / counts[held][:, None, None]).float()
        request = self.broadcast(ctx, state)
        networks = self.drawn(ctx.task, request.seed, ctx.round, state.params)
        images, distance = distil_images(  # line 6
            networks,
            means,
            self.first_images(ctx, state, held),
            Distilling(self.steps, self.pixel_learning_rate),
            ctx.rng.at("distil"),
            ctx.progress,
        )
        params = fit(  # line 7
            ctx.task,
            state.params,
            images.flatten(0, 1),
            labels_for(held, self.images_per_class),
            ctx.rng.at("fit"),
            self.training_for(),
            iterations=self.server_steps,
            progress=ctx.progress,
        )
        return Distilled(params, images, held, distance)

    def first_images(self, ctx: ServerContext, state: Distilled, held: Tensor) -> Tensor:
        """Line 5: noise; in later rounds the last images of the classes that have some."""
        shape = (ctx.task.classes, self.images_per_class, *ctx.task.shape)
        noise = torch.randn(shape, generator=ctx.rng.at("images").torch()).to(ctx.task.device)
        if state.images is not None and state.held is not None:
            noise[state.held] = state.images
        return noise[held]

    def params(self, state: Distilled) -> Params:
        return state.params

    def synthetic(
        self, state: Distilled, replies: Sequence[Reply[Sums]]
    ) -> dict[int, SyntheticSet]:
        """The server's set."""
        if state.images is None or state.held is None:
            return {}
        labels = labels_for(state.held, self.images_per_class)
        return {SERVER: SyntheticSet(state.images.flatten(0, 1), labels)}

    def report(self, state: Distilled, replies: Sequence[Reply[Sums]]) -> dict[str, float]:
        """Squared distance between the images' mean vectors and the clients', per class."""
        return {"matching_loss": state.distance}


def refuse_not_images(task: Task) -> None:
    """Refuse texts: images of tokens cannot be optimised."""
    if task.model.continuous_shape is not None:
        raise RequestError(
            "method: sketch distils images, and the records are text; "
            "fedavg, fedprox, scaffold and others that send weights take any records"
        )
