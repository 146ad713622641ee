"""The weight gradient of each record: what is clipped when privacy is on.

Our networks do not mix records, so one backward pass to the *outputs* of the layers gives the
output gradients of all records at once. A layer's weight gradient is then, per record, a small
product of its input and its output gradient: one batched matrix product per layer, on as many
records as fit into the processor's cache. The summed weight gradient is never computed.

Layers are intercepted when they are called (``conv2d``, ``linear``, ``group_norm``), so this works
for any network made of them, a user-supplied ``nn.Module`` included. A network that uses a weight
in another way falls back to ``torch.func.vmap(grad)``, which is slower and equally exact.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedstill.models.model import Model
from fedstill.models.separate import Separate
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.steps.gradient import logits_of
from fedstill.steps.matching import same
from fedstill.steps.record_gradients import Gradients, Outer
from fedstill.types import Params, Task


@dataclass(frozen=True)
class WeightGradients:
    """Maps records to their weight gradients at ``params``: for the private door."""

    task: Task
    params: Params
    augment: Callable[[Tensor], Tensor] = same
    draws: Rng | None = None

    @property
    def floats(self) -> int:
        """Numbers in memory per record, by which the door sets how many it processes at a time."""
        model = self.task.model
        if not _has_rules(model, self.task.shape):
            return model.size
        return sum(math.prod(shape) for shape in model.shapes.values() if len(shape) != 2)

    def __call__(self, records: Records) -> Gradients:
        x, y = records.all()
        return per_record_gradients(self.task, self.params, self.augment(x), y, self.draws)


def weight_gradients(
    task: Task,
    params: Params,
    augment: Callable[[Tensor], Tensor] = same,
    draws: Rng | None = None,
) -> WeightGradients:
    """The ``per_record`` argument of ``noisy_sum`` etc. for the loss gradient at these weights.

    ``augment`` is applied to each record first; its result for one record must not depend on
    another. Its random draw may be the same for all records, and public.

    With ``draws`` the network is in training mode. All records have the same random draws
    (dropout), the start of this stream: then a record's gradient does not depend on which others
    were sampled before it, and clipping bounds what one record changes, although the stream is
    public.

    >>> gradient = ctx.private.noisy_mean(weight_gradients(ctx.task, params))
    """
    return WeightGradients(task, params, augment, draws)


def per_record_gradients(
    task: Task, params: Params, x: Tensor, y: Tensor, draws: Rng | None = None
) -> Gradients:
    """The gradient of each record's loss; in training mode with the same ``draws`` for each."""
    plain = {k: v.detach() for k, v in params.items()}
    if isinstance(task.model, Separate) or (draws is not None and task.model.trains_differently):
        return Gradients(one_by_one(task, plain, x, y, draws))
    watch = _Watch(plain, len(x))
    with torch.enable_grad(), watch:
        loss = task.loss(task.model.apply(plain, x), y).sum()
    if watch.strange or any(call.overwritten for call in watch.calls):
        return Gradients(by_vmap(task, plain, x, y))
    output_gradients = torch.autograd.grad(
        loss, [call.output for call in watch.calls], allow_unused=True
    )
    found: dict[str, Tensor | Outer] = {}
    with torch.no_grad():
        for call, output_gradient in zip(watch.calls, output_gradients, strict=True):
            if output_gradient is None:  # the loss does not depend on this layer
                continue
            for name, part in call.rule(call, output_gradient).items():
                found[name] = _dense(found[name]) + _dense(part) if name in found else part
    # An unused weight (a bias before an instance norm) has gradient zero.
    return Gradients({name: _shaped(found.get(name), v, len(x)) for name, v in plain.items()})


def _shaped(part: Tensor | Outer | None, weight: Tensor, records: int) -> Tensor | Outer:
    if part is None:
        return weight.new_zeros(records, *weight.shape)
    return part if isinstance(part, Outer) else part.view(records, *weight.shape)


