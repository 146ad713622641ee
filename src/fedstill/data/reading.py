"""How the rows of a data set are turned into records."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.data.catalogue import Source
from fedstill.data.decoded import Decoded
from fedstill.data.held_out import SHARE, say_held_out
from fedstill.data.settings import TABLES_ONLY, DataSettings
from fedstill.data.table_files import TableFiles, open_table
from fedstill.data.text import decode_texts, read_plays
from fedstill.data.vocabulary import Vocabulary, find_vocabulary
from fedstill.errors import RequestError

if TYPE_CHECKING:
    from fedstill.data.rows import Table


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
    split_column: str | None = None
    share: float = SHARE
    seed: int = 0
    table: dict[str, Any] = field(default_factory=dict)
    needs_test: bool = False  # a known data set with an official test split

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
            settings.channels or (source.channels if source else None),
            vocabulary,
            length,
            settings.split_column,
            settings.test_share or SHARE,
            settings.split_seed or 0,
            settings.table,
            source is not None and not text and not source.owners,
        )

    @property
    def key(self) -> dict[str, object]:
        """What the decoded records depend on beside the files, for the cache."""
        tokens = self.vocabulary.tokens if self.vocabulary else None
        return {**vars(self), "vocabulary": tokens}

    def of_part(self) -> "Reading":
        """The same for one domain alone, whose records all have one owner."""
        return replace(self, owners=(), client_column=None, needs_test=True)

    def tables(self, train: "Sequence[Table]", test: "Sequence[Table]", place: str) -> Decoded:
        """Records from the tables of both splits."""
        from fedstill.data import columns  # here: pyarrow is slow to import for a cache hit

        names = columns.Columns(
            self.image_column,
            self.label_column,
            self.client_column,
            self.text_column,
            self.owners,
            self.split_column,
        )
        if self.vocabulary is None:
            return columns.decode_tables(
                train,
                test,
                names,
                self.image_size,
                self.channels,
                self.table,
                columns.Division(self.share, self.seed, every_fifth=bool(self.owners)),
            )
        texts = columns.text_tables(train, test, names)
        return decode_texts(*texts, self.vocabulary, self.length, place)

    def say_division(self, place: str, *, test: bool, per_owner: bool = False) -> None:
        """Tell the user, every time, that the test split is ours."""
        ours = not test and self.split_column is None and self.vocabulary is None
        if ours and not self.owners:
            say_held_out(place, self.share, per_owner or self.client_column is not None)
        for key, given in (("test_share", self.share != SHARE), ("split_seed", self.seed != 0)):
            if given and not ours:
                raise RequestError(f"data.{key}: there is a test split already; leave it out")

    def named_images(self, files: TableFiles) -> list[Path]:
        """The image files that the tables name: when one of them changes, the records do."""
        from fedstill.data import columns  # here: pyarrow is slow to import

        if self.vocabulary is not None:
            return []
        return columns.named_images([open_table(file) for file in files.all], self.image_column)

    def plays(self, path: Path) -> Decoded:
        """Records from a plain text with speakers."""
        assert self.vocabulary is not None
        return decode_texts(read_plays(path), None, self.vocabulary, self.length, str(path))


_LARGEST = {"image_size": 8192, "sequence_length": 1_000_000}
_TEXT_ONLY = ("vocabulary", "sequence_length")
_IMAGES_ONLY = (
    "image_column", "label_column", "image_size", "mean", "std", "channels", "split_column"
)  # fmt: skip


def _refuse_unused(settings: DataSettings, text: bool) -> None:
    """A setting that would change nothing is a mistake."""
    why = "the records are text; leave it out"
    if not text:
        why = "the records are not text; leave it out, or name their column in data.text_column"
    for key in (*_IMAGES_ONLY, *TABLES_ONLY) if text else _TEXT_ONLY:
        if (value := getattr(settings, key)) is not None:
            raise RequestError(f"data.{key} = {value!r}: {why}")
    for key, most in _LARGEST.items():
        if (value := getattr(settings, key)) is not None and not 1 <= value <= most:
            raise RequestError(f"data.{key} = {value}: must be 1 or more, and at most {most:,}")


def refuse_other_kind(settings: DataSettings, *, table: bool) -> None:
    """Refuse a setting of images where the records are rows of features, and the reverse."""
    why = "the records are rows of features (their scaling is data.ranges); leave it out"
    if not table:
        why = "the records are no table of features; leave it out"
    for key in ("image_size", "mean", "std", "channels") if table else TABLES_ONLY:
        if (value := getattr(settings, key)) is not None:
            raise RequestError(f"data.{key} = {value!r}: {why}")
