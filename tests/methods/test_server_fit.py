"""The server's training on images: what every method that has it shows and chooses."""

import pytest

from fedstill.build import build
from fedstill.forecast.notes import notes
from fedstill.methods import METHODS
from fedstill.methods.feddm import FedDM
from fedstill.methods.feddualmatch import FedDualMatch

AUGMENTING = [name for name, cls in METHODS.items() if hasattr(cls, "server_augment")]


@pytest.mark.parametrize("name", AUGMENTING)
def test_a_run_says_what_auto_stands_for(name: str) -> None:
    section = {"name": name, "server_augment": "auto"}
    request = (
        {"method": section, "privacy": {"epsilon": 3.0}} if name == "psg" else {"method": section}
    )
    built = build(request)
    built = built.planned() if name == "psg" else built
    assert any("method.server_augment = auto: none" in note for note in notes(built, first=True))


def test_methods_that_send_sets_send_8_bits_by_default() -> None:
    sending = {name for name, cls in METHODS.items() if cls.sends_sets}
    assert {"feddm", "feddualmatch", "fedgloss", "local-gm", "real"} <= sending
    assert "gm" not in sending  # centralised: nothing is sent
    for name in METHODS:
        codec = "bits8+zstd" if name in sending else "float32"
        assert build({"method": name}).experiment.wire.up == codec


def test_feddualmatch_trains_as_feddm_does() -> None:
    task = build({"method": "feddm"}).task
    ours, theirs = FedDualMatch(), FedDM()
    assert ours.training_for() == theirs.training_for()
    assert ours.steps_on(task) == theirs.steps_on(task) == 150  # 8x8 digits
    assert FedDualMatch(server_iterations=7).steps_on(task) == 7
