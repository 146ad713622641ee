"""CSV files as tables: text, whose columns get the narrowest type that all their values have.

The whole column decides, not the beginning of the file: a word in the last row is found. Dates stay
text. Nothing is decompressed, so a file cannot hold more than its size.

Where privacy is on, a line is a record, and one record must not decide whether and how others are
read: ``tolerant_csv_table``.
"""

import csv
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from fedstill.data.limits import refuse_without_room
from fedstill.data.rows import Table
from fedstill.errors import RequestError, printable

CSV_SUFFIXES = (".csv", ".tsv")
MISSING = ("", "?", "NA", "N/A", "#N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "None", "-")
_SEPARATORS = (",", ";", "\t")
_COPIES = 4  # of the file in memory while it is read
_LONGEST_HEADER = 2**20
_BLOCK = 2**22  # bytes that are parsed at once: more than a row has
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d{1,4})?")
_WHOLE = r"^[+-]?\d{1,18}$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?$"


def csv_table(path: Path) -> Table:
    """A CSV file with a header line; anything irregular in it is refused."""
    names, separator = _opened(path)
    as_text = arrow_csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=list(MISSING),
        strings_can_be_null=True,
    )
    try:
        with path.open("rb") as file:
            table = arrow_csv.read_csv(
                file,
                arrow_csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK, skip_rows=1, column_names=names
                ),
                arrow_csv.ParseOptions(delimiter=separator),
                as_text,
            )
    except (pa.ArrowException, ValueError) as error:
        reason = printable(str(error)).split("\n")[0][:200]
        raise RequestError(f"{path}: not a readable CSV file ({reason})") from error
    columns = {name: typed(table.column(name), separator == ";") for name in names}
    return _table(path, columns, table.num_rows)


def tolerant_csv_table(path: Path) -> Table:
    """The same, every line for itself: no line decides how another one is read, and whether it is.

    A line that is not one row of the right length is left out. Bytes that are not UTF-8, and a
    quotation mark without its partner, spoil their own line alone. All values stay text, for a
    column's type would depend on all of its values.
    """
    names, separator = _opened(path)
    rows: list[list[str | None]] = []
    for line in path.read_bytes().split(b"\n")[1:]:
        text = line.decode("utf-8", "replace").rstrip("\r")
        try:
            row = next(csv.reader([text], delimiter=separator), [])
        except csv.Error:
            continue
        if len(row) == len(names):
            rows.append([_value(cell.strip(), separator) for cell in row])
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = {
        name: pa.chunked_array([pa.array(column, pa.string())])
        for name, column in zip(names, cells, strict=True)
    }
    return _table(path, columns, len(rows))


def _opened(path: Path) -> tuple[list[str], str]:
    """The names of the columns and what is between them, of a file that is not too large."""
    held = path.stat().st_size
    refuse_without_room(_COPIES * held, f"{path}: {held:,} bytes of CSV", "use parquet")
    separator = _separator(path)
    names = _names(path, separator)
    if not _has_rows(path):
        raise RequestError(f"{path}: the file holds no records, only the names of its columns")
    return names, separator


def _value(text: str, separator: str) -> str | None:
    if separator == ";" and _DECIMAL_COMMA.fullmatch(text):
        return text.replace(",", ".")
    return None if text in MISSING else text


def _table(path: Path, columns: dict[str, pa.ChunkedArray], rows: int) -> Table:
    def batches(name: str) -> Iterable[pa.Array]:
        chunks: list[pa.Array] = columns[name].chunks
        return chunks

    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    return Table(str(path), schema, rows, batches)


def csv_names(path: Path) -> list[str]:
    """The names of the columns, from the first line."""
    return _names(path, _separator(path))


def typed(text: pa.ChunkedArray, decimal_comma: bool = False) -> pa.ChunkedArray:
    """Whole numbers, else numbers, else the text as it is, without blanks around it."""
    text = pc.utf8_trim_whitespace(text)
    text = pc.if_else(pc.is_in(text, pa.array(MISSING)), None, text)
    dotted = pc.replace_substring(text, ",", ".") if decimal_comma else text
    for pattern, kind in ((_WHOLE, pa.int64()), (NUMBER, pa.float64())):
        if pc.all(pc.match_substring_regex(dotted, pattern)).as_py():
            return pc.cast(pc.utf8_ltrim(dotted, "+"), kind)
    return text


def _header(path: Path) -> str:
    with path.open("rb") as file:
        line = file.readline(_LONGEST_HEADER + 1)
    if len(line) > _LONGEST_HEADER:
        raise RequestError(f"{path}: not a CSV file: its first line has more than a million bytes")
    try:
        return line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: not a CSV file of UTF-8 text") from error


def _has_rows(path: Path) -> bool:
    with path.open("rb") as file:
        file.readline(_LONGEST_HEADER)
        return any(line.strip() for line in iter(partial(file.readline, _BLOCK), b""))


def _separator(path: Path) -> str:
    header = _header(path)
    return max(_SEPARATORS, key=header.count)


def _names(path: Path, separator: str) -> list[str]:
    header = _header(path)
    if not header.strip():
        raise RequestError(f"{path}: the file is empty, or its first line names no columns")
    try:
        names = [name.strip() for name in next(csv.reader([header], delimiter=separator))]
    except csv.Error as error:
        raise RequestError(f"{path}: not a CSV file: its first line names no columns") from error
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RequestError(f"{path}: two columns are called '{name}'; rename one")
        seen.add(name)
    return names
