"""The forecast of a run: bytes per round against FedAvg's, and memory, before anything is computed.

Bytes come from the schemas that the method declares, the codecs, and the classes that the sampled
clients hold. Memory is a rough sum: the processes, the records, the messages of a round, and the
activations of the inputs that are computed together, which are measured on an input of zeros.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedstill.build import BuiltExperiment
from fedstill.draw.numbers import in_bytes
from fedstill.methods.shared.messages import update_schema, weights_schema
from fedstill.rng import Rng
from fedstill.runs.forecast import Forecast
from fedstill.steps.gradient import logits_of, tracked
from fedstill.types import Task
from fedstill.wire import Schema, TensorSpec, find_codec, pixel_bits

# Characters of a safetensors header: of each tensor, of each number, and of the rest.
_ENTRY, _HEADER_PER_NUMBER, _HEADER = 58, 30, 75
_FEW_BITS = 4  # per pixel: half of the default
_PROCESS = 280 * 2**20  # bytes of a Python process with PyTorch, measured
_COPIES = 4  # of weights and messages: as bytes, as tensors, trained, their gradient


def forecast(built: BuiltExperiment) -> Forecast:
    """What a round of this experiment will cost, taking round 1 as an example."""
    task, wire, method = built.task, built.experiment.wire, built.method
    sampled = built.sample(1)
    if method.pooled:
        return Forecast(len(sampled), 0, 0, 0, 0, False, _memory(built, 0))
    held = [_classes_held(built, client) for client in sampled]
    up, open_up = _bytes(method.upload(task), wire.up, task, held)
    down, open_down = _bytes(method.download(task), wire.down, task, [task.classes] * len(held))
    plain = wire.up if pixel_bits(wire.up) is None else "float32"  # few bits are for images alone
    fedavg_up, _ = _bytes(update_schema(task), plain, task, held)
    fedavg_down, _ = _bytes(weights_schema(task), wire.down, task, held)
    compressed = "+" in wire.up or "+" in wire.down
    cost = Forecast(
        clients=len(sampled),
        up_bytes=up,
        down_bytes=down,
        fedavg_up_bytes=fedavg_up,
        fedavg_down_bytes=fedavg_down,
        at_most=open_up or open_down or compressed,
        memory_bytes=_memory(built, up + down),
    )
    return dataclasses.replace(cost, warning=_warning(built, cost))


def _classes_held(built: BuiltExperiment, client: int) -> int:
    """How many classes the client sends something about: the public ones in a private run."""
    if built.plan is not None:
        return len(built.plan.classes[client])
    index = built.partition.index(client)
    # Nodes hold their own records: any of the classes.
    return len(built.dataset.train.labels[index].unique()) if len(index) else built.dataset.classes


def _bytes(schema: Schema[Any], codec: str, task: Task, held: Sequence[int]) -> tuple[int, bool]:
    """The bytes of one message per entry of ``held``; whether it is only an upper bound."""
    total, bound = 0, False
    for classes in held:
        payload, header = 0, _HEADER + _HEADER_PER_NUMBER * len(schema.numbers)
        for name, spec in schema.tensors.items():
            sizes, exact = _sizes(spec, task.classes, classes)
            bound = bound or not exact
            payload += _payload(dataclasses.replace(spec, shape=tuple(sizes)), codec)
            header += _entry(name, sizes, payload)
        total += payload + header
    return total, bound


def _payload(spec: TensorSpec, codec: str) -> int:
    """The tensor's bytes before compression. What a coder could make of hostile pixels is many
    times as much; pixels that compress at all never are."""
    if spec.dtype.is_floating_point:
        return find_codec(codec.partition("+")[0]).most(spec)
    return spec.most * spec.dtype.itemsize


def _entry(name: str, sizes: Sequence[int], end: int) -> int:
    """A tensor's part of the header: its name (twice), shape, and where it ends."""
    inner = name.partition(".")[2] or name
    return _ENTRY + len(name) + len(inner) + len(",".join(map(str, sizes))) + 2 * len(str(end))


def _sizes(spec: TensorSpec, classes: int, held: int) -> tuple[list[int], bool]:
    """The tensor's shape at a client that holds so many classes; whether that is certain.

    A dimension of (least, classes * least) is one with ``least`` rows per class held.
    """
    sizes, exact = [], True
    for size in spec.shape:
        if isinstance(size, int):
            sizes.append(size)
        elif size[1] == classes * size[0]:
            sizes.append(size[0] * held)
        else:
            sizes.append(size[1])
            exact = False
    return sizes, exact


def _memory(built: BuiltExperiment, messages: int) -> int:
    task, engine = built.task, built.experiment.engine
    workers = min(engine.workers or 1, built.clients_per_round) if built.portable else 1
    processes = 1 if workers == 1 else workers + 1
    # A method that distils computes the images of a class together.
    rows = max(task.chunk, int(built.experiment.method.get("images_per_class", 1)))
    work = rows * _activations(task) + _COPIES * 4 * task.model.size
    return processes * _PROCESS + workers * work + _records(built) + _COPIES * messages


def _records(built: BuiltExperiment) -> int:
    """Bytes of all records; of a private run's as many as are declared public."""
    train, test = built.dataset.train, built.dataset.test
    number = sum(built.plan.sizes) if built.plan is not None else len(train)
    one = train.inputs[:1].nbytes + train.labels[:1].nbytes
    return number * one + test.inputs.nbytes + test.labels.nbytes


def _activations(task: Task) -> int:
    """Bytes that the forward pass of one input keeps for the backward pass; 0 if unknown."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = task.model.continuous_shape is not None
    x = torch.zeros(1, *task.shape, dtype=torch.int64 if tokens else torch.float32)
    try:
        params = tracked(task.model.init(Rng(0).torch()))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits_of(task, params, x, None)
    except (RuntimeError, ValueError, IndexError, TypeError):  # the run itself will say what
        return 0
    weights = {value.untyped_storage().data_ptr() for value in params.values()}
    return sum(size for place, size in kept.items() if place not in weights)


def _warning(built: BuiltExperiment, cost: Forecast) -> str | None:
    """Where images cost more than weights, and what to do about it."""
    if not built.method.sends_sets or cost.up_bytes <= cost.fedavg_up_bytes:
        return None
    ways = []
    per_class = built.experiment.method.get("images_per_class", 1)
    if per_class > 1:
        fewer = max(1, math.floor(per_class * cost.fedavg_up_bytes / cost.up_bytes))
        ways.append(f"method.images_per_class = {fewer} instead of {per_class}")
    bits = pixel_bits(built.experiment.wire.up)
    if bits is None:
        ways.append("wire.up = 'auto' (8 bits per pixel, compressed)")
    elif bits > _FEW_BITS:
        ways.append(f"wire.up = 'bits{_FEW_BITS}+zstd' ({_FEW_BITS} bits per pixel)")
    if len(built.task.shape) == 3 and min(built.task.shape[1:]) > 32:
        ways.append("smaller images (data.image_size)")
    ways.append("a method that sends weights")
    times = cost.up_bytes / cost.fedavg_up_bytes
    return (
        f"the images cost {times:.1f} times as many bytes as the weights would "
        f"({in_bytes(cost.up_bytes)} up per round, FedAvg {in_bytes(cost.fedavg_up_bytes)}); "
        f"consider {', or '.join(ways)}"
    )
