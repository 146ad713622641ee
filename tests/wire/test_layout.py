"""Our safetensors files are the library's, byte for byte."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from fedstill.wire.layout import write_tensors

DTYPES = [
    torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.float16,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.complex64,
]  # fmt: skip
names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for name in draw(st.sets(names.filter(lambda name: name != "__metadata__"), max_size=6)):
        shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
        values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
        made[name] = values.to(dtype)
    return made


@given(tensors(), st.text(st.characters(blacklist_categories=["Cs"]), max_size=20))
def test_the_bytes_are_those_of_the_library(given: dict[str, Tensor], header: str) -> None:
    metadata = {"fedstill": header}  # one entry: the library writes several in any order
    written = write_tensors(given, metadata)
    assert written == save(given, metadata=metadata)
    read = load(written)
    assert read.keys() == given.keys()
    assert all(torch.equal(read[name], given[name]) for name in given)
