import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fedstill
from fedstill.cli import app
from fedstill.errors import RequestError
from fedstill.evaluate import Evaluated, evaluation
from fedstill.records import SyntheticSet
from fedstill.runs.sets import load_set, save_sets
from fedstill.steps.training import Training
from fedstill.wire import tree
from tests.evaluate.distilled import distilled_run

FAST = Training(0.1, momentum=0.9, batch_size=16, epochs=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distilled_run(tmp_path_factory.mktemp("evaluate") / "run")


def set_of(run: Path) -> Path:
    return run / "synthetic" / "round-0001.safetensors"


def test_a_run_s_model_has_the_accuracy_that_its_summary_says(run: Path) -> None:
    evaluated = fedstill.evaluate(run / "model.safetensors")
    assert evaluated.set == ()
    assert evaluated.model is not None
    summary = json.loads((run / "summary.json").read_text())
    assert evaluated.model.summary["accuracy"] == pytest.approx(summary["accuracy"])
    assert evaluated.model.summary["loss"] == pytest.approx(summary["loss"], rel=1e-5)
    assert evaluated.model.size == summary["model_size"]


def test_a_set_is_scored_by_newly_initialised_networks_of_several_kinds(run: Path) -> None:
    def scored() -> Evaluated:
        return fedstill.evaluate(
            set_of(run),
            models=["convnet-small", "mlp"],
            networks=2,
            training=FAST,
            set={"convnet-small.width": 4},
        )

    first, again = scored(), scored()
    assert first.summary == again.summary  # same seed, same numbers
    assert first.model is None
    convnet, mlp = first.set
    assert convnet.model["width"] == 4
    assert mlp.model == {"name": "mlp", "width": 200, "depth": 2, "activation": "relu"}
    accuracies = [scores.accuracy for scores in mlp.networks]
    assert mlp.summary["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert mlp.summary["accuracy_std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert mlp.summary["accuracy"] > 0.2  # chance is 0.1
    assert len(mlp.summary["per_class"]) == 10


def test_a_set_is_trained_on_as_servers_do_unless_said_otherwise(run: Path) -> None:
    """600 steps of 32 images; digits of 8x8 pixels are not augmented (measurements.md)."""
    few: dict[str, Any] = {
        "models": ["mlp"],
        "networks": 1,
        "set": {"mlp.width": 4},
        "progress": False,
    }
    default = fedstill.evaluate(set_of(run), **few)
    assert default.training == "600 steps of 32"
    assert "networks trained on it for 600 steps of 32, tested on digits" in repr(default)
    same = fedstill.evaluate(set_of(run), **few, steps=600, augment="none")
    assert same.summary == default.summary
    other = fedstill.evaluate(
        set_of(run), **few, epochs=3, batch_size=256, schedule="constant", balanced=False
    )
    assert other.training == "3 steps of 256"
    assert other.summary["set"] != default.summary["set"]
    warped = fedstill.evaluate(set_of(run), **few, steps=2, augment="affine")
    assert warped.training == "2 steps of 32, augmented by affine"


def test_the_command_shows_model_and_set_of_a_run_and_json_last(run: Path) -> None:
    arguments = ["evaluate", str(run), "--seeds", "2", "--epochs", "2", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["model"]["networks"] == 1
    assert [row["networks"] for row in answer["set"]] == [2]
    assert answer["set"][0]["model"]["width"] == 4  # the run's own network
    assert answer["images"] == len(load_set(run))
    assert "calibration" in done.output
    assert "accuracy by class" in done.output


def test_a_set_of_other_data_is_refused(run: Path, tmp_path: Path) -> None:
    stored = load_set(run)
    sets = {0: SyntheticSet(stored.images, stored.labels)}
    changes: list[tuple[dict[str, Any], SyntheticSet, str]] = [
        ({"mean": (0.5,)}, sets[0], "is scaled with mean"),
        ({"class_names": tuple("abcdefghijk")}, sets[0], "classes 11"),
        ({"shape": (1, 4, 4)}, SyntheticSet(stored.images[:, :, :4, :4], stored.labels), "1x4x4"),
    ]
    for change, synthetic, message in changes:
        metadata = vars(stored.metadata) | change
        save_sets(tmp_path / "set", {0: synthetic}, type(stored.metadata)(**metadata))
        with pytest.raises(RequestError, match=message):
            fedstill.evaluate(tmp_path / "set", data="digits")


def test_wrong_requests_are_explained(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    shutil.copy(set_of(run), alone)
    with pytest.raises(RequestError, match="--data: which data"):
        fedstill.evaluate(alone)
    with pytest.raises(RequestError, match="no model 'mpl'"):
        fedstill.evaluate(run, models=["mpl"], training=FAST)
    with pytest.raises(RequestError, match=r"model\.widht: no such setting"):
        fedstill.evaluate(set_of(run), models=["mlp"], set={"mlp.widht": 4})
    with pytest.raises(RequestError, match="the networks are: mlp"):
        fedstill.evaluate(set_of(run), models=["mlp"], set={"convnet.width": 4})
    with pytest.raises(RequestError, match="--networks"):
        fedstill.evaluate(set_of(run), networks=0)
    with pytest.raises(RequestError, match="neither a model nor a synthetic set"):
        fedstill.evaluate(tmp_path)
    with pytest.raises(RequestError, match="no such file or folder; name a run folder"):
        fedstill.evaluate(tmp_path / "none")


def test_a_wrong_network_is_refused_before_anything_is_scored(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("scored before the refusal")

    monkeypatch.setattr(evaluation, "_score_model", never)
    monkeypatch.setattr(evaluation, "_score_set", never)
    monkeypatch.setattr(evaluation, "load_data", never)
    for models in ("nosuch", "mlp,nosuch", ["mlp", "nosuch"]):
        with pytest.raises(RequestError, match="model: no model 'nosuch'; valid: "):
            fedstill.evaluate(run, models=models)
    with pytest.raises(RequestError, match="no model 'nosuch'"):
        fedstill.evaluate(run / "model.safetensors", models="nosuch")
    with pytest.raises(RequestError, match=r"model\.widht: no such setting"):
        fedstill.evaluate(run, models="mlp", set={"mlp.widht": 4})
    with pytest.raises(RequestError, match="the networks are: mlp"):
        fedstill.evaluate(run, models="mlp", set={"convnet.width": 4})


def test_a_cut_file_or_one_with_no_images_is_refused(run: Path, tmp_path: Path) -> None:
    whole = set_of(run).read_bytes()
    path = tmp_path / "set"
    for size in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(RequestError, match="neither a model nor a set"):
            fedstill.evaluate(path, data="digits")
    tensors, header = tree.unpack(whole)
    path.write_bytes(tree.pack({k: v[:0] for k, v in tensors.items()}, header))
    with pytest.raises(RequestError, match="it holds no images"):
        fedstill.evaluate(path, data="digits")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "mlp", "width": 10**12}, "does not fit"),
        ({"name": "mlp", "depth": 10**12}, "depth 1000000000000"),
        ({"name": "os:system"}, "if you trust it"),
        ({"name": 3}, "does not name its network"),
        ("convnet", "does not name its network"),
        ({"name": "convnet-small", "width": 5}, "does not fit"),
        ({"name": "convnet-small", "widht": 5}, "model.widht"),
    ],
)
def test_a_model_file_that_lies_is_refused(
    change: Any, message: str, run: Path, tmp_path: Path
) -> None:
    """Before memory is spent on what it claims, and without running what it names."""
    tensors, header = tree.unpack((run / "model.safetensors").read_bytes())
    path = tmp_path / "model.safetensors"
    path.write_bytes(tree.pack(tensors, {**header, "model": change}))
    with pytest.raises(RequestError, match=message):
        fedstill.evaluate(path, data="digits")


def test_a_model_with_nan_is_refused(run: Path, tmp_path: Path) -> None:
    tensors, header = tree.unpack((run / "model.safetensors").read_bytes())
    name = next(iter(tensors))
    broken = {**tensors, name: torch.full_like(tensors[name], float("nan"))}
    path = tmp_path / "model.safetensors"
    path.write_bytes(tree.pack(broken, header))
    with pytest.raises(RequestError, match="NaN"):
        fedstill.evaluate(path, data="digits")
