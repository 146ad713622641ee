import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import avg_pool2d, interpolate

import fedstill
from fedstill.build import build
from fedstill.errors import RequestError
from fedstill.forecast import notes
from fedstill.methods.feddm import FedDM
from fedstill.methods.real import Real
from fedstill.methods.shared.messages import Weights
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.steps.centres import central_images
from fedstill.steps.classes import ByClass, real_images
from fedstill.steps.scores import losses
from fedstill.testing import bits, toy_run
from tests.methods.test_feddm import digits


def test_real_is_feddm_without_iterations(tmp_path: Path) -> None:
    options: dict[str, Any] = {"images_per_class": 2, "server_epochs": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real = toy_run(Real(**options), tmp_path / "real")
        feddm = toy_run(FedDM(iterations=0, **options), tmp_path / "feddm")
    assert bits(real.state) == bits(feddm.state)
    assert [m.up_bytes for m in real.history] == [m.up_bytes for m in feddm.history]


def test_what_is_sent_are_records(tmp_path: Path) -> None:
    federation = toy_run(Real(images_per_class=2, server_epochs=1), tmp_path / "run", rounds=1)
    stored = load_set(tmp_path / "run" / "synthetic" / "round-0001.safetensors")
    for client in range(3):
        records, labels = federation.built.runner.records.of(client, federation.built.task).all()
        sent = stored.of(client)
        for image, label in zip(sent.images, sent.labels, strict=True):
            assert any(torch.equal(image, x) for x in records[labels == label])


def test_choosing_by_loss_favours_what_the_model_gets_wrong() -> None:
    ctx = digits(*[0] * 30)
    chances = torch.full((30,), 0.01)
    chances[7], chances[8] = 5.0, 0.0
    first = [
        real_images(ctx, ByClass(ctx.records), 1, Rng(seed).torch(), chances)[0, 0]
        for seed in range(200)
    ]
    x, _ = ctx.records.all()
    share = sum(torch.equal(image, x[7]) for image in first) / len(first)
    assert share == pytest.approx(5 / 5.28, abs=0.05)  # in proportion to the chances
    everyone = real_images(ctx, ByClass(ctx.records), 30, Rng(0).torch(), chances)[0]
    assert torch.equal(everyone[-1], x[8])  # the record without a chance comes last
    assert sorted(map(bytes_of, everyone)) == sorted(map(bytes_of, x))  # each of them once


def bytes_of(image: torch.Tensor) -> bytes:
    return bytes(image.numpy().tobytes())


def test_the_losses_are_those_of_the_server_s_weights(tmp_path: Path) -> None:
    ctx = digits(*[0, 1] * 20)
    params = ctx.task.model.init(Rng(1).torch())
    x, y = ctx.records.all()
    logits = ctx.task.model.inference(params, x)[-1]
    by_hand = -logits.log_softmax(1)[range(40), y]
    assert torch.allclose(losses(ctx.task, params, ctx.records), by_hand, atol=1e-5)
    chosen, _ = Real(images_per_class=3, choose="loss").client(ctx, Weights(params), None)
    same = real_images(ctx, ByClass(ctx.records), 3, ctx.rng.at("images").torch(), by_hand)
    assert torch.equal(chosen.synthetic.images, same.flatten(0, 1))


def test_centres_are_those_of_the_records_as_the_server_will_see_them() -> None:
    ctx = digits(*[0] * 12, 1)
    params = ctx.task.model.init(Rng(1).torch())
    method = Real(images_per_class=2, choose="centres", shrink=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sent = method.client(ctx, Weights(params), None)[0].synthetic.images
        chosen = central_images(
            ctx,
            ByClass(ctx.records),
            2,
            ctx.rng.at("images").torch(),
            params,
            lambda x: interpolate(avg_pool2d(x, 2), scale_factor=2, mode="bilinear"),
        )
    assert torch.equal(sent, avg_pool2d(chosen.flatten(0, 1), 2))
    x, _ = ctx.records.all()
    assert torch.equal(chosen[1], x[12:].repeat(2, 1, 1, 1))  # a class of one record


@pytest.mark.parametrize("choice", ["random", "loss", "centres"])
def test_a_class_of_few_records_sends_them_repeatedly(choice: Any) -> None:
    ctx = digits(0, 0, 1)
    params = ctx.task.model.init(Rng(1).torch())
    method = Real(images_per_class=2, choose=choice)
    with pytest.warns(UserWarning, match="fewer records than images_per_class") as caught:
        method.client(ctx, Weights(params), None)
    assert {str(warning.message) for warning in caught} == {
        "some classes have fewer records than images_per_class: some of their records are sent "
        "repeatedly"
    }
    with pytest.warns(UserWarning, match="their synthetic images start from repeated records"):
        FedDM(images_per_class=2, iterations=0).client(ctx, Weights(params), None)


def test_a_run_says_whom_the_loss_favours() -> None:
    def said(**settings: str) -> list[str]:
        built = build({"method": {"name": "real", **settings}, "clients": 2})
        again = list(notes(built, first=False))
        assert not any("mislabelled" in note for note in again)  # a resumed run
        return [note for note in notes(built, first=True) if "mislabelled" in note]

    (note,) = said(choose="loss")
    assert note == "choosing by loss favours mislabelled and atypical records: they are sent first"
    assert said() == said(choose="centres") == []


def test_neither_choice_is_private(tmp_path: Path) -> None:
    for choice in ("random", "loss", "centres"):
        with pytest.raises(RequestError, match="real has no private form"):
            fedstill.run("real", epsilon=3.0, out=tmp_path / choice, set={"method.choose": choice})
