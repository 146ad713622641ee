"""The two scripts about searching on a set, on a problem that takes seconds."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstill.rng import Rng

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


RANK = load("rank_correlation")


def test_spearman_by_hand() -> None:
    # Ranks 0 1 2 3 and 1 0 2 3: 1 - 6 * (1 + 1) / (4 * 15).
    assert RANK.spearman([1, 2, 3, 4], [20, 10, 30, 40]) == pytest.approx(1 - 12 / 60)
    assert RANK.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Equal values share ranks 0.5 0.5 2: the correlation of (0.5, 0.5, 2) and (0, 1, 2).
    assert RANK.spearman([5, 5, 9], [1, 2, 3]) == pytest.approx(3**0.5 / 2)
    assert RANK.spearman([1, 1], [1, 2]) == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 9), min_size=3, max_size=15))
def test_any_rising_function_keeps_the_correlation(values: list[int]) -> None:
    other = list(range(len(values)))
    changed = [v**3 + 2 * v for v in values]
    assert RANK.spearman(values, other) == pytest.approx(RANK.spearman(changed, other))


def test_the_spread_holds_the_value_of_a_clear_order() -> None:
    values = [float(v) for v in range(20)]
    assert RANK.bootstrap(values, values, Rng(0), draws=50) == pytest.approx((1.0, 1.0))
    noise = Rng(1).numpy().permutation(20).tolist()
    low, high = RANK.bootstrap(values, noise, Rng(0), draws=200)
    assert low < RANK.spearman(values, noise) < high


@pytest.mark.slow
def test_rank_correlation_runs_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--rounds", "1", "--federated-rounds", "1", "--networks", "1", "--epochs", "1"]
    arguments += ["--ipc", "2", "--architectures", "3", "--out", str(tmp_path)]
    first = RANK.main(arguments)
    assert set(first) == {"on_set", "held_out"}
    assert all(-1 <= low <= high <= 1 for _, low, high in first.values())
    table = capsys.readouterr().out
    assert "| convnet 16, depth 2 |" in table
    assert RANK.main(arguments) == first


@pytest.mark.slow
def test_distil_search_federate_compares_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--candidates", "3", "--rounds", "1", "--epochs", "1", "--repeats", "1"]
    arguments += ["--set", "method.images_per_class=2", "--out", str(tmp_path)]
    ways = load("distil_search_federate").main(arguments)
    ours, default, full = ways.values()
    assert full.accuracy >= ours.accuracy  # the winner is one of the candidates
    assert min(ours.cost.up_bytes, full.cost.up_bytes, default.cost.up_bytes) > 0
    by_candidates, costs = capsys.readouterr().out.split("\n\n")[1:]
    # Figure 4: both searches end with what the first table says.
    assert f"| {100 * ours.accuracy:.2f} | {100 * full.accuracy:.2f} |" in by_candidates
    assert f"| 3 | {ours.cost.megabytes:.1f} | {full.cost.megabytes:.1f} |" in costs


def test_the_best_so_far_is_that_of_the_search() -> None:
    found = load("distil_search_federate").Found([{}] * 4, [0.5, 0.9, 0.9, 0.7], [9, 8, 7, 1], 0.0)
    assert [found.best_of(number) for number in (1, 2, 3, 4)] == [0, 1, 2, 2]
