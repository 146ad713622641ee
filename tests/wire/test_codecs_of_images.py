"""Codecs of few bits are for images: where none are sent, a run with one is refused."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.build import build
from fedstill.build.codecs import refuse_codecs_of_images
from fedstill.config.experiment import CODEC_NAMES
from fedstill.errors import RequestError
from fedstill.methods import METHODS
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.feddm import FedDM
from fedstill.methods.shared.messages import Update, Weights, set_specs
from fedstill.testing.toys import toy_experiment
from fedstill.types import Task
from fedstill.wire import CODECS, Schema, pixel_bits

OF_IMAGES = [name for name in CODECS if pixel_bits(name) is not None]


def with_codecs(method: Any, up: str = "float32", down: str = "float32") -> Any:
    built = toy_experiment(method)
    wire = replace(built.experiment.wire, up=up, down=down)
    return replace(built, experiment=replace(built.experiment, wire=wire))


def test_settings_name_every_codec() -> None:
    assert sorted(CODEC_NAMES) == sorted(CODECS)


def test_a_run_is_refused_before_it_begins(tmp_path: Path) -> None:
    for method, codec in (("analytic", "bits2"), ("fedavg", "bits1+context")):
        with pytest.raises(RequestError, match=r"wire\.up = 'bits.*float16\+zstd or uint8\+zstd"):
            fedstill.run(method, out=tmp_path / "run", set={"wire.up": codec}, progress=False)
    with pytest.raises(RequestError, match=r"wire\.down = 'bits8': .*the server sends none"):
        fedstill.run("feddm", out=tmp_path / "run", set={"wire.down": "bits8"}, progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("codec", CODECS)
def test_weights_have_no_levels(codec: str) -> None:
    for wire in ({"up": codec}, {"down": codec}):
        built = with_codecs(FedAvg(), **wire)
        if codec in OF_IMAGES:
            with pytest.raises(RequestError, match=rf"wire\.{next(iter(wire))} = "):
                refuse_codecs_of_images(built)
        else:
            refuse_codecs_of_images(built)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_the_codec_that_it_gets_by_default(name: str) -> None:
    refuse_codecs_of_images(build({"method": name, "clients": 4}))


@pytest.mark.parametrize("codec", OF_IMAGES)
def test_sets_have_levels(codec: str) -> None:
    refuse_codecs_of_images(with_codecs(FedDM(), up=codec))


def test_sets_of_other_inputs_are_sets() -> None:
    """Vectors of a fixed map have no levels; the default codec of sets is of few bits."""
    built = build({"method": "feddm", "clients": 4, "model": "linear", "features": "orientation"})
    assert not any(spec.levels for spec in built.method.upload(built.task).tensors.values())
    refuse_codecs_of_images(built)


@dataclass(frozen=True)
class WithImages(FedAvg):
    """A user's method that sends images beside its weights, and is no method of sets."""

    def upload(self, task: Task) -> Schema[Update]:
        schema = super().upload(task)
        return replace(schema, tensors={**schema.tensors, **set_specs(task, 1, "synthetic")})

    def download(self, task: Task) -> Schema[Weights]:
        schema = super().download(task)
        return replace(schema, tensors={**schema.tensors, **set_specs(task, 1, "synthetic")})


def test_what_counts_is_what_a_method_declares() -> None:
    refuse_codecs_of_images(with_codecs(WithImages(), up="bits4+context", down="bits2"))
