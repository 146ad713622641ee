"""Labels that are learnt: distributions over the classes, as the softmax of logits."""

import math

import torch
from torch import Tensor

_CERTAINTY = 0.9  # probability of its class where a learnt label starts


def label_logits(labels: Tensor, classes: int) -> Tensor:
    """Logits whose softmax gives these classes probability 0.9; ``classes`` is the last dimension.

    A negative label (padding of a text) is ignored by losses: all classes get the same logit.
    """
    others = (1 - _CERTAINTY) / max(classes - 1, 1)
    one_hot = torch.nn.functional.one_hot(labels.long().clamp(min=0), classes).float()
    return one_hot * (labels >= 0).unsqueeze(-1) * math.log(_CERTAINTY / others)


def soft_labels(logits: Tensor) -> Tensor:
    """The distributions."""
    return logits.detach().softmax(-1)


def softmax_backward(soft: Tensor, gradient: Tensor) -> Tensor:
    """The gradient by the logits, from the ``gradient`` by their softmax ``soft``."""
    return soft * (gradient - (gradient * soft).sum(-1, keepdim=True))
