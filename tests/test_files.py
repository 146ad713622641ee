import errno
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedstill import files


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    files.write_atomically(path, b"old")

    def full(_self: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    files.write_atomically(tmp_path / "x", b"1")
    (tmp_path / "y").write_bytes(b"1")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "xy"}
    assert len(modes) == 1


def test_lines_are_added(tmp_path: Path) -> None:
    files.append_line(tmp_path / "log", b"one")
    files.append_line(tmp_path / "log", b"two")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_leftovers_of_killed_writers_are_swept(tmp_path: Path) -> None:
    """And nothing else: neither a file that is being written, nor one of another name."""
    inner = tmp_path / "deep" / "er"
    code = (
        "import os, sys; from pathlib import Path; from fedstill import files\n"
        "with files.replacing(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), 9)"
    )
    for folder in (tmp_path, inner):
        subprocess.run([sys.executable, "-c", code, str(folder / "model.bin")], check=False)
    left = sorted(path.name[:11] for path in tmp_path.rglob("*") if path.is_file())
    assert left == [".model.bin."] * 2
    for name in (".mine.tmp", "notes.tmp", ".lock"):
        (tmp_path / name).write_bytes(b"")
    with files.replacing(tmp_path / "live") as live:
        live.write_bytes(b"new")
        files.sweep(tmp_path)
        assert live.exists()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        ".lock",
        ".mine.tmp",
        "live",
        "notes.tmp",
    }
    assert (tmp_path / "live").read_bytes() == b"new"