def _dense(part: Tensor | Outer) -> Tensor:
    return part.dense() if isinstance(part, Outer) else part


@lru_cache(maxsize=16)
def _has_rules(model: Model, shape: tuple[int, ...]) -> bool:
    """Whether every layer of the network has a rule, so that its matrices stay products."""
    if isinstance(model, Separate):
        return False
    params = model.init(Rng(0).torch())
    watch = _Watch(params, 2)
    try:
        with watch:
            model.apply(params, torch.zeros(2, *shape))
    except (RuntimeError, IndexError, TypeError):  # it takes tokens
        return False
    return not watch.strange and not any(call.overwritten for call in watch.calls)


def one_by_one(
    task: Task, params: Params, x: Tensor, y: Tensor, draws: Rng | None = None
) -> Params:
    """The same for any network: a batch of one for each record, by ``vmap`` where it can be."""
    try:
        return by_vmap(task, params, x, y, draws)
    except (RuntimeError, NotImplementedError):  # an operation that vmap does not support
        rows = []
        for i in range(len(x)):
            weights = {name: v.requires_grad_(True) for name, v in _copied(params).items()}
            with torch.enable_grad():
                logits = logits_of(task, weights, x[i : i + 1], _started(draws))
                loss = task.loss(logits, y[i : i + 1]).sum()
            found = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            rows.append(dict(zip(weights, found, strict=True)))
        return {name: torch.stack([row[name] for row in rows]) for name in params}


def _copied(params: Params) -> Params:
    return {name: v.detach().clone() for name, v in params.items()}


def by_vmap(task: Task, params: Params, x: Tensor, y: Tensor, draws: Rng | None = None) -> Params:
    """The same for any network whose operations ``torch.func`` supports."""
    generator = _started(draws)

    def loss(weights: Params, one: Tensor, label: Tensor) -> Tensor:
        return task.loss(logits_of(task, weights, one[None], generator), label[None]).sum()

    gradient: Params = torch.func.vmap(
        torch.func.grad(loss), in_dims=(None, 0, 0), randomness="error" if draws is None else "same"
    )(params, x, y)
    return gradient


def _started(draws: Rng | None) -> torch.Generator | None:
    return None if draws is None else draws.torch()


@dataclass(frozen=True)
class _Call:
    """One call of a layer: what went in, what came out, and which weights it used."""

    rule: Callable[["_Call", Tensor], Mapping[str, Tensor | Outer]]
    names: Mapping[str, str]  # of "weight" and "bias" in the model
    input: Tensor
    output: Tensor
    options: Mapping[str, Any]
    versions: tuple[int, int]

    @property
    def overwritten(self) -> bool:
        """Whether a later operation overwrote its input or output in place."""
        return self.versions != (self.input._version, self.output._version)


