"""Bytes of an image by bits per pixel and coder, for sets of several sizes; and the coder's time.

python benchmarks/image_bytes.py --data-dir DIR [--data mnist] [--numbers 3 17 100]
"""

import argparse
import time

from fedstill.data import DataSettings, load
from fedstill.wire.bits import BIT_CODECS, BITS
from fedstill.wire.spec import TensorSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--numbers", type=int, nargs="+", default=[3, 17, 100])
    options = parser.parse_args()
    data = load(DataSettings(options.data, options.data_dir))
    for bits in BITS:
        for number in options.numbers:
            images = data.scaling(data.train.inputs[:number])
            spec = TensorSpec(tuple(images.shape), levels=data.scaling)
            cells = []
            for packing in ("", "+zstd", "+context"):
                codec = BIT_CODECS[f"bits{bits}{packing}"]
                coded, _ = codec.encode(images, spec)
                begun = time.process_time()
                again = codec.decode(coded, images.shape, spec, [])
                seconds = time.process_time() - begun
                assert codec.encode(again, spec)[0] == coded
                cells.append(f"{len(coded) / number:8.1f} ({seconds:.2f} s)")
            print(f"{bits} bits, {number:4} images: packed, zstd, context", *cells, flush=True)


if __name__ == "__main__":
    main()
