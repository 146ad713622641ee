"""FedSynth: Hu et al., "FedSynth: Gradient Compression via Synthetic Data in Federated Learning"
(2022), as one poster page describes it.

    1   server: w <- init
    2   for each round:
    3       send w to the sampled clients
    4       client k: D <- m batches (x_i, y_i): random records of client k, or noise
    5       E times:
    6           w_syn <- ClientUpdate(D; w)
    7           g <- gradient of F_k(D_k; .) at w_syn, over a batch of its records
    8           D <- D - eta * (g backpropagated through line 6)
    9       client k: send D
    10      server: w_k <- ClientUpdate(D_k; w) for every k
    11      server: w <- w + mean_k (w_k - w)
    12  ClientUpdate(D; w): m times  w <- w - eta_i * gradient of the mean loss over (x_i, y_i)

Client and server run the same line 12, so the server recovers the client's w_syn to the bit (with
the exact codec and equally many threads). With ``labels = "trainable"`` line 8 also updates the
labels: distributions, the softmax of logits. They start at classes, or at w's own predictions
(``initial_labels``), which make line 12 change nothing before line 8 has. The poster does not
specify how D is initialised, E, the learning rates and the batch of line 7; it takes plain gradient
steps in line 8 (here ``sgd``). It has one eta_w for all steps; with ``step_sizes = "trainable"``
line 8 also updates the logarithms of the eta_i, which are sent with D.

With ``target = "update"``, which is ours, D repeats an update that is known, instead of looking for
one: the client first trains w_k from w by SGD on its records, as in FedAvg, and line 7 is the
gradient of 1/2 |w_syn - w_k|^2 / |w_k - w|^2, for which no record is read again.

The size of D follows from the requested ``compression``: weights of the model / numbers in D. A
fixed label counts as one number: it is sent in four bytes, as a float is. So does a learnt eta_i.

With privacy on line 4 is noise, and g of line 7 is one access: a noisy mean of the clipped
gradients at w_syn of a Poisson sample. Line 8 backpropagates it through D and w alone. With
``target = "update"`` an access is a step of the local SGD, and all of lines 5 to 8 is made of its
result. The records' losses, sent for the report, are not sanitised (``report_losses`` must be off).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from fedstill.errors import RequestError
from fedstill.methods.shared.compression import examples_per_batch
from fedstill.methods.shared.messages import LOSSES, Weights, input_spec, record_range
from fedstill.methods.shared.weighting import Weighting, client_weights, weighting_leaks
from fedstill.methods.shared.weights_down import WeightsDown
from fedstill.private import Leak, PrivateForm
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.arithmetic import add, norm, scaled, subtract, weighted_sum
from fedstill.steps.classes import Initial
from fedstill.steps.distil import PixelOptimiser
from fedstill.steps.examples import Example, noise_examples, record_examples
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.local_sgd import local_sgd, private_steps
from fedstill.steps.per_record import weight_gradients
from fedstill.steps.released import initial_leaks
from fedstill.steps.soft_labels import label_logits, soft_labels, softmax_backward
from fedstill.steps.training import SCHEDULES, Decay, Schedule, Training, decayed
from fedstill.steps.unroll import Batches, Rates, backward, sgd_steps, unroll
from fedstill.types import ClientContext, Params, Reply, ServerContext, Task, silent
from fedstill.wire import Schema, TensorSpec
from fedstill.wire.tree import flatten

DEFAULT_COMPRESSION = 8.0
STEP_SIZE_FACTOR = 1000.0  # a learnt step size stays within this factor of ``learning_rate``

GradientAt = Callable[[Params, int], Params]  # maps w_syn, and the iteration, to line 7


@dataclass(frozen=True)
class SyntheticBatches:
    """Up: D, the client's number of records, and the mean loss of a batch of them at w and at w_syn
    (0 without ``report_losses``)."""

    batches: Batches
    records: int
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class SteppedBatches(SyntheticBatches):
    """Up, where step sizes are learnt: the eta_i too."""

    step_sizes: Tensor


@dataclass(frozen=True)
class FedSynth(WeightsDown[SyntheticBatches]):  # lines 1 and 3: WeightsDown
    """Clients send synthetic batches; SGD on them gives the server each client's update."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {"initial": "noise", "report_losses": False}

    compression: Annotated[float, Meta(gt=0)] | None = None  # None: 8, or as batch_size implies
    batches: Annotated[int, Meta(ge=1)] = 4  # m
    batch_size: Annotated[int, Meta(ge=1)] | None = None  # None: as compression allows
    labels: Literal["fixed", "trainable"] = "fixed"
    # Where trainable labels start: at a class each, or at what w predicts for the initial inputs,
    # so that D first changes nothing.
    initial_labels: Literal["classes", "predicted"] = "classes"
    initial: Initial = "real"
    initial_scale: Annotated[float, Meta(gt=0)] = 1.0  # standard deviation of initial noise
    iterations: Annotated[int, Meta(ge=0)] = 10  # E
    learning_rate: Annotated[float, Meta(gt=0)] = 0.1  # eta_w
    step_sizes: Literal["fixed", "trainable"] = "fixed"  # eta_i: all eta_w, or learnt from there
    real_batch: Annotated[int, Meta(ge=1)] = 256  # records per iteration
    synthetic_optimiser: PixelOptimiser = "adam"
    input_learning_rate: Annotated[float, Meta(gt=0)] = 0.1  # eta
    label_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    step_size_learning_rate: Annotated[float, Meta(gt=0)] = 0.1  # of their logarithms
    schedule: Schedule = "constant"  # of these learning rates, over the iterations
    weighting: Weighting = "uniform"
    report_losses: bool = True  # the clients' mean loss at w and at w_syn
    # What D is for: a low loss at w_syn (the poster), or the update of the client's own SGD, by:
    target: Literal["loss", "update"] = "loss"
    local_epochs: Annotated[int, Meta(ge=1)] = 1
    local_steps: Annotated[int, Meta(ge=1)] | None = None  # instead of epochs
    local_batch: Annotated[int, Meta(ge=1)] = 32
    local_learning_rate: Annotated[float, Meta(gt=0)] = 0.05
    local_decay: Decay = "none"  # of that rate, over the rounds

    def __post_init__(self) -> None:
        if self.compression is not None and self.batch_size is not None:
            raise RequestError(
                f"method.compression: {self.compression:g} and method.batch_size "
                f"{self.batch_size} both set the size; give one of them"
            )
        if self.initial_labels == "predicted" and self.labels == "fixed":
            raise RequestError(
                "method.initial_labels: 'predicted' are distributions, which fixed labels are not; "
                "set method.labels = 'trainable' too"
            )

    def private_form(self, rate: float) -> PrivateForm:
        leaks = list(initial_leaks(self.initial))
        if self.report_losses:
            why = "the clients' losses on their records would be sent without noise"
            remedy = "set method.report_losses = false"
            leaks.append(Leak("report_losses", self.report_losses, why, remedy))
        steps = private_steps(self.local_epochs, rate, self.local_steps)
        return PrivateForm(self.iterations if self.target == "loss" else steps, tuple(leaks))

    @property
    def size_leaks(self) -> tuple[Leak, ...]:
        return weighting_leaks(self.weighting)

    @property
    def step_size_range(self) -> tuple[float, float]:
        """The smallest and the largest learnt eta_i."""
        return self.learning_rate / STEP_SIZE_FACTOR, self.learning_rate * STEP_SIZE_FACTOR

    def example(self, task: Task) -> Example:
        """The shapes of one synthetic example."""
        return Example.of(task, soft=self.labels == "trainable")

    def size(self, task: Task, example: Example) -> tuple[int, int]:
        """The number of batches, and of examples per batch."""
        if self.batch_size is not None:
            return self.batches, self.batch_size
        rate = DEFAULT_COMPRESSION if self.compression is None else self.compression
        besides = 1 if self.step_sizes == "trainable" else 0
        return self.batches, examples_per_batch(task, example, rate, self.batches, besides)

    def upload(self, task: Task) -> Schema[SyntheticBatches]:
        example = self.example(task)
        size = self.size(task, example)
        label = (*size, *example.label)
        tensors = {
            "batches.x": input_spec(task, *size, *example.input),
            "batches.y": TensorSpec(label, torch.float32, 0, 1)
            if example.soft
            else TensorSpec(label, torch.int32, 0, example.classes - 1),
        }
        kind: type[SyntheticBatches] = SyntheticBatches
        if self.step_sizes == "trainable":
            low, high = self.step_size_range
            tensors["step_sizes"] = TensorSpec((self.batches,), low=low, high=high)
            kind = SteppedBatches
        losses = LOSSES if self.report_losses else (0.0, 0.0)
        numbers = {"loss_before": losses, "loss_after": losses}
        records = record_range(task, self.weighting == "records")
        return Schema(kind, tensors, {**numbers, "records": records})

    def client(
        self, ctx: ClientContext, message: Weights, state: None
    ) -> tuple[SyntheticBatches, None]:
        x, labels = self.start(ctx, message.params)  # line 4
        log_sizes = torch.full((self.batches,), math.log(self.learning_rate), device=x.device)
        optimiser = self.optimiser(x, labels, log_sizes)
        decay = LambdaLR(optimiser, self.decay)
        of_target = self.of_loss if self.target == "loss" else self.of_update
        gradient_at = of_target(ctx, message.params)
        for iteration in range(self.iterations):  # line 5
            up = self.as_sent(x, labels, log_sizes)
            path = unroll(ctx.task, message.params, up.batches, self.rates(up))  # line 6
            gradient = gradient_at(path.end, iteration)  # line 7
            found = backward(ctx.task, path, up.batches, self.rates(up), gradient)  # line 8
            x.grad = found.x
            if labels.is_floating_point():
                labels.grad = softmax_backward(up.batches.y, found.y)
            if isinstance(up, SteppedBatches):
                log_sizes.grad = up.step_sizes * up.step_sizes.new_tensor(found.learning_rates)
            optimiser.step()
            decay.step()
            ctx.progress(iteration + 1, self.iterations)
        up = self.as_sent(x, labels, log_sizes)
        before, after = self.losses(ctx, message, up) if self.report_losses else (0.0, 0.0)
        records = ctx.size if self.weighting == "records" else 0
        return replace(up, records=records, loss_before=before, loss_after=after), None  # line 9

    def losses(
        self, ctx: ClientContext, down: Weights, up: SyntheticBatches
    ) -> tuple[float, float]:
        """For the report: the mean loss over one batch of records at w and at w_syn."""
        sample = ctx.rng.at("report")
        _, before = self.record_gradient(ctx, down.params, sample)
        _, after = self.record_gradient(ctx, self.recovered(ctx.task, down, up), sample)
        return before, after

    def start(self, ctx: ClientContext, params: Params) -> tuple[Tensor, Tensor]:
        """Line 4: inputs, and labels (class numbers, or the logits of distributions)."""
        example = self.example(ctx.task)
        size = self.size(ctx.task, example)
        generator = ctx.rng.at("start").torch()
        if self.initial == "real":
            x, y = record_examples(ctx, params, math.prod(size), generator)
        else:
            x, y = noise_examples(ctx.task, example, math.prod(size), generator, self.initial_scale)
        if self.initial_labels == "predicted":
            with torch.no_grad():
                logits = ctx.task.model.apply_continuous(params, x)
            return x.unflatten(0, size).clone(), logits.unflatten(0, size)
        x, labels = x.unflatten(0, size).clone(), y.unflatten(0, size).int()
        # The loss ignores a negative label (padding of a text); a fixed label must be a class.
        return x, label_logits(labels, example.classes) if example.soft else labels.clamp(min=0)

    def of_loss(self, ctx: ClientContext, params: Params) -> GradientAt:
        """Line 7 as the poster has it: the gradient of the records' loss."""
        door = ctx.private
        if door is not None:
            return lambda w_syn, _: door.noisy_mean(weight_gradients(ctx.task, w_syn))
        rng = ctx.rng
        return lambda w_syn, i: self.record_gradient(ctx, w_syn, rng.at("batch", i))[0]

    def of_update(self, ctx: ClientContext, params: Params) -> GradientAt:
        """Line 7 with ``target = "update"``: of the distance to where the client's SGD leads.

        The distance is relative to the update, so that learning rates of D suit every round.
        """
        rate = decayed(self.local_learning_rate, self.local_decay, ctx.round, ctx.task.rounds)
        training = Training(rate, batch_size=self.local_batch, epochs=self.local_epochs)
        own = replace(ctx, rng=ctx.rng.at("local"), progress=silent)
        trained = local_sgd(own, params, training, steps=self.local_steps)
        length = float(norm(subtract(trained, params)))
        scale = length**-2 if length else 1.0
        return lambda w_syn, _: scaled(subtract(w_syn, trained), scale)

    def record_gradient(self, ctx: ClientContext, params: Params, rng: Rng) -> tuple[Params, float]:
        """Line 7: gradient and value of the mean loss over a batch of records.

        Apart from ``initial = "real"`` and local SGD, which has its own private form, the only
        place that reads records outside the private door.
        """
        rows = torch.randperm(len(ctx.records), generator=rng.torch())[: self.real_batch]
        x, y = ctx.records.take(rows)
        weights = tracked(params)
        gradient, loss = batch_gradient(ctx.task, weights, x, y)
        return dict(zip(weights, gradient, strict=True)), float(loss)

    def optimiser(self, x: Tensor, labels: Tensor, log_sizes: Tensor) -> torch.optim.Optimizer:
        """The optimiser of D in line 8. It leaves alone what gets no gradient."""
        groups: list[dict[str, Any]] = [
            {"params": [x], "lr": self.input_learning_rate},
            {"params": [labels], "lr": self.label_learning_rate},
            {"params": [log_sizes], "lr": self.step_size_learning_rate},
        ]
        if self.synthetic_optimiser == "adam":
            return torch.optim.Adam(groups)
        return torch.optim.SGD(groups)

    def decay(self, iteration: int) -> float:
        """The factor on the learning rates of line 8."""
        return SCHEDULES[self.schedule](iteration / max(self.iterations, 1))

    def as_sent(self, x: Tensor, labels: Tensor, log_sizes: Tensor) -> SyntheticBatches:
        """Labels as distributions, and step sizes within their range."""
        y = soft_labels(labels) if labels.is_floating_point() else labels
        if self.step_sizes == "fixed":
            return SyntheticBatches(Batches(x.detach(), y), 0, 0.0, 0.0)
        sizes = log_sizes.detach().exp().clamp(*self.step_size_range)
        return SteppedBatches(Batches(x.detach(), y), 0, 0.0, 0.0, sizes)

    def rates(self, up: SyntheticBatches) -> Rates:
        """The eta_i of line 12."""
        return up.step_sizes.tolist() if isinstance(up, SteppedBatches) else self.learning_rate

    def recovered(self, task: Task, down: Weights, up: SyntheticBatches) -> Params:
        """Line 12: ClientUpdate, at client and server."""
        return sgd_steps(task, down.params, up.batches, self.rates(up))

    def server(
        self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[SyntheticBatches]]
    ) -> Weights:
        updates = [
            subtract(self.recovered(ctx.task, state, reply.message), state.params)
            for reply in replies  # line 10
        ]
        shares = client_weights(replies, self.weighting)
        return Weights(add(state.params, weighted_sum(updates, shares)))  # line 11

    def synthetic(
        self, state: Weights, replies: Sequence[Reply[SyntheticBatches]]
    ) -> dict[int, SyntheticSet]:
        """The sets of this round, for the run folder, if they are images."""
        sets = {reply.client: reply.message.batches for reply in replies}
        return {
            client: SyntheticSet(batches.x.flatten(0, 1), batches.labels.flatten(0, 1))
            for client, batches in sets.items()
            if batches.x[0, 0].dim() == 3
        }

    def report(
        self, state: Weights, replies: Sequence[Reply[SyntheticBatches]]
    ) -> dict[str, float]:
        """The achieved compression ratio, by the bytes of the tensors sent, and the clients' mean
        loss at w and at w_syn."""
        sent, _ = flatten(replies[0].message)
        whole = sum(w.numel() * w.element_size() for w in state.params.values())
        rate = whole / sum(t.numel() * t.element_size() for t in sent.values())
        if not self.report_losses:
            return {"compression": rate}
        return {
            "compression": rate,
            "loss_before": sum(r.message.loss_before for r in replies) / len(replies),
            "loss_after": sum(r.message.loss_after for r in replies) / len(replies),
        }
