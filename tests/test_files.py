import errno
import stat
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
