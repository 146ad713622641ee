"""Faults on purpose: the local engine with lost, late, crashed and corrupt answers.

For trying things out. Which answers are hit is drawn from ``faults.seed`` for every client and
round by itself: the same with any number of workers, and in a resumed run. Nobody waits for a slow
client: its time is simulated.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self

from fedstill.config.experiment import EngineSettings, FaultSettings
from fedstill.engine.base import Answer, Engine, Progress, Work
from fedstill.rng import Rng

_ALTERED_BYTES = 8  # of a corrupt message


class FaultyEngine(Engine):
    """Another engine of this machine, with faults."""

    def __init__(self, inner: Engine, faults: FaultSettings, settings: EngineSettings) -> None:
        self._inner = inner
        self._faults = faults
        self._limit = settings.round_timeout
        self._rng = Rng(faults.seed).at("faults")

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        self._inner.__exit__(*reason)

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        crashed = [work for work in works if self._hit("crashed", self._faults.crashed, work)]
        for work in crashed:
            yield Answer(work.client, error="faults: the client crashed")
        asked = {work.client: work for work in works}
        rest = [work for work in works if work not in crashed]
        for answer in self._inner.exchange(rest, progress):
            yield self._arrived(asked[answer.client], answer)

    def _arrived(self, work: Work, answer: Answer) -> Answer:
        """What the server gets of a client's answer. A late or lost one cost the client its work,
        and in a private run its accesses, all the same."""
        faults = self._faults
        if answer.error is not None:
            return answer
        if self._hit("slow", faults.slow, work):
            return Answer(work.client, error=f"faults: no answer within {self._limit:g} s")
        if self._hit("lost", faults.lost, work):
            return Answer(work.client, error="faults: its answer was lost")
        if self._hit("corrupt", faults.corrupt, work):
            return dataclasses.replace(answer, message=self._altered(work, answer.message))
        return answer

    def _hit(self, kind: str, share: float, work: Work) -> bool:
        stream = self._rng.at(kind, "round", work.round, "client", work.client)
        return share > 0 and float(stream.numpy().random()) < share

    def _altered(self, work: Work, message: bytes) -> bytes:
        """The message with some bytes, at random places, replaced by others."""
        stream = self._rng.at("bytes", "round", work.round, "client", work.client).numpy()
        altered = bytearray(message)
        for place in stream.integers(len(message), size=min(_ALTERED_BYTES, len(message))):
            altered[place] ^= int(stream.integers(1, 256))
        return bytes(altered)


def describe(faults: FaultSettings) -> str:
    """The faults in one line, for the user."""
    kinds = {
        "lost": "answers lost",
        "slow": f"clients slow ({faults.slow_seconds:g} s)",
        "crashed": "clients crashed",
        "corrupt": "messages corrupt",
    }
    parts = [f"{share:.0%} of {kinds[k]}" for k in kinds if (share := getattr(faults, k)) > 0]
    return f"faults on purpose: {', '.join(parts) or 'none'}, from faults.seed {faults.seed}"
