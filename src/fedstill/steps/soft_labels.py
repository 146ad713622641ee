"""Labels that are learnt: distributions over the classes, as the softmax of free numbers."""

import math

import torch
from torch import Tensor

_SURE = 0.9  # of its class, where a learnt label starts


def free_labels(labels: Tensor, classes: int) -> Tensor:
    """Free numbers whose softmax is nearly sure of these classes; ``classes`` are added last.

    A negative label asks for nothing (padding of a text): all classes are alike.
    """
    others = (1 - _SURE) / max(classes - 1, 1)
    sure = torch.nn.functional.one_hot(labels.long().clamp(min=0), classes).float()
    return sure * (labels >= 0).unsqueeze(-1) * math.log(_SURE / others)


def soft_labels(free: Tensor) -> Tensor:
    """The distributions."""
    return free.detach().softmax(-1)


def through_softmax(soft: Tensor, slope: Tensor) -> Tensor:
    """The slope by the free numbers, from that by the distributions they gave."""
    return soft * (slope - (slope * soft).sum(-1, keepdim=True))
