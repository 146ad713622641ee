import io
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from fedstill.draw.console import Console
from fedstill.engine.base import Answer, decode_answer, encode_answer
from fedstill.errors import is_printable, one_line, printable
from fedstill.observe.progress import PlainProgress
from fedstill.report.embed import data_script
from fedstill.report.statement import Part, Statement
from fedstill.runs.folder import RunFolder

RED = "\x1b[31mred\x1b[0m"
TITLE = "\x1b]0;owned\x07"
CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x1b\\"
HOSTILE = f"a{RED}b{TITLE}c{CLIPBOARD}\x9b2Jd\x1bce\x08\r\u202ef"


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        (RED, "red"),
        (f"a{TITLE}b", "ab"),
        (f"a{CLIPBOARD}b", "ab"),
        ("a\x9b31mb", "ab"),
        ("\x90payload\x9cb", "b"),
        ("a\x1bcb", "ab"),
        ("\x1b]0;without an end", "0;without an end"),
        ("a\x1b", "a\ufffd"),
        ("over\rwritten", "over\ufffdwritten"),
        ("a\x08b\x00c", "a\ufffdb\ufffdc"),
        ("a\u202eb\u2066c", "a\ufffdb\ufffdc"),
        ("half \udce4 a letter", "half \ufffd a letter"),
        ("lines\r\nand\ttabs", "lines\nand\ttabs"),
        ("Grüße, 数字, naïve", "Grüße, 数字, naïve"),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out(hostile: str, harmless: str) -> None:
    assert printable(hostile) == harmless
    printable(hostile).encode()
    assert printable(harmless) == harmless


def test_one_line_is_one_short_line() -> None:
    assert one_line("a\n b\u2028c\x0bd  e") == "a b c d  e"
    assert len(one_line("x" * 10**6)) < 3000
    assert is_printable("a class")
    assert not is_printable("two\nlines")
    assert not is_printable(RED)


def test_a_client_s_reason_is_one_short_line_wherever_it_goes() -> None:
    answer = Answer(1, error=f"boom\n{HOSTILE}" + "x" * 10**6)
    read = decode_answer(encode_answer(answer))
    assert read.error is not None
    assert read.error.startswith("boom aredbcde")
    assert len(read.error) == 2000
    assert decode_answer(encode_answer(read)) == read


def test_many_beginnings_of_sequences() -> None:
    """A scan that is quadratic in the text would take an hour."""
    assert printable("\x1b]" * 500_000) == ""
    assert printable("\x9b0" * 500_000) == "\ufffd0" * 500_000


def test_no_text_commands_the_terminal() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=200)
    table = Table()
    table.add_column(Text(HOSTILE))
    table.add_row(Text(HOSTILE))
    console.print(table)
    console.print(HOSTILE, markup=False)
    console.print(f"in\x1b[1m{HOSTILE}")
    PlainProgress(console).client_done(3, f"boom {HOSTILE}\nand more")
    shown = stream.getvalue()
    assert not set("\x1b\x9b\x07\x08\r\u202e") & set(shown)
    assert "client 3 failed: boom aredbcde" in shown


def test_colours_of_our_own_stay() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard")
    console.print(Text("bold", style="bold"))
    assert "\x1b[1mbold" in stream.getvalue()


def test_neither_the_log_nor_a_page_gets_them(tmp_path: Path) -> None:
    RunFolder(tmp_path).log_error(f"Traceback\n{HOSTILE} \udce4\n")
    log = (tmp_path / "errors.log").read_text(encoding="utf-8")
    page = Statement(HOSTILE, "mark", True, (Part(HOSTILE, (HOSTILE,)),), HOSTILE).html
    for shown in (log, page, data_script("data", {"reason": HOSTILE})):
        assert not set("\x1b\x9b\x07\x08\u202e") & set(shown)
    assert log.startswith("Traceback\naredbc")
