import platform

import pytest

from fedstill.engine.memory import freed_memory_kept, keep_freed_memory


def test_the_c_library_takes_the_hint() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


def test_memory_is_given_back_also_after_an_error() -> None:
    with pytest.raises(KeyError), freed_memory_kept():
        raise KeyError
