"""What the records show, as far as it is public: nothing is computed from them."""

from fedstill.data.catalogue import SOURCES
from fedstill.records import Kind

_CHANNELS: dict[int, Kind] = {1: "grey", 3: "photo", 4: "photo"}
_TINY = 16  # images with fewer pixels per side are tiny


def kind_of(name: str, shape: tuple[int, ...]) -> Kind:
    """The kind in the catalogue's entry, or what the shape of a record suggests; images of few
    pixels are tiny, whatever they show, and what has no height and width is no image."""
    if len(shape) != 3:
        return "other"  # also the features of images
    source = SOURCES.get(name)
    kind = source.kind if source is not None else None
    kind = kind or _CHANNELS.get(shape[0], "other")
    return "tiny" if kind != "other" and min(shape[1:]) < _TINY else kind
