"""``fedstill.evaluate``: scores of a model, or of a synthetic set, on the test data.

A model is scored as it is. A set is scored by networks that are trained on it and on nothing
else: several architectures, several random initialisations of each, mean and spread.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from fedstill.build import network_task
from fedstill.config.early import model_names, refuse_model
from fedstill.config.nested import Table, convert, nested
from fedstill.data import Dataset, Records, kind_of
from fedstill.draw.numbers import counted, in_percent
from fedstill.engine.threads import threads
from fedstill.errors import RequestError
from fedstill.evaluate.evaluated import Evaluated, NetworkScores
from fedstill.files import read_safetensors
from fedstill.models import DEFAULT_MODEL, MODELS, Model
from fedstill.observe.progress import ProgressConsole
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.runs.find import load_data, refuse_other_data, run_of
from fedstill.runs.folder import RunFolder
from fedstill.runs.place import model_and_set, unopened
from fedstill.runs.sets import StoredSet, load_set
from fedstill.steps.from_scratch import train_from_scratch
from fedstill.steps.scores import Scores, score
from fedstill.steps.training import Training
from fedstill.steps.warp import chosen_augment
from fedstill.types import Params, Task
from fedstill.wire import TensorSpec

# As servers train (docs/measurements.md, "The server's training"), from scratch.
TRAINING = Training(
    learning_rate=0.02,
    momentum=0.9,
    batch_size=32,
    schedule="cosine",
    augment="auto",
    balanced=True,
)
_STEPS, _EPOCHS_ON_ROWS = 600, 100  # where neither --steps nor --epochs is given

Progress = Callable[[str, int, int, Scores], None]  # network, number, numbers, its scores


def evaluate(
    source: str | os.PathLike[str],
    *,
    models: str | Sequence[str] | None = None,
    networks: int = 3,
    epochs: int | None = None,
    steps: int | None = None,
    learning_rate: float = TRAINING.learning_rate,
    momentum: float = TRAINING.momentum,
    batch_size: int = TRAINING.batch_size,
    schedule: str = TRAINING.schedule,
    augment: str = TRAINING.augment,
    balanced: bool = TRAINING.balanced,
    training: Training | None = None,
    data: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    seed: int = 0,
    set: Mapping[str, Any] | None = None,
    progress: bool | Progress = True,
) -> Evaluated:
    """Score a set file, a model file, or both of a run folder (or ``Result``), on the test split.

    ``models`` are the architectures to train on a set (default: the run's), each ``networks``
    times; ``set`` gives their settings, e.g. ``{"resnet18.width": 8}``. The options of their
    training are those of ``fedstill evaluate`` (with neither ``steps`` nor ``epochs``: 600 steps on
    images, 100 epochs on rows of numbers); ``training`` replaces them all but ``steps``. The data
    are the run's, or those that ``data`` names. ``progress`` shows a line per network, or is
    called.

    >>> fedstill.evaluate("runs/feddm-digits-001", models=["convnet-small", "mlp"]).summary
    """
    if networks < 1:
        raise RequestError(f"--networks: at least 1 (it is {networks})")
    path, report = Path(source), progress if callable(progress) else _report(progress)
    models = model_names(models)
    options = {
        "learning_rate": learning_rate,
        "momentum": momentum,
        "batch_size": batch_size,
        "epochs": 1 if epochs is None else epochs,
        "schedule": schedule,
        "augment": augment,
        "balanced": balanced,
    }
    how = training or convert(options, Training, "")
    if steps is not None and steps < 1:
        raise RequestError(f"--steps: at least 1 (it is {steps})")
    open_length = training is None and epochs is None and steps is None
    run = run_of(path)
    has_model, has_set = _contents(path)
    tables = _checked(model_tables(models, nested(set or {}), run)) if has_set else []
    dataset = load_data(run, data, None if data_dir is None else os.fspath(data_dir))
    of_model: NetworkScores | None = None
    of_set: list[NetworkScores] = []
    images, round_, trained_for = 0, None, None
    with threads(1):  # their number affects the last bits
        if has_model:
            file = path / "model.safetensors" if path.is_dir() else path
            of_model = _score_model(file, dataset, device, models or ())
            report("the stored model", 1, 1, of_model.networks[0])
        if has_set:
            stored = load_set(path)
            refuse_other_data(path, stored, dataset)
            images, round_ = len(stored), stored.metadata.round
            for table in tables:
                trained = SetTraining(how, networks, device, seed, report, steps, open_length)
                scores, trained_for = _score_set(table, stored, dataset, trained)
                of_set.append(scores)
    note = _unfinished(path, run, has_model)
    names, scored = dataset.class_names, tuple(of_set)
    return Evaluated(
        str(path), dataset.name, names, of_model, images, scored, round_, note, trained_for
    )


def _unfinished(path: Path, run: RunFolder | None, has_model: bool) -> str | None:
    """That a run did not come to its end, and what is tested of it."""
    if run is None or not path.is_dir() or not (path / "summary.json").exists():
        return None
    summary, rounds = run.read_summary(), run.read_config().get("rounds")
    if summary.status in ("done", "budget spent"):
        return None
    tested = "its last model is" if has_model else "it has no model yet, and its set alone is"
    return (
        f"the run is {summary.status} after {summary.rounds_done} of {rounds} rounds: {tested} "
        f"tested; complete it by: fedstill run --resume --out {shlex.quote(str(path))}"
    )


@dataclass(frozen=True)
class SetTraining:
    """How networks are trained on a set, and the callback for each result."""

    training: Training
    networks: int
    device: str
    seed: int
    report: Progress
    steps: int | None = None  # instead of epochs
    open_length: bool = False  # neither steps nor epochs were given

    def steps_on(self, task: Task, images: int) -> int | None:
        """Steps per network; ``None``: those of the training's epochs."""
        if not self.open_length:
            return self.steps
        if len(task.shape) == 3:
            return _STEPS
        return replace(self.training, epochs=_EPOCHS_ON_ROWS).steps(images)

    def described(self, task: Task, images: int) -> str:
        """For example "600 steps of 32, augmented by affine+elastic"."""
        steps = self.steps_on(task, images) or self.training.steps(images)
        augment = chosen_augment(self.training.augment, task)
        changed = "" if augment == "none" else f", augmented by {augment}"
        return f"{counted(steps, 'step')} of {self.training.batch_size}{changed}"


def _report(shown: bool) -> Progress:
    """Prints a line for each network, or nothing."""
    console = ProgressConsole(stderr=True, quiet=not shown)

    def report(network: str, number: int, numbers: int, scores: Scores) -> None:
        line = f"{network}: network {number}/{numbers}, accuracy {in_percent(scores.accuracy)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return report


def model_tables(
    names: Sequence[str] | None, settings: Mapping[str, Any], run: RunFolder | None
) -> list[Table]:
    """The ``[model]`` tables of the requested architectures.

    Without names: the run's network, or the default one. The run's user-supplied network has its
    settings also where it is named, which is how a user trusts it.
    """
    default: Table = {"name": DEFAULT_MODEL}
    if run is not None:
        table = run.read_config().get("model", default)
        default = {"name": table} if isinstance(table, str) else table
    own = default if default["name"] not in MODELS else {}  # a user-supplied network's settings
    tables = [default]
    if names:
        tables = [own if own.get("name") == name else {"name": name} for name in names]
    for name, changes in settings.items():
        if name not in {table["name"] for table in tables} or not isinstance(changes, Mapping):
            listed = ", ".join(table["name"] for table in tables)
            raise RequestError(
                f"--set {name}: write it as NETWORK.SETTING=VALUE; the networks are: {listed}"
            )
    return [{**table, **settings.get(table["name"], {})} for table in tables]


def _checked(tables: list[Table]) -> list[Table]:
    """These tables: a wrong setting is refused before the first of them is trained."""
    for table in tables:
        if table["name"] in MODELS:
            refuse_model(table)
    return tables


def _contents(path: Path) -> tuple[bool, bool]:
    """Whether there is a model, and whether there is a set."""
    if path.is_dir():
        return model_and_set(path)
    _, header = _read(path)
    return "model" in header, "model" not in header


def _read(path: Path) -> tuple[Params, Table]:
    """Tensors (mapped: a file cannot ask for more memory than it has bytes) and header."""
    try:
        tensors, header = read_safetensors(path)
    except OSError as error:
        raise unopened(path, error) from error
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RequestError(
            f"{path}: neither a model nor a set written by fedstill: {error}"
        ) from error
    if not isinstance(header, dict):
        raise RequestError(f"{path}: neither a model nor a set written by fedstill: no description")
    return tensors, header


def _score_model(file: Path, data: Dataset, device: str, trusted: Sequence[str]) -> NetworkScores:
    params, header = _read(file)
    table = header.get("model")
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise RequestError(f"{file}: not a model written by fedstill: it does not name its network")
    # A file must not decide which code is imported: the user names a user-supplied network.
    if table["name"] not in MODELS and table["name"] not in trusted:
        raise RequestError(
            f"{file}: its network '{table['name']}' is not built in; "
            f"if you trust it: --models {table['name']}"
        )
    if not isinstance(depth := table.get("depth", 0), int) or depth > len(params):
        raise RequestError(f"{file}: not a model written by fedstill: depth {depth}")
    task, table = _task(table, data, device)
    complaint = _complaint(params, task.model, user_supplied=table["name"] not in MODELS)
    if complaint:
        raise RequestError(
            f"{file}: does not fit '{table['name']}' for {data.classes} classes of '{data.name}' "
            f"({'x'.join(map(str, data.shape))}): {complaint}; was it trained on other data?"
        )
    weights = {name: params[name].to(task.device) for name in task.model.shapes}
    return NetworkScores(table, task.model.size, (score(task, weights, _test(data, task)),))


def _complaint(params: Params, model: Model, user_supplied: bool) -> str | None:
    """What is wrong with the tensors, found before memory is spent on what a file claims."""
    if user_supplied:
        shapes = model.shapes
    else:
        try:
            with torch.device("meta"):
                shapes = {k: tuple(v.shape) for k, v in model.init(torch.Generator("cpu")).items()}
        except RuntimeError as error:  # a tensor larger than any memory
            return str(error).partition("\n")[0]
    if odd := sorted(shapes.keys() ^ params.keys()):
        return f"'{odd[0]}' is {'missing' if odd[0] in shapes else 'not a weight of it'}"
    found = ((name, TensorSpec(shape).complaint(params[name])) for name, shape in shapes.items())
    return next((f"'{name}' {complaint}" for name, complaint in found if complaint), None)


def _score_set(
    table: Table, stored: StoredSet, data: Dataset, how: SetTraining
) -> tuple[NetworkScores, str]:
    """The scores of its networks, and how they were trained."""
    task, table = _task(table, data, how.device)
    synthetic = SyntheticSet(stored.images.to(task.device), stored.labels.to(task.device))
    test = _test(data, task)
    scored: list[Scores] = []
    steps = how.steps_on(task, len(synthetic))
    for number in range(how.networks):
        rng = Rng(how.seed).at("evaluate", number)
        params = train_from_scratch(task, synthetic, rng, how.training, steps)
        scored.append(score(task, params, test))
        how.report(table["name"], number + 1, how.networks, scored[-1])
    return NetworkScores(table, task.model.size, tuple(scored)), how.described(task, len(synthetic))


def _task(table: Table, data: Dataset, device: str) -> tuple[Task, Table]:
    kind = kind_of(data.name, data.shape)
    return network_task(table, data.shape, data.classes, data.scaling, device, kind)


def _test(data: Dataset, task: Task) -> Records:
    return Records(data.test, torch.arange(len(data.test)), data.scaling, task.device)
