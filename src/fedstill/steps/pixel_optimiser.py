"""SGD and Adam on pixels, in place, from the images' ``grad``.

They make the steps of ``torch.optim``, to the bit, without what it imports: making one of its
optimisers imports PyTorch's compiler, which takes a second of every process that runs clients, and
is not used.
"""

import torch
from torch import Tensor


class PixelSgd:
    """SGD, with momentum if there is any."""

    def __init__(self, images: Tensor, learning_rate: float, momentum: float) -> None:
        self._images, self._rate, self._momentum = images, learning_rate, momentum
        self._velocity: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the negative gradient."""
        gradient = self._images.grad
        assert gradient is not None
        if self._momentum:
            if self._velocity is None:
                self._velocity = gradient.clone()
            else:
                self._velocity.mul_(self._momentum).add_(gradient)
            gradient = self._velocity
        self._images.add_(gradient, alpha=-self._rate)


class PixelAdam:
    """Adam (Kingma and Ba, ICLR 2015) with their values."""

    _FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8

    def __init__(self, images: Tensor, learning_rate: float) -> None:
        self._images, self._rate, self._steps = images, learning_rate, 0
        self._mean, self._square = torch.zeros_like(images), torch.zeros_like(images)

    @torch.no_grad()
    def step(self) -> None:
        """One step; its length does not depend on the gradient's."""
        gradient = self._images.grad
        assert gradient is not None
        self._steps += 1
        self._mean.lerp_(gradient, 1 - self._FIRST)
        self._square.mul_(self._SECOND).addcmul_(gradient, gradient, value=1 - self._SECOND)
        first, second = (1 - beta**self._steps for beta in (self._FIRST, self._SECOND))
        size = (self._square.sqrt() / second**0.5).add_(self._SMALL)
        self._images.addcdiv_(self._mean, size, value=-(self._rate / first))
