"""How the rows of a data set are turned into records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.data.catalogue import Source
from fedstill.data.decoded import Decoded
from fedstill.data.text import decode_texts, read_plays
from fedstill.data.vocabulary import Vocabulary, find_vocabulary
from fedstill.errors import RequestError

if TYPE_CHECKING:
    from fedstill.data.rows import Table


@dataclass(frozen=True)
class DataSettings:
    """What to load and how to read it: the ``[data]`` section of a configuration.

    ``name`` is a known name, ``hub:OWNER/NAME``, or the path of a folder, ``.npz`` or ``.txt``
    file. ``image_size`` resizes every image to that square; without it all must have one size.
    ``text_column`` says that a table holds texts, not images; ``vocabulary`` is "characters" or
    a file of words, one per line; ``sequence_length`` is the number of tokens in a record.
    ``domains`` keeps only the records of these owners.
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


@dataclass(frozen=True)
class Reading:
    """The settings with everything that the data set's entry decides."""

    image_column: str | None
    label_column: str | None
    client_column: str | None
    text_column: str | None
    owners: tuple[str, ...]
    image_size: int | None
    channels: int | None
    vocabulary: Vocabulary | None  # of a text; None: images
    length: int

    @classmethod
    def of(cls, settings: DataSettings, source: Source | None, text: bool) -> "Reading":
        """How to read a data set; ``source`` is its entry in the table, if it has one."""
        text = text or settings.text_column is not None
        _refuse_unused(settings, text)
        vocabulary = find_vocabulary(settings.vocabulary) if text else None
        length = settings.sequence_length or (vocabulary.usual_length if vocabulary else 0)
        return cls(
            settings.image_column,
            settings.label_column,
            settings.client_column,
            settings.text_column,
            source.owners if source else (),
            settings.image_size or (source.image_size if source else None),
            source.channels if source else None,
            vocabulary,
            length,
        )

    @property
    def needs_test(self) -> bool:
        """Whether there must be a test split: not where one can be held out, owner by owner."""
        return self.vocabulary is None and not self.owners

    @property
    def key(self) -> dict[str, object]:
        """What the decoded records depend on beside the files, for the cache."""
        tokens = self.vocabulary.tokens if self.vocabulary else None
        return {**vars(self), "vocabulary": tokens}

    def of_part(self) -> "Reading":
        """The same for one domain alone, whose records all have one owner."""
        return replace(self, owners=(), client_column=None)

    def tables(self, train: "Sequence[Table]", test: "Sequence[Table]", place: str) -> Decoded:
        """Records from the tables of both splits."""
        from fedstill.data import columns  # here: pyarrow is slow to import for a cache hit

        names = columns.Columns(
            self.image_column,
            self.label_column,
            self.client_column,
            self.text_column,
            self.owners,
        )
        if self.vocabulary is None:
            return columns.decode_tables(train, test, names, self.image_size, self.channels)
        texts = columns.text_tables(train, test, names)
        return decode_texts(*texts, self.vocabulary, self.length, place)

    def plays(self, path: Path) -> Decoded:
        """Records from a plain text with speakers."""
        assert self.vocabulary is not None
        return decode_texts(read_plays(path), None, self.vocabulary, self.length, str(path))


_LARGEST = {"image_size": 8192, "sequence_length": 1_000_000}
_TEXT_ONLY = ("vocabulary", "sequence_length")
_IMAGES_ONLY = ("image_column", "label_column", "image_size", "mean", "std")


def _refuse_unused(settings: DataSettings, text: bool) -> None:
    """A setting that would change nothing is a mistake."""
    why = "the records are text; leave it out"
    if not text:
        why = "the records are not text; leave it out, or name their column in data.text_column"
    for key in _IMAGES_ONLY if text else _TEXT_ONLY:
        if (value := getattr(settings, key)) is not None:
            raise RequestError(f"data.{key} = {value!r}: {why}")
    for key, most in _LARGEST.items():
        if (value := getattr(settings, key)) is not None and not 1 <= value <= most:
            raise RequestError(f"data.{key} = {value}: must be 1 or more, and at most {most:,}")
