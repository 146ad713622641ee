"""Messages as bytes: schemas and codecs."""

from fedstill.wire.codecs import CODECS, find_codec, pixel_bits
from fedstill.wire.messages import decode, encode
from fedstill.wire.schema import NormLimit, Schema, params_specs
from fedstill.wire.spec import TensorSpec

__all__ = [
    "CODECS",
    "NormLimit",
    "Schema",
    "TensorSpec",
    "decode",
    "encode",
    "find_codec",
    "params_specs",
    "pixel_bits",
]
