"""The context coder with its own arithmetic coder and with constriction's range coder.

Bytes and time; contexts and probabilities are the same. Needs `pip install constriction`.

python benchmarks/context_coder.py --data-dir DIR [--data mnist] [--numbers 3 17] [--bits 1 2]
"""

import argparse
import importlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from fedstill.data import DataSettings, load
from fedstill.wire import context
from fedstill.wire.arithmetic import ONE
from fedstill.wire.bits import BIT_CODECS
from fedstill.wire.spec import TensorSpec

REPEATS = 3


@contextmanager
def constriction() -> Iterator[None]:
    """constriction's coder in the place of ours."""
    stream: Any = importlib.import_module("constriction").stream
    model = stream.model.Bernoulli(perfect=False)

    def chances(probabilities: Iterable[int]) -> Any:
        return np.array(list(probabilities), np.float32) / ONE

    class Encoder:
        def __init__(self) -> None:
            self._coder = stream.queue.RangeEncoder()

        def write(self, bits: Iterable[int], probabilities: Iterable[int]) -> None:
            self._coder.encode(np.array(list(bits), np.int32), model, chances(probabilities))

        def finished(self) -> bytes:
            return bytes(self._coder.get_compressed().astype("<u4").tobytes())

    class Decoder:
        complete = True  # it does not say how much it has read

        def __init__(self, data: bytes) -> None:
            words = np.frombuffer(data, "<u4").astype(np.uint32)
            self._coder = stream.queue.RangeDecoder(words)

        def read(self, probabilities: Sequence[int]) -> list[int]:
            bits: list[int] = self._coder.decode(model, chances(probabilities)).tolist()
            return bits

    module: Any = context
    ours = module.Encoder, module.Decoder
    module.Encoder, module.Decoder = Encoder, Decoder
    try:
        yield
    finally:
        module.Encoder, module.Decoder = ours


def measured(images: Tensor, spec: TensorSpec, bits: int) -> tuple[int, float, float]:
    """Bytes, and the least processor seconds of encoding and of decoding."""
    codec = BIT_CODECS[f"bits{bits}+context"]
    seconds = []
    for _ in range(REPEATS):
        begun = time.process_time()
        coded, _ = codec.encode(images, spec)
        between = time.process_time()
        again = codec.decode(coded, images.shape, spec, [])
        seconds.append((between - begun, time.process_time() - between))
        assert codec.encode(again, spec)[0] == coded
    encoding, decoding = (min(column) for column in zip(*seconds, strict=True))
    return len(coded), encoding, decoding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--numbers", type=int, nargs="+", default=[3, 17])
    parser.add_argument("--bits", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    data = load(DataSettings(options.data, options.data_dir))
    for number in options.numbers:
        images = data.scaling(data.train.inputs[:number])
        spec = TensorSpec(tuple(images.shape), levels=data.scaling)
        for bits in options.bits:
            ours = measured(images, spec, bits)
            with constriction():
                theirs = measured(images, spec, bits)
            cells = [f"{size} bytes ({up:.3f} + {down:.3f} s)" for size, up, down in (ours, theirs)]
            print(f"{number} images, {bits} bits: ours, constriction:", *cells, flush=True)


if __name__ == "__main__":
    main()
