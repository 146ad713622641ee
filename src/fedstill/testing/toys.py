"""The toy problems that conformance runs on: digits of three clients, a text of three speakers."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstill.build import BuiltExperiment, UserObjects, build
from fedstill.data import Dataset, DataSettings, Partition, Scaling, Split, load
from fedstill.data.text import decode_texts
from fedstill.data.vocabulary import find_vocabulary
from fedstill.engine.local import InProcess
from fedstill.federation import Federation
from fedstill.models import GRU, ConvNet, Model
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.types import AnyMethod, Params
from fedstill.wire import tree

# Noise from the seed, so that runs can be compared; every client sends every class.
TOY_PRIVACY: dict[str, Any] = {
    "sigma": 0.5,
    "sampling_rate": 0.5,
    "public_size": 30,
    "delta": 1e-3,
    "scaling": "public",
    "reproducible": True,
}


_RECORDS = 90
_CLIENTS = 3


def toy_data() -> Dataset:
    """A few of the built-in digits."""
    digits = load(DataSettings())
    few = Split(digits.train.inputs[:_RECORDS], digits.train.labels[:_RECORDS])
    return dataclasses.replace(digits, name="toy", train=few, test=few)


@dataclass(frozen=True)
class Toy:
    """A toy problem: records, the client of each (int32), and a network for them."""

    data: Dataset
    owner: Tensor
    model: Model


def toy_digits(data: Dataset | None = None) -> Toy:
    """Digits; the first client holds few classes, the last one many."""
    data = data or toy_data()
    owner = (data.train.labels // 2).clamp(max=_CLIENTS - 1).int()
    return Toy(data, owner, ConvNet(data.shape, data.classes, width=4))


def toy_text() -> Toy:
    """Three speakers with similar sentences about different things."""
    texts = {
        name: "".join(f"the {thing} sees a {other}.\n" for thing in things for other in things)
        for name, things in (("ANN", ("cat", "cow")), ("BEN", ("sun", "moon", "sea")))
    }
    texts["CLEO"] = texts["BEN"].upper() + texts["ANN"]
    vocabulary = find_vocabulary(None)
    decoded = decode_texts(texts, None, vocabulary, 8, "toy")
    data = Dataset(
        "toy text",
        decoded.train,
        decoded.test,
        decoded.class_names,
        Scaling((), ()),
        decoded.fingerprint(),
        decoded.group_names,
    )
    assert data.train.groups is not None
    model = GRU(data.shape, data.classes, embedding=8, width=12)
    return Toy(data, data.train.groups.int(), model)


_TOY: ContextVar[Callable[[], Toy]] = ContextVar("toy", default=toy_digits)


@contextmanager
def on(toy: Callable[[], Toy]) -> Iterator[None]:
    """Inside the block, checks run on this toy problem."""
    token = _TOY.set(toy)
    try:
        yield
    finally:
        _TOY.reset(token)


def current_toy() -> Callable[[], Toy]:
    """The toy problem that checks run on: digits, or what ``on`` says."""
    return _TOY.get()


def toy_experiment(
    method: AnyMethod,
    *,
    rounds: int = 2,
    seed: int = 0,
    codec: str = "float32",
    model: Model | None = None,
    privacy: Mapping[str, Any] | None = None,
    data: Dataset | None = None,
    quorum: float = 1.0,
) -> BuiltExperiment:
    """The toy problem for this method; ``data`` replaces the digits.

    ``privacy`` is a ``[privacy]`` section, e.g. ``TOY_PRIVACY``.
    """
    toy = _TOY.get()() if data is None else toy_digits(data)
    owner = toy.owner
    # A method that learns on fixed features has a small map; any other gets the toy's network.
    features = "model" in method.DEFAULTS
    request = {
        "method": {"name": "toy"},
        "model": {"name": "linear", "feature_map": "orientation"} if features else None,
        "rounds": rounds,
        "quorum": quorum,
        "seed": seed,
        "wire": {"up": codec, "down": codec},
        "engine": {"workers": 1},
        "privacy": privacy,
    }
    partition = Partition(owner, _CLIENTS)
    if method.pooled:
        partition = Partition(torch.zeros_like(owner), 1)
    objects = UserObjects(method, toy.data, model or (None if features else toy.model))
    return build(request, objects, partition=partition).planned()


def toy_run(method: AnyMethod, folder: Path, *, engine: Any = None, **options: Any) -> Federation:
    """The toy problem, run to its end in ``folder``; a run that was begun there is resumed."""
    built = toy_experiment(method, **options).with_ledgers(folder / "ledger")
    federation = Federation(built, RunFolder(folder), Observer())
    federation.begin()
    with (engine or InProcess)(built) as running:
        while federation.round < built.experiment.rounds:
            federation.step(running)
    return federation


def bits(value: Any) -> bytes:
    """Exact bytes of a state or message, to compare."""
    return tree.dump(value)


def as_vector(params: Params) -> Tensor:
    """All weights in one vector, for assertions."""
    return torch.cat([v.flatten() for v in params.values()])
