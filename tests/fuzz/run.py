"""The fuzzer: cases without end, and one property.

Whatever bytes a reader gets, it gives a value that is as declared, or one of our own errors: never
another exception, never a hang, never memory above a bound.

    python -m tests.fuzz --cases 1000000 --seed 0      # what `make fuzz` does
    python -m tests.fuzz --only wire --case 1234       # one case again, with its traceback

Case K of a target depends on the seed, the target's name and K alone. Each target runs in a process
of its own, so that a crash of a library costs one case and not the rest.
"""

import argparse
import faulthandler
import logging
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch

from tests.fuzz import configs, data, messages, stored
from tests.fuzz.target import Target, is_refusal

TARGETS: tuple[Target, ...] = (
    *messages.TARGETS,
    *stored.TARGETS,
    *configs.TARGETS,
    *data.TARGETS,
)
TOGETHER = 50  # cases under one alarm: system calls cost more than most cases
LONGEST = 30.0  # seconds of processor time that they may take
STUCK = 180  # seconds after which a process that does not even notice is killed
PAUSE = 0.05  # seconds between two looks at it
MOST_MEMORY = 2**30  # bytes that a case may add to the most that was ever used
ROOM = 4 * 2**30  # bytes of address space above what the process has when it begins


@dataclass
class Counts:
    """What came out of a target's cases."""

    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    defects: list[str] = field(default_factory=list)

    def add(self, case: int, verdict: str) -> None:
        """Count a case."""
        if verdict == "accepted":
            self.accepted += 1
        elif verdict == "refused":
            self.refused += 1
        else:
            self.defects.append(f"case {case}: {verdict}")


class Hang(BaseException):
    """A case takes too long. No ``except Exception`` catches it."""


def stream(seed: int, target: str, case: int) -> Random:
    """The random numbers of a case."""
    return Random(f"{seed}/{target}/{case}")


def try_case(make: Any, check: Any, rng: Random) -> str:
    """``accepted``, ``refused``, or what is wrong."""
    try:
        check(make(rng))
    except Hang:
        return f"it did not end within {LONGEST} seconds"
    except Exception as error:
        if not is_refusal(error):
            return "".join(traceback.format_exception(error)[-3:])[:2000]
        return "refused"
    return "accepted"


@contextmanager
def _alarm() -> Iterator[None]:
    """A case that is under way when the time is over, and again later, is stopped.

    Processor time: on a busy machine a case may take any time. One that waits is killed later.
    """

    def stop(*_: Any) -> None:
        raise Hang

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_cases(target: Target, seed: int, cases: Sequence[int], at: mmap.mmap) -> Counts:
    """These cases in this process; ``at`` says which one is under way."""
    counts = Counts()
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as name:
        make, check = target.prepare(Path(name))
        begun = time.monotonic()
        for start in range(0, len(cases), TOGETHER):
            before = _peak()
            with _alarm():
                for case in cases[start : start + TOGETHER]:
                    struct.pack_into("<q", at, 0, case)
                    counts.add(case, try_case(make, check, stream(seed, target.name, case)))
            if (grown := _peak() - before) > MOST_MEMORY:
                counts.defects.append(f"case {case} or shortly before: {grown:,} bytes of memory")
        counts.seconds = time.monotonic() - begun
    return counts


def in_process(target: Target, seed: int, cases: Sequence[int]) -> Counts:
    """These cases in a process of their own; after a crash, the rest in another."""
    at = mmap.mmap(-1, 8)
    struct.pack_into("<q", at, 0, -1)
    with tempfile.NamedTemporaryFile() as answer:
        process = os.fork()
        if process == 0:
            _child(target, seed, cases, at, answer.name)
        status = _ended(process, at)
        text = Path(answer.name).read_bytes()
    if text:
        return msgspec.json.decode(text, type=Counts)
    (last,) = struct.unpack_from("<q", at, 0)
    how = f"case {last}: the process ended with status {status}"
    if last < 0:
        return Counts(defects=[how])
    # What was counted in the lost process is counted as neither: those cases had no defect.
    rest = in_process(target, seed, [case for case in cases if case > last])
    rest.defects.insert(0, how)
    return rest


def _child(target: Target, seed: int, cases: Sequence[int], at: mmap.mmap, answer: str) -> None:
    code = 1
    try:
        faulthandler.enable()
        warnings.simplefilter("ignore")
        logging.disable()
        torch.set_num_threads(1)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        counts = run_cases(target, seed, cases, at)
        Path(answer).write_bytes(msgspec.json.encode(counts))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _ended(process: int, at: mmap.mmap) -> int:
    """The process's status; killed if it stays at one case where no alarm is heard."""
    case, looks = None, 0  # looks, not time: both processes may be stopped and continued
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        (now,) = struct.unpack_from("<q", at, 0)
        case, looks = now, looks + 1 if now == case and now >= 0 else 0
        if looks * PAUSE > STUCK:
            os.kill(process, signal.SIGKILL)
        time.sleep(PAUSE)


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def plan(targets: Sequence[Target], cases: int) -> dict[str, int]:
    """How many cases every target gets."""
    whole = sum(target.share for target in targets)
    return {target.name: max(1, round(cases * target.share / whole)) for target in targets}


def main(words: Sequence[str] | None = None) -> None:
    """Run the cases and print the counts; exit code 1 where there is a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=20_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[t.name for t in TARGETS], help="one target")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="one case again, in this process")
    given = parser.parse_args(words)
    chosen = [t for t in TARGETS if given.only in (None, t.name)]
    if given.case is not None:
        _again(chosen[0], given.seed, given.case)
        return
    print(f"seed {given.seed}, {given.cases:,} cases", flush=True)
    defects = 0
    for target in chosen:
        number = plan(chosen, given.cases)[target.name]
        counts = in_process(target, given.seed, range(given.first, given.first + number))
        print(
            f"{target.name:14} {number:9,} cases {counts.accepted:9,} accepted "
            f"{counts.refused:9,} refused {len(counts.defects):5,} defects {counts.seconds:7.0f} s",
            flush=True,
        )
        for defect in counts.defects[:5]:
            print(f"  --seed {given.seed} --only '{target.name}', {defect}", flush=True)
        defects += len(counts.defects)
    print(f"{defects} defects", flush=True)
    sys.exit(1 if defects else 0)


def _again(target: Target, seed: int, case: int) -> None:
    """One case with its traceback, and what it was made of."""
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as name:
        make, check = target.prepare(Path(name))
        made = make(stream(seed, target.name, case))
        print(repr(made)[:5000])
        check(made)
        print("accepted")
