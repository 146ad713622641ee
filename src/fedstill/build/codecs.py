"""Codecs that are made for something else than what a run sends."""

from typing import Any

from fedstill.build.experiment import BuiltExperiment
from fedstill.errors import RequestError
from fedstill.wire import Schema, pixel_bits


def refuse_codecs_of_images(built: BuiltExperiment) -> None:
    """Refuse a codec of few bits in a direction in which no images are sent.

    Nothing else has levels that the data fix: weights and sums keep a few steps between their ends.
    Sets of other inputs, such as rows of numbers, are sets all the same. The messages of a first
    round of another method come in the codec of the method's own.
    """
    wire, method, task = built.experiment.wire, built.method, built.task
    if not method.sends_sets:
        _refuse_without_levels("up", wire.up, method.upload(task), "clients")
    _refuse_without_levels("down", wire.down, method.download(task), "server")


def _refuse_without_levels(way: str, codec: str, schema: Schema[Any], sender: str) -> None:
    if pixel_bits(codec) is None or any(spec.levels for spec in schema.tensors.values()):
        return
    raise RequestError(
        f"wire.{way} = '{codec}': a codec for sets of images whose pixels have fixed levels, and "
        f"the {sender} send{'s' if sender == 'server' else ''} none; use float16+zstd or "
        "uint8+zstd, or leave it out"
    )
