"""What the FedAvg family shares: SGD at the clients, and the average of their updates.

Lines of the pseudo-code in ``fedavg.py`` are cited by their numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from fedstill.methods.shared.messages import Update
from fedstill.methods.shared.weighting import Weighting, client_weights, weighting_leaks
from fedstill.private import Leak, PrivateForm
from fedstill.steps.aggregate import Averaging
from fedstill.steps.arithmetic import add, subtract_in_place
from fedstill.steps.local_sgd import local_sgd, private_steps, steps_of
from fedstill.steps.training import Decay, Optimiser, Training, decayed
from fedstill.types import ClientContext, Params, Reply

Correction = Callable[[Params], Params]  # maps weights to a term that is added to the gradient


@dataclass(frozen=True)
class LocalSteps:
    """Plain SGD on a client's records."""

    local_epochs: Annotated[int, Meta(ge=1)] = 1
    local_steps: Annotated[int, Meta(ge=1)] | None = None  # SGD steps, instead of epochs
    batch_size: Annotated[int, Meta(ge=1)] = 32
    learning_rate: Annotated[float, Meta(gt=0)] = 0.05  # in round 1
    decay: Decay = "none"  # of the learning rate, over the rounds
    # Of the decay; None: the run's. Set, a run is the beginning of one with so many rounds.
    decay_rounds: Annotated[int, Meta(ge=1)] | None = None

    def number_of_steps(self, records: int) -> int:
        """The number of local steps on so many records."""
        return steps_of(records, self.local_epochs, self.batch_size, self.local_steps)

    def rate_in(self, ctx: ClientContext) -> float:
        """The learning rate of this round."""
        rounds = self.decay_rounds or ctx.task.rounds
        return decayed(self.learning_rate, self.decay, ctx.round, rounds)

    def descend(
        self,
        ctx: ClientContext,
        start: Params,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimiser: Optimiser = "sgd",
        correction: Correction | None = None,
    ) -> Params:
        """The weights after the client's local steps from ``start``."""
        training = Training(
            self.rate_in(ctx), momentum, self.batch_size, self.local_epochs, optimiser=optimiser
        )
        return local_sgd(
            ctx,
            start,
            training,
            steps=self.local_steps,
            weight_decay=weight_decay,
            correction=correction,
        )


@dataclass(frozen=True)
class LocalTraining(LocalSteps, Averaging):
    """Lines 4 to 6 of FedAvg: local training, its update, and the average of all updates."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {"weighting": "uniform"}

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    optimiser: Optimiser = "sgd"  # of the local steps; its state begins anew in every round
    weighting: Weighting = "records"

    def private_form(self, rate: float) -> PrivateForm | None:
        accesses = private_steps(self.local_epochs, rate, self.local_steps)
        return PrivateForm(accesses)

    @property
    def size_leaks(self) -> tuple[Leak, ...]:
        return weighting_leaks(self.weighting)

    def local_update(self, ctx: ClientContext, start: Params) -> Params:
        """The change of ``start`` by local training: line 4."""
        trained = self.descend(
            ctx,
            start,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            optimiser=self.optimiser,
            correction=self.correction(start),
        )
        return subtract_in_place(trained, start)

    def correction(self, start: Params) -> Correction | None:
        """A term added to each local gradient: none here; FedProx overrides it."""
        return None

    def averaged(self, params: Params, replies: Sequence[Reply[Update]]) -> Params:
        """The weights plus the average of the updates: line 6."""
        updates = [reply.message.update for reply in replies]
        return add(params, self.aggregated(updates, client_weights(replies, self.weighting)))
