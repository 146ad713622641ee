"""What Python gets from a run: predictions, a module, sets, numbers, plots, progress."""

import dataclasses
import inspect
import os
import pydoc
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstill
from fedstill.cli.audit import audit_command
from fedstill.cli.compare import compare_command
from fedstill.cli.evaluate import evaluate_command
from fedstill.cli.run import run_command
from fedstill.cli.tune import tune_command
from fedstill.data import DataSettings, load
from fedstill.draw.figures import Figure, Plot, Series, whole
from fedstill.errors import RequestError
from fedstill.result import Inputs

DIGITS = load(DataSettings("digits"))
FAST = {"method.iterations": 2, "method.server_epochs": 5}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fedstill.Result:
    out = tmp_path_factory.mktemp("runs") / "feddm"
    return fedstill.run("feddm", rounds=2, clients=3, out=out, set=FAST, progress=False)


def test_predictions_are_those_of_the_evaluation(result: fedstill.Result) -> None:
    images, labels = DIGITS.test.inputs, DIGITS.test.labels.numpy()
    classes = result.predict(images)
    assert float((classes == labels).mean()) == result.summary.accuracy
    assert [result.class_names[c] for c in classes[:3]] == [str(c) for c in classes[:3]]
    probabilities = result.predict_proba(images[:5])
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (probabilities.argmax(1) == classes[:5]).all()


def test_a_fixed_feature_map_is_applied_to_new_records_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"features": "orientation", "rounds": 1, "clients": 2}
    result = fedstill.run("fedavg", out=tmp_path / "run", progress=False, **options)
    right = result.predict(DIGITS.test.inputs) == DIGITS.test.labels.numpy()
    assert float(right.mean()) == pytest.approx(result.summary.accuracy)


def test_records_may_come_in_any_usual_form(result: fedstill.Result) -> None:
    images = DIGITS.test.inputs[:4]  # [N, 1, 8, 8], bytes
    expected = result.predict(images)
    for form in (
        images.numpy(),
        images[:, 0],
        images.movedim(1, 3).numpy(),
        images.float() / 255,
        images.numpy().astype(np.int64),
        images.numpy().tolist(),
    ):
        assert (result.predict(form) == expected).all()
    assert result.predict(images[0]) == result.predict(images[0, 0]) == expected[:1]
    with pytest.raises(RequestError, match=r"x has shape \(4, 1, 9, 9\), .* shape \(1, 8, 8\)"):
        result.predict(np.zeros((4, 1, 9, 9), dtype=np.uint8))
    with pytest.raises(RequestError, match=r"float32; the run's records are bytes 0\.\.255"):
        result.predict(images.float())


def test_floats_are_not_taken_for_bytes() -> None:
    inputs = Inputs((3,), torch.float32, DIGITS.scaling, ())
    with pytest.raises(
        RequestError, match=r"x holds torch\.uint8; the run's records are .*float32"
    ):
        inputs(np.zeros((2, 3), dtype=np.uint8))


def test_the_module_is_the_network(result: fedstill.Result) -> None:
    module, x = result.module(), result.inputs(DIGITS.test.inputs[:6])
    assert torch.equal(module(x), result.model.apply(result.params, x))
    assert module.state_dict().keys() == result.params.keys()
    assert all(torch.equal(v, result.params[k]) for k, v in module.state_dict().items())
    torch.optim.SGD(module.parameters(), lr=0.1)  # they are its parameters
    with torch.no_grad():
        next(module.parameters()).zero_()
    assert not torch.equal(module(x), result.model.apply(result.params, x))  # and a copy


def test_a_user_supplied_module_comes_back_trained(tmp_path: Path) -> None:
    given = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Dropout(0.5), nn.Linear(20, 10))
    for parameter in given[1].parameters():
        parameter.requires_grad_(False)
    ran = fedstill.run("fedavg", model=given, rounds=1, clients=2, out=tmp_path / "a")
    module = ran.module()
    assert type(module) is type(given)
    assert not module.training
    before, after = given.state_dict(), module.state_dict()
    assert torch.equal(after["1.weight"], before["1.weight"])  # a constant
    assert torch.equal(after["3.weight"], ran.params["3.weight"])
    assert not torch.equal(after["3.weight"], before["3.weight"])


def test_sets_by_round(result: fedstill.Result) -> None:
    assert result.synthetic().metadata.round == 2
    assert result.synthetic(1).metadata.round == 1
    with pytest.raises(RequestError, match="no set of round 7; there are those of rounds 1, 2"):
        result.synthetic(7)


def test_pictures_of_sets_are_for_notebooks(result: fedstill.Result) -> None:
    overview, sheet = result.picture(), result.picture(1, client=0)
    assert overview.size != sheet.size
    assert overview.getextrema() != ((255, 255),) * 3  # something is drawn
    with pytest.raises(RequestError, match="client 9: sent no set in round 1"):
        result.picture(1, client=9)
    with pytest.raises(RequestError, match="no set of round 7"):
        result.picture(7)


def test_what_is_printed_is_short(result: fedstill.Result) -> None:
    """A notebook prints whatever a cell ends with: tensors would fill the screen."""
    stored = result.synthetic()
    assert repr(stored).count("\n") == 0
    assert f"round {stored.metadata.round}: {len(stored)} of shape 1x8x8" in repr(stored)
    found = fedstill.evaluate(result, networks=2, epochs=1, progress=False)
    lines = repr(found).splitlines()
    assert lines[1].split() == ["of", "network", "weights", "accuracy", "loss", "calibration"]
    assert [line.split()[0] for line in lines[2:]] == ["model", "set"]
    assert f"{found.summary['model']['accuracy']:.2%}" in lines[2]
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3
    evil = dataclasses.replace(found, data="<b>x</b>", note="<i>")
    assert "<b>" not in evil._repr_html_()
    assert "<i>" not in evil._repr_html_()


