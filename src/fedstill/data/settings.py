"""The sections of a configuration that are about data. PyTorch is not imported for them."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

TABLES_ONLY = ("features", "ignore", "ranges", "categories", "missing")


@dataclass(frozen=True)
class DataSettings:
    """What to load and how to read it: the ``[data]`` section of a configuration.

    ``name`` is a known name, ``hub:OWNER/NAME``, or the path of a folder, ``.npz`` or ``.txt``
    file. ``image_size`` resizes every image to that square; without it all must have one size.
    ``text_column`` says that a table holds texts, not images; ``vocabulary`` is "characters" or
    a file of words, one per line; ``sequence_length`` is the number of tokens in a record.
    ``domains`` keeps only the records of these owners. ``channels``: 1 reads images in grey, 3 in
    colour; without it, as most of them are.

    Of tables: ``split_column`` says train or test; without it and without a test file,
    ``test_share`` of every class of every owner is held out by ``split_seed``. Features are the
    columns in ``features``, or all that have no other use and are not in ``ignore``. ``ranges``
    of numbers, ``categories`` of words and the columns in which values may be ``missing`` are
    public declarations; what is not declared is computed from the training records.
    """

    name: str = "digits"
    dir: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    client_column: str | None = None
    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    text_column: str | None = None
    vocabulary: str | None = None
    sequence_length: int | None = None
    domains: tuple[str, ...] | None = None
    channels: Literal[1, 3] | None = None
    split_column: str | None = None
    test_share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    split_seed: Annotated[int, Meta(ge=0)] | None = None
    features: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    ranges: dict[str, tuple[float, float]] | None = None
    categories: dict[str, tuple[str | bool | int | float, ...]] | None = None
    missing: tuple[str, ...] | None = None

    @property
    def table(self) -> dict[str, Any]:
        """What is declared about the columns of features."""
        return {key: value for key in TABLES_ONLY if (value := getattr(self, key)) is not None}


@dataclass(frozen=True)
class CorruptSettings:
    """The ``[corrupt]`` section: which share of the records of which clients is mislabelled."""

    share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    clients: Literal["all"] | tuple[int, ...] = "all"
