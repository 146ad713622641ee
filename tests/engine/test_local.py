"""The worker processes: their messages, their warnings and their deaths."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstill
from fedstill import wire
from fedstill.client import Answer, Work
from fedstill.engine import ahead
from fedstill.engine.base import decode_answer, decode_work, encode_answer, encode_work
from fedstill.engine.local import InProcess, WorkerPool, local_engine
from fedstill.engine.processes import read_frame, write_frame
from fedstill.errors import RunError, WireError, one_line
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.shared.messages import Update, Weights
from fedstill.runs.folder import RunFolder
from fedstill.testing import toy_experiment
from fedstill.types import ClientContext, ServerContext, silent
from tests.waiting import wait_until


@dataclass(frozen=True)
class Talkative(FedAvg):
    """Warns, prints to standard output, and dies on request: none of it may corrupt the frames."""

    die: bool = False

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
        print("this must not end up among the frames")
        warnings.warn("a warning from a worker", stacklevel=1)
        if self.die and ctx.client == 2 and ctx.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client(ctx, message, state)


NAME = "tests.engine.test_local:Talkative"
FAST = {"rounds": 2, "clients": 4, "model": "mlp", "workers": 2}


def test_warnings_of_workers_reach_the_user_once(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        fedstill.run(NAME, out=tmp_path / "run", **FAST)  # type: ignore[arg-type]
    assert [str(w.message) for w in seen].count("a warning from a worker") == 1


def test_a_killed_worker_fails_the_run_with_a_reason(tmp_path: Path) -> None:
    settings = {"method.die": True}
    with pytest.raises(
        RunError, match=r"a worker process was killed \(out of memory\?\).*--resume"
    ):
        fedstill.run(NAME, out=tmp_path / "run", set=settings, **FAST)  # type: ignore[arg-type]
    assert RunFolder(tmp_path / "run").read_summary().rounds_done == 1


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """Even a killed parent leaves no process behind."""
    code = (
        "import os, signal; from tests.engine.test_local import started_workers as s\n"
        "for pid in s(): print(pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    pids = [int(line) for line in parent.stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: not any(_alive(pid) for pid in pids), "the end of the workers")


def started_workers() -> Iterator[int]:
    engine = WorkerPool(toy_experiment(FedAvg()), 2, Path(tempfile.mkdtemp()) / "workers")
    engine.__enter__()
    return (process._process.pid for process in engine._processes)


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_objects_and_small_rounds_stay_in_this_process(tmp_path: Path) -> None:
    built = toy_experiment(FedAvg())
    assert isinstance(local_engine(built, tmp_path), InProcess)  # an object cannot be sent
    assert not built.portable


def test_frames() -> None:
    stream = io.BytesIO()
    write_frame(stream, {"a": 1}, [b"xy\n", b""])
    write_frame(stream, {"b": None})
    stream.seek(0)
    assert read_frame(stream) == ({"a": 1}, [b"xy\n", b""])
    assert read_frame(stream) == ({"b": None}, [])
    with pytest.raises(EOFError):
        read_frame(stream)
    for cut in (b'{"cut', b'{"sizes":[3]}\nab', b'{"sizes":[1,2]}\nab'):
        with pytest.raises(EOFError):  # the other side died in the middle of it
            read_frame(io.BytesIO(cut))


def test_a_worker_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is found here and gone when the workers look for it."""
    module = tmp_path / "fleeting.py"
    module.write_text("from fedstill.methods.fedavg import FedAvg as Fleeting\n")
    monkeypatch.syspath_prepend(tmp_path)
    import fleeting  # type: ignore[import-not-found]  # noqa: F401

    module.unlink()
    with pytest.raises(RunError, match=r"could not start: .*cannot import 'fleeting'"):
        fedstill.run("fleeting:Fleeting", out=tmp_path / "run", **FAST)  # type: ignore[arg-type]


def test_workers_find_modules_where_the_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_script.py").write_text(
        "from fedstill.methods.fedavg import FedAvg as Mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = fedstill.run("beside_the_script:Mine", out=tmp_path / "run", **FAST)  # type: ignore[arg-type]
    assert result.summary.status == "done"
    assert not (tmp_path / "run" / ".workers").exists()


@given(
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.binary(max_size=50),
    st.none() | st.binary(max_size=50),
    st.none() | st.text(max_size=20),
    st.booleans(),
)
def test_work_and_answers_come_back_as_they_went(
    round: int, client: int, message: bytes, state: bytes | None, error: str | None, spent: bool
) -> None:
    work = Work(round, client, message, state)
    assert decode_work(encode_work(work)) == work
    answer = Answer(client, message, state, error, error, spent, asked=not spent)
    read = decode_answer(encode_answer(answer))
    assert read == replace(answer, error=error and one_line(error))
    assert decode_answer(encode_answer(read)) == read
    # What is large is not copied: everything that carries it can send equal parts once.
    assert encode_work(work)[1] is message


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_garbage_is_neither_work_nor_an_answer(parts: list[bytes]) -> None:
    for decode in (decode_work, decode_answer):
        with pytest.raises(WireError):
            decode(parts)


def test_fields_that_nest_without_end_are_refused() -> None:
    fields, message, state = encode_answer(Answer(1, b"m"))
    deep = fields[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    inside = fields.replace(b'"error":null', b'"error":' + b"[" * 100_000)
    for hostile in (deep, inside):
        with pytest.raises(WireError, match="neither work nor an answer"):
            decode_answer((hostile, message, state))


def test_the_broadcast_is_read_once_unless_a_client_writes_into_it() -> None:
    class Writes(FedAvg):
        def client(self, ctx: Any, message: Any, state: None) -> Any:
            answer = super().client(ctx, message, state)
            if ctx.client == 1:  # not pure: the next client must not see it
                next(iter(message.params.values())).add_(1.0)
            return answer

    read: list[int] = []

    class Counted(Writes):
        def download(self, task: Any) -> Any:
            read.append(1)
            return super().download(task)

    built = toy_experiment(Counted())
    context = ServerContext(built.task, 1, built.rng)
    down = built.method.broadcast(context, built.method.init(context))
    data = wire.encode(down, FedAvg().download(built.task))
    together = [built.runner.answer(Work(1, c, data, None), silent) for c in range(3)]
    assert len(read) == 2  # for client 0, and after client 1
    alone = toy_experiment(FedAvg()).runner
    for answer in together:
        assert answer.error is None
        assert answer.message == alone.answer(Work(1, answer.client, data, None), silent).message


def test_workers_that_were_started_ahead_are_taken_and_others_ended() -> None:
    with ahead.started_ahead(3):
        waiting = list(ahead._idle[ahead.LOCAL])
        assert len(waiting) == 3
        taken = ahead.take(ahead.LOCAL)
        assert taken in waiting
        assert taken.poll() is None
    assert all(process.poll() is not None for process in waiting if process is not taken)
    assert taken.poll() is None
    assert taken.stdin is not None
    taken.stdin.close()  # it is told nothing to do: it ends by itself, and quietly
    assert taken.wait(60) == 0
    assert taken.stdout is not None
    taken.stdout.close()


def test_workers_expected() -> None:
    cores = os.cpu_count() or 1
    assert ahead.workers_expected({}) == min(cores, 10)
    assert ahead.workers_expected({"engine": {"workers": 3}, "clients": 2}) == 2
    assert ahead.workers_expected({"engine": {"workers": 3}, "participation": 0.1}) == 1
    assert ahead.workers_expected({"engine": {"name": "flower"}}) == 0
    assert ahead.workers_expected({"device": "cuda"}) == 0
