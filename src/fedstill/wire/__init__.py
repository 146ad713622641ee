"""Messages as bytes: schemas and codecs."""

from fedstill.wire.codecs import CODECS, find_codec
from fedstill.wire.messages import decode, encode
from fedstill.wire.schema import NormLimit, Schema, TensorSpec, params_specs

__all__ = [
    "CODECS",
    "NormLimit",
    "Schema",
    "TensorSpec",
    "decode",
    "encode",
    "find_codec",
    "params_specs",
]
