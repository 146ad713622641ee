"""Batch norms of a user-supplied module, replaced by norms that do not mix records."""

import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import BatchNorm1d, _BatchNorm

from fedstill.errors import RequestError, did_you_mean
from fedstill.models.layers import groups_of

Replacement = Literal["group", "instance", "frozen"]


class FrozenNorm(nn.Module):
    """A batch norm that always uses its stored statistics, which never change.

    Each record is normalised by constants, so records are not mixed. Scale and shift are trained.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise RequestError("norm 'frozen': this batch norm keeps no statistics; use 'group'")
        self.eps = norm.eps
        self.register_buffer("running_mean", norm.running_mean.clone())
        self.register_buffer("running_var", norm.running_var.clone())
        # A batch norm without them is the same as one with scale 1 and shift 0.
        self.weight, self.bias = copy.deepcopy(norm.weight), copy.deepcopy(norm.bias)

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0; the statistics stay."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{len(self.running_mean)}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


def _grouped(norm: _BatchNorm, groups: int) -> nn.Module:
    made = nn.GroupNorm(groups, norm.num_features, norm.eps, norm.affine)
    if norm.affine:  # a pretrained scale and shift stay
        made.weight, made.bias = copy.deepcopy(norm.weight), copy.deepcopy(norm.bias)
    return made


def _group(norm: _BatchNorm) -> nn.Module:
    return _grouped(norm, groups_of(norm.num_features))


def _instance(norm: _BatchNorm) -> nn.Module:
    # A vector has one value per channel, from which nothing can be normalised: groups of channels.
    return _group(norm) if isinstance(norm, BatchNorm1d) else _grouped(norm, norm.num_features)


_REPLACEMENTS: dict[str, Callable[[_BatchNorm], nn.Module]] = {
    "group": _group,
    "instance": _instance,
    "frozen": FrozenNorm,
}


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms in a module, by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}


def convert_norms(module: nn.Module, norm: Replacement = "group") -> nn.Module:
    """A copy of the module in which every batch norm is replaced; scale and shift are kept.

    A batch norm mixes the records of a batch, which per-record privacy and most methods rule out.

    - ``"group"``: group norm, with groups of at least four channels and at most 32 groups;
    - ``"instance"``: instance norm (group norm for ``BatchNorm1d``, whose inputs may be vectors);
    - ``"frozen"``: the stored statistics as constants. For pretrained networks: predictions are
      exactly those of the module in evaluation mode.

    >>> fedstill.run("feddm", model=fedstill.convert_norms(resnet, "group"))
    """
    if norm not in _REPLACEMENTS:
        raise RequestError(f"convert_norms: no norm '{norm}'{did_you_mean(norm, _REPLACEMENTS)}")
    made = copy.deepcopy(module)
    if isinstance(made, _BatchNorm):
        return _REPLACEMENTS[norm](made)
    for name, old in batch_norms(made).items():
        parent, _, attribute = name.rpartition(".")
        setattr(made.get_submodule(parent), attribute, _REPLACEMENTS[norm](old).train(old.training))
    return made
