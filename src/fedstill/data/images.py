"""Encoded images into one uint8 array [N, C, H, W]."""

import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstill.data.limits import refuse_without_room
from fedstill.errors import RequestError

Bytes = NDArray[np.uint8]
Encoded = bytes | Path | None  # the contents of an image file, its path, or nothing

# Whatever a file is called, its contents choose the decoder, and some of Pillow's run programs.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_MOST_PIXELS = 2**26  # of an image before it is resized: 8192 x 8192
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_GREY = ("1", "L", *_SIXTEEN_BIT)
_CHUNK = 64  # images per task: large enough that scheduling costs nothing
# Pillow releases the interpreter lock only while it decompresses. Measured on two cores, a second
# thread doubles the time of 28x28 images, breaks even here and halves that of larger ones.
_WORTH_THREADS = 64 * 64


@dataclass(frozen=True)
class ImageForm:
    """What every image of a data set is turned into."""

    channels: int
    height: int
    width: int
    resize: bool
    threads: int = 1

    @classmethod
    def of_first(
        cls, encoded: Encoded, size: int | None, where: str, channels: int | None = None
    ) -> "ImageForm":
        """Grey where the first image is grey, else RGB (or ``channels``); its own size, or a
        square of ``size``."""
        try:
            with _open(encoded) as image:
                channels = channels or (1 if image.mode in _GREY else 3)
                width, height = image.size
                image.load()  # room is made for images of this size: it must not be a claim only
        except Exception as error:
            raise _corrupt(where, error) from error
        threads = min(8, os.cpu_count() or 1) if width * height >= _WORTH_THREADS else 1
        if size is not None:
            return cls(channels, size, size, resize=True, threads=threads)
        return cls(channels, height, width, resize=False, threads=threads)

    @classmethod
    def of_most(
        cls, images: Iterable[Encoded], size: int | None, where: str, channels: int | None = None
    ) -> "ImageForm":
        """The first image decides the size, and what most images are decides between grey and
        colour, unless ``channels`` does."""
        images = iter(images)
        first = next(images, None)
        form = cls.of_first(first, size, where, channels)
        if channels is not None:
            return form
        grey = [is_grey(image) for image in itertools.chain([first], images)]
        few = min(grey.count(True), grey.count(False))
        most = 1 if grey.count(True) > grey.count(False) else 3
        if few:
            kinds = ("grey", "colour") if most == 3 else ("colour", "grey")
            warnings.warn(
                f"{where}: {few:,} of {len(grey):,} images are {kinds[0]}, the others {kinds[1]}: "
                f"all are read in {kinds[1]}; data.channels = {4 - most} reads them in {kinds[0]}",
                stacklevel=2,
            )
        return replace(form, channels=most)

    def empty(self, count: int) -> Bytes:
        """Room for ``count`` images."""
        held = count * self.channels * self.height * self.width
        size = f"{self.width}x{self.height}"
        refuse_without_room(held, f"{count:,} images of {size} pixels", "lower data.image_size")
        return np.empty((count, self.channels, self.height, self.width), dtype=np.uint8)


def decode_images(
    encoded: Sequence[Encoded], form: ImageForm, out: Bytes, where: Callable[[int], str]
) -> None:
    """Decode into ``out``; ``where(i)`` names image ``i`` in the message if it is bad."""

    def decode_chunk(start: int) -> None:
        for i in range(start, min(start + _CHUNK, len(encoded))):
            _decode(i, encoded[i], form, out[i], where)

    starts = range(0, len(encoded), _CHUNK)
    if form.threads == 1:
        for start in starts:
            decode_chunk(start)
        return
    with ThreadPoolExecutor(max_workers=form.threads) as pool:
        for _ in pool.map(decode_chunk, starts):
            pass  # in order, so that the first bad image is the one reported


def is_grey(encoded: Encoded) -> bool | None:
    """Whether an image is grey, from its header; ``None``: it cannot be opened."""
    try:
        with _open(encoded) as image:
            return image.mode in _GREY
    except Exception:  # decoding reports it, with its place
        return None


def resize_images(images: Bytes, size: int) -> Bytes:
    """Decoded images [N, C, H, W] resized to squares, by the same filter as encoded ones."""
    form = ImageForm(images.shape[1], size, size, resize=True)
    out = form.empty(len(images))
    for image, target in zip(images, out, strict=True):
        for plane, target_plane in zip(image, target, strict=True):
            resized = Image.fromarray(plane).resize((size, size), Image.Resampling.BILINEAR)
            target_plane[...] = np.asarray(resized)
    return out


def _decode(
    position: int, encoded: Encoded, form: ImageForm, out: Bytes, where: Callable[[int], str]
) -> None:
    try:
        with _open(encoded) as image:
            pixels = _pixels(image, form)
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        raise _corrupt(where(position), error) from error
    if pixels.shape[:2] != out.shape[1:]:
        height, width = pixels.shape[:2]
        raise RequestError(
            f"{where(position)}: the image is {width}x{height} pixels but the first one is "
            f"{form.width}x{form.height}; set data.image_size to resize all of them"
        )
    if form.channels == 1:
        out[0] = pixels
    else:
        out[...] = pixels.transpose(2, 0, 1)


def _pixels(image: Image.Image, form: ImageForm) -> Bytes:
    """Height x width (x 3) bytes of an image, whatever its mode."""
    if image.mode in _SIXTEEN_BIT:
        # Pillow's own conversion cuts off above 255; the upper byte is the picture.
        upper = np.clip(np.asarray(image) >> 8, 0, 255)
        image = Image.fromarray(upper.astype(np.uint8))
    mode = "L" if form.channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    if form.resize and image.size != (form.width, form.height):
        image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _open(encoded: Encoded) -> Image.Image:
    if encoded is None:
        raise ValueError("no image bytes")
    if isinstance(encoded, Path) and encoded.exists() and not encoded.is_file():
        raise ValueError("not a regular file")  # reading a pipe might never end
    source = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    image = Image.open(source, formats=_FORMATS)
    width, height = image.size
    if width * height > _MOST_PIXELS:
        image.close()
        raise ValueError(f"{width}x{height} pixels, at most {_MOST_PIXELS:,} are read")
    return image


def _corrupt(where: str, error: Exception) -> RequestError:
    reason = str(error).split("\n")[0]
    if "cannot identify image file" in reason:  # the rest of that message is an address
        reason = "cannot identify image file"
    return RequestError(
        f"{where}: the image cannot be decoded ({reason or type(error).__name__}); "
        "repair or remove it"
    )