def test_numbers_as_records_and_as_a_frame(
    result: fedstill.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = result.records()
    assert [r["round"] for r in records] == [1, 2]
    assert records[-1]["accuracy"] == result.metrics[-1].accuracy == result.summary.accuracy
    assert sum(r["up_bytes"] for r in records) == result.summary.up_bytes
    assert "matching_loss" in records[0]  # the method's own
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RequestError, match=r"pip install pandas, or use records\(\)"):
        result.frame()


def test_a_frame_has_a_row_per_round(result: fedstill.Result) -> None:
    pytest.importorskip("pandas")
    frame = result.frame()
    assert list(frame.index) == [1, 2]
    assert frame["accuracy"].iloc[-1] == result.summary.accuracy


def test_plots_and_reports(result: fedstill.Result, tmp_path: Path) -> None:
    for by in ("round", "bytes", "seconds"):
        assert result.plot(by)._repr_svg_().startswith("<svg")
    assert result.plot().save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert result.plot().save(tmp_path / "a.svg").read_text() == result.plot().svg
    with pytest.raises(RequestError, match=r"written as \.svg or \.png"):
        result.plot().save(tmp_path / "a.jpg")
    with pytest.raises(RequestError, match="no axis 'byte'; did you mean 'bytes'"):
        result.plot("byte")
    page = result.report(tmp_path / "page.html")
    assert "<html" in page.read_text()


@pytest.mark.parametrize(
    "accuracies", [(0.955, 0.964, 0.972), (1.0, 1.0, 1.0), (0.1, 0.4, 0.99), (0.5,)]
)
def test_marks_of_axes_differ_and_none_is_impossible(accuracies: tuple[float, ...]) -> None:
    places = [(float(round), value) for round, value in enumerate(accuracies, 1)]
    plot = Plot(Figure("", "round", "accuracy", [Series("", places)], whole))
    texts = re.findall(r">([^<>]+)</text>", plot.svg)
    shares = [text for text in texts if text.endswith("%")]
    rounds = [text for text in texts if re.fullmatch(r"[\d.]+", text)]
    assert len(shares) == len(set(shares)) >= 2
    assert max(float(text[:-1]) for text in shares) <= 100
    assert set(rounds) <= {"1", "2", "3"}


def test_a_notebook_shows_the_run_and_nothing_of_it_is_markup(result: fedstill.Result) -> None:
    shown = result._repr_html_()
    assert "<svg" in shown
    assert f"{result.summary.accuracy:.2%}" in shown
    assert len(repr(result)) < 400
    assert "feddm on digits" in repr(result)
    hostile = type(result.summary)(**{**vars(result.summary), "data": "<script>"})
    again = type(result)(**{**vars(result), "summary": hostile})
    assert "<script>" not in again._repr_html_()


def test_a_result_stands_for_its_folder(result: fedstill.Result, tmp_path: Path) -> None:
    assert os.fspath(result) == str(result.folder)
    assert len(fedstill.load_set(result)) == len(result.synthetic())
    scored = fedstill.evaluate(result, networks=1, epochs=2, progress=False)
    assert scored.model is not None
    assert scored.model.networks[0].accuracy == result.summary.accuracy
    side = fedstill.compare([result, result.folder], out=tmp_path / "c.html")
    assert side.page == tmp_path / "c.html"
    assert len(side.records()) == 1
    assert "feddm" in str(side)
    assert "<table>" in side._repr_html_()


def test_evaluate_takes_the_commands_options(
    result: fedstill.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    fedstill.evaluate(result, models="mlp", networks=1, epochs=1, learning_rate=0.1, batch_size=9)
    assert "mlp: network 1/1, accuracy" in capsys.readouterr().err
    with pytest.raises(RequestError, match="epochs: expected int >= 1"):
        fedstill.evaluate(result, epochs=0)


@pytest.mark.parametrize(
    ("function", "command"),
    [
        (fedstill.run, run_command),
        (fedstill.evaluate, evaluate_command),
        (fedstill.tune, tune_command),
        (fedstill.compare, compare_command),
        (fedstill.audit, audit_command),
    ],
)
def test_python_and_the_command_line_have_the_same_words(function: Any, command: Any) -> None:
    ours = inspect.signature(function).parameters
    missing = [n for n in inspect.signature(command).parameters if n.rstrip("_") not in ours]
    assert set(missing) <= {"json"}  # of the command alone


def test_progress_is_shown_unless_it_is_not_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    class Seen(fedstill.Observer):
        def round_done(self, metrics: Any) -> None:
            seen.append(metrics.round)

    options: dict[str, Any] = {"rounds": 1, "clients": 2, "model": "mlp", "workers": 1}
    fedstill.run("fedavg", out=tmp_path / "a", observer=Seen(), **options)
    assert "round 1/1" in capsys.readouterr().err
    fedstill.run("fedavg", out=tmp_path / "b", observer=Seen(), progress=False, **options)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""
    assert seen == [1, 1]
    with pytest.raises(RequestError, match="--track tensorbord: no such tracker"):
        fedstill.run("fedavg", out=tmp_path / "c", track="tensorbord", **options)


def test_help_lists_the_public_api_and_types_are_visible() -> None:
    text = pydoc.plain(pydoc.render_doc(fedstill))
    lines = (fedstill.__doc__ or "").splitlines()
    for name in set(fedstill.__all__) - {"__version__"}:
        explained = [line for line in lines if line.split()[:1] == [name] and len(line.split()) > 3]
        assert explained, name
        assert explained[0].strip() in text
    assert (Path(fedstill.__file__).parent / "py.typed").exists()