class _Watch(TorchFunctionMode):
    """Records the layer calls that use a weight of the model."""

    def __init__(self, params: Params, records: int) -> None:
        super().__init__()
        self.records = records
        self.names = {id(v): k for k, v in params.items()}
        self.calls: list[_Call] = []
        self.strange = False  # whether a weight was used in a way without a rule

    def __torch_function__(
        self, function: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = dict(zip(_ARGUMENTS.get(function, ()), args, strict=False)) | (kwargs or {})
        if function in _GROUP_NORMS and id(given.get("weight")) in self.names:
            output = _group_norm_with_moments(given)
        else:
            output = function(*args, **(kwargs or {}))
        known = _RULES.get(function)
        if not any(id(a) in self.names for a in (*args, *(kwargs or {}).values())):
            if any(id(t) in self.names for a in args if isinstance(a, list | tuple) for t in a):
                self.strange = True
            return output
        if known is None:
            self.strange = self.strange or function not in _HARMLESS
            return output
        names = {
            role: self.names[id(given[role])]
            for role in ("weight", "bias")
            if id(given.get(role)) in self.names
        }
        rule, fits = known
        # A first dimension that is not the records' (a sequence folded into it) has no rule here.
        whole = len(given["input"]) == self.records and fits(given)
        if id(given["input"]) in self.names or not whole:
            self.strange = True
            return output
        if not output.requires_grad:
            output.requires_grad_(True)  # the first layer: nothing before it requires a gradient
        source = given["input"].detach()
        versions = (source._version, output._version)
        self.calls.append(_Call(rule, names, source, output, given, versions))
        return output


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _linear(call: _Call, output_gradient: Tensor) -> dict[str, Tensor | Outer]:
    gradient: dict[str, Tensor | Outer] = {}
    if "weight" in call.names:
        gradient[call.names["weight"]] = Outer.of(output_gradient, call.input)
    if "bias" in call.names:
        gradient[call.names["bias"]] = output_gradient
    return gradient


def _conv2d(call: _Call, output_gradient: Tensor) -> Params:
    rows = output_gradient.flatten(2)  # [records, output channels, positions]
    gradient: Params = {}
    if "weight" in call.names:
        options = call.options
        patches = F.unfold(
            call.input,
            tuple(options["weight"].shape[2:]),
            _pair(options.get("dilation", 1)),
            _pair(options.get("padding", 0)),
            _pair(options.get("stride", 1)),
        )
        gradient[call.names["weight"]] = rows @ patches.transpose(1, 2)
    if "bias" in call.names:
        gradient[call.names["bias"]] = rows.sum(2)
    return gradient


def _group_norm(call: _Call, output_gradient: Tensor) -> Params:
    """The scale's gradient is the sum over positions of output_gradient * (x - mean) / std."""
    rows, x = output_gradient.flatten(2), call.input.flatten(2)
    total = rows.sum(2)
    gradient: Params = {}
    if "weight" in call.names:
        mean, reciprocal = (
            m.repeat_interleave(x.shape[1] // m.shape[1], 1) for m in call.options["moments"]
        )
        products = torch.linalg.vecdot(rows, x)
        gradient[call.names["weight"]] = (products - mean * total) * reciprocal
    if "bias" in call.names:
        gradient[call.names["bias"]] = total
    return gradient


def _group_norm_with_moments(given: dict[str, Any]) -> Tensor:
    """The layer's output; mean and 1 / std of each group are kept for the gradient."""
    x = given["input"].contiguous()
    records, channels = x.shape[:2]
    positions = x[0, 0].numel()
    output, *moments = torch.native_group_norm(
        x,
        given["weight"],
        given.get("bias"),
        records,
        channels,
        positions,
        given["num_groups"],
        given.get("eps", 1e-5),
    )
    given["moments"] = [m.detach() for m in moments]
    return output


def _one_group(given: Mapping[str, Any]) -> bool:
    whole = given["input"].dim() == 4 and not isinstance(given.get("padding", 0), str)
    return whole and given.get("groups", 1) == 1


_GROUP_NORMS = (torch.group_norm, F.group_norm)
_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    F.linear: ("input", "weight", "bias"),
    F.conv2d: ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    torch.group_norm: ("input", "num_groups", "weight", "bias", "eps"),
    F.group_norm: ("input", "num_groups", "weight", "bias", "eps"),
}
_RULES: dict[Any, tuple[Any, Callable[[Mapping[str, Any]], bool]]] = {
    F.linear: (_linear, lambda given: given["input"].dim() == 2),
    F.conv2d: (_conv2d, _one_group),
    torch.group_norm: (_group_norm, lambda given: given["input"].dim() >= 3),
    F.group_norm: (_group_norm, lambda given: given["input"].dim() >= 3),
}
# Reading a weight's properties is not using it.
_HARMLESS: set[Any] = {
    Tensor.dim,
    Tensor.size,
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    Tensor.is_floating_point,
    Tensor.detach,
}
