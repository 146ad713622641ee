import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstill.config import resolve_model
from fedstill.config.nested import as_table
from fedstill.config.registry import build_model
from fedstill.errors import RequestError
from fedstill.tune.space import (
    Choice,
    Interval,
    Space,
    check,
    default_space,
    narrowed,
    open_settings,
    suggest,
    with_changes,
)
from fedstill.tune.training import DEFAULT_TRAINING

MODEL = {"name": "mlp", "width": 32, "depth": 1, "activation": "relu"}


class Drawn:
    """Draws from hypothesis instead of Optuna, and remembers what was asked."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.names: list[str] = []

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.names.append(name)
        return self.data.draw(st.sampled_from(choices))

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        self.names.append(name)
        return self.data.draw(st.integers(low, high))

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        self.names.append(name)
        return self.data.draw(st.floats(low, high))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_candidate_can_be_built_and_asks_only_for_its_own_settings(
    data: st.DataObject,
) -> None:
    shape = data.draw(st.sampled_from([(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 5, 9), (7,)]))
    search = data.draw(st.sampled_from(["hyper", "architecture", "both"]))
    space = narrowed(default_space(shape), search, MODEL)
    drawn = Drawn(data)
    candidate = suggest(drawn, space)
    model = build_model(resolve_model(candidate.model), shape, 10)
    assert model.size > 0
    kinds = {name.partition(".")[0] for name in drawn.names}
    assert kinds <= {"training", "model", candidate.model["name"]}
    assert set(drawn.names) <= set(open_settings(space))
    if search == "hyper":
        assert candidate.model == MODEL
    if search == "architecture":
        assert candidate.training == DEFAULT_TRAINING


def test_the_documents_show_the_space() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    shown = tomllib.loads(text.partition("```toml\n")[2].partition("```")[0])
    space = default_space((1, 28, 28))
    assert with_changes(space, shown) == space
    assert {f"{group}.{key}" for group, keys in shown.items() for key in keys} == set(space)


def test_a_file_changes_the_space() -> None:
    changes = {
        "training": {
            "learning_rate": {"low": 0.1, "high": 0.2},
            "batch_size": [8, 16],
            "epochs": 3,
        },
        "model": {"name": "convnet"},
        "convnet": {"depth": {"low": 1, "high": 2, "log": True}},
    }
    space = with_changes(default_space((1, 8, 8)), changes)
    assert space["training.learning_rate"] == Interval(0.1, 0.2)
    assert space["training.batch_size"] == Choice((8, 16))
    assert space["training.epochs"] == Choice((3,))
    assert space["convnet.depth"] == Interval(1, 2, log=True)
    names = open_settings(space)
    assert "training.epochs" not in names
    assert not any(name.startswith("mlp.") for name in names)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"learning_rat": 1}}, r"training\.learning_rat: no such setting; did you"),
        ({"training": 3}, "expected a table"),
        ({"nonsense": {"width": 3}}, "no such setting"),
        ({"convnet": {"height": 3}}, r"convnet\.height: no such setting"),
        ({"mlp": {"depth": {"low": 3, "high": 1}}}, "not an interval"),
        ({"mlp": {"depth": {"low": 0, "high": 1, "log": True}}}, "logarithmic"),
        ({"mlp": {"depth": {"from": 0}}}, "from: no such setting"),
        ({"mlp": {"depth": []}}, "at least one"),
        ({"mlp": {"depth": [1, 1]}}, "different values"),
    ],
)
def test_a_wrong_space_is_explained(changes: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        with_changes(default_space((1, 8, 8)), changes)


def test_a_wrong_training_setting_is_named() -> None:
    space: Space = with_changes(
        narrowed(default_space((1, 8, 8)), "architecture", MODEL), {"training": {"momentum": 2.0}}
    )
    with pytest.raises(RequestError, match=r"training\.momentum"):
        suggest(Drawn(None), space)  # type: ignore[arg-type]
    assert as_table(DEFAULT_TRAINING)["momentum"] == 0.9


def test_a_training_without_an_epoch_is_refused_before_anything_starts() -> None:
    space = with_changes(default_space((1, 8, 8)), {"training": {"epochs": [0, 20]}})
    with pytest.raises(RequestError, match=r"training\.epochs: expected int >= 1"):
        check(space, (1, 8, 8), 10)
