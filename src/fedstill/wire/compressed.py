"""Reading what zstd compressed: one frame that is all of the data, and no more than is expected."""

import zstandard

from fedstill.errors import WireError

_MOST_WINDOW = 2**27


def decompressed(data: bytes, most: int, format: int = zstandard.FORMAT_ZSTD1) -> bytes:
    """The bytes in this frame, or the first ``most`` + 1 of more.

    Its claims are not believed: it may be a bomb. A frame that is cut off is refused, and bytes
    after its end.
    """
    reader = zstandard.ZstdDecompressor(format=format, max_window_size=_MOST_WINDOW)
    try:
        with reader.stream_reader(data, read_across_frames=True) as stream:
            plain = stream.read(most + 1)
        if len(plain) > most:
            return plain
        # A stream says nothing of the bytes that it has left. What does knows no bound: it comes
        # second, when all data together are known to hold no more than ``most``.
        whole = reader.decompressobj()
        whole.decompress(data)
    except zstandard.ZstdError as error:
        raise WireError(f"not compressed by zstd: {error}") from error
    if not whole.eof or whole.unused_data:
        raise WireError("compressed data that are cut off, or bytes after their end")
    return plain
