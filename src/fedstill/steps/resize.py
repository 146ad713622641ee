"""Small images on the wire: made smaller by whole factors, and enlarged again before any use.

A pixel of a small image is the mean of ``shrink`` x ``shrink`` pixels. Enlarging interpolates
linearly between the centres of pixels, so gradients flow through it to the small image.
"""

from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from fedstill.errors import RequestError


def small_shape(shape: tuple[int, ...], shrink: int) -> tuple[int, ...]:
    """The shape of a small image; refused where the factor does not divide the sides."""
    if shrink == 1:
        return shape
    if len(shape) != 3 or any(side % shrink for side in shape[1:]):
        raise RequestError(
            f"method.shrink = {shrink}: records of shape {shape} are no images with sides that "
            f"{shrink} divides; set method.shrink = 1"
        )
    channels, height, width = shape
    return channels, height // shrink, width // shrink


def shrunk(images: Tensor, shrink: int) -> Tensor:
    """Images [..., channels, height, width] with 1/shrink of their sides."""
    if shrink == 1:
        return images
    small = avg_pool2d(images.flatten(0, -4), shrink)
    return small.view(*images.shape[:-2], *small.shape[-2:])


def enlarged(images: Tensor, shrink: int) -> Tensor:
    """Small images [n, channels, height, width] at their full size."""
    if shrink == 1:
        return images
    return interpolate(images, scale_factor=shrink, mode="bilinear", align_corners=False)
