"""Every recipe names settings that exist, and says what the paper says."""

from typing import Any

import pytest

from fedstill.config import resolve
from fedstill.config.registry import build_model
from fedstill.errors import RequestError
from fedstill.methods import METHODS
from fedstill.reproduce.recipe import ScaleName, load_recipe, parse_recipe, recipe_names
from fedstill.wire import pixel_bits


@pytest.mark.parametrize("name", recipe_names())
def test_every_cell_is_an_experiment(name: str) -> None:
    recipe = load_recipe(name)
    for scale in recipe.scales:
        cells = recipe.cells(scale)
        assert cells
        assert len({cell.folder for cell in cells}) == len(cells)
        for cell in cells:
            experiment = resolve(cell.request)
            build_model(experiment.model, (3, 32, 32), 10)
            if scale == "smoke":
                assert experiment.data.name == "digits"
                assert experiment.rounds == 1


@pytest.mark.parametrize("name", recipe_names())
def test_cells_that_a_scale_leaves_out_are_experiments_too(name: str) -> None:
    """``--row`` and ``--column`` run them. Weights are not sent in a codec of images."""
    recipe = load_recipe(name)
    for scale in recipe.scales:
        for cell in recipe._with(scale, None, None).cells(scale):
            experiment = resolve(cell.request)
            if pixel_bits(experiment.wire.up) is not None:
                method = METHODS[experiment.method["name"]]
                assert method.sends_sets, (scale, cell.name)
            assert pixel_bits(experiment.wire.down) is None


def test_a_scale_that_the_recipe_lacks_is_refused() -> None:
    table = {"title": "t", "source": "s", "rows": {"A": {"method": "fedavg"}}, "columns": {"B": {}}}
    recipe = parse_recipe("r", {**table, "only_published": False})
    assert recipe.scales == ["smoke", "cpu", "paper"]
    with pytest.raises(RequestError, match=r"--scale cpu-long: r has smoke, cpu, paper only"):
        recipe.cells("cpu-long")
    longer = parse_recipe(
        "r", {**table, "only_published": False, "scales": {"cpu_long": {"settings": {"rounds": 7}}}}
    )
    (cell,) = longer.part("cpu-long", ["A"], []).cells("cpu-long")
    assert cell.request["rounds"] == 7


def test_a_scale_may_change_single_rows_and_columns() -> None:
    by_column = {"B": {"rounds": 9, "methods": {"fedavg": {"momentum": 0.5}}}}
    by_row = {"A": {"rounds": 8, "method": {"learning_rate": 0.3}}}
    table: dict[str, Any] = {
        "title": "t",
        "source": "s",
        "rows": {"A": {"method": "fedavg"}},
        "columns": {"B": {"rounds": 3}, "C": {"rounds": 4}},
        "only_published": False,
        "scales": {"cpu": {"settings": {"rounds": 7}, "by_row": by_row, "by_column": by_column}},
    }
    first, second = (resolve(cell.request) for cell in parse_recipe("r", table).cells("cpu"))
    assert (first.rounds, second.rounds) == (9, 8)
    assert first.method["learning_rate"] == second.method["learning_rate"] == 0.3
    assert (first.method["momentum"], second.method["momentum"]) == (0.5, 0.0)
    table["scales"]["cpu"]["by_cell"] = {"A": {"B": {"rounds": 10}}}
    first, second = (resolve(cell.request) for cell in parse_recipe("r", table).cells("cpu"))
    assert (first.rounds, second.rounds) == (10, 8)
    for scale, message in (
        ({"by_column": {"D": {}}}, r"by_column: 'D' is not in the table"),
        ({"by_cell": {"D": {}}}, r"by_cell: 'D' is not in the table"),
        ({"by_cell": {"A": {"D": {}}}}, r"by_cell\.A: 'D' is not in the table"),
    ):
        table["scales"]["cpu"] = scale
        with pytest.raises(RequestError, match=r"scales\.cpu\." + message):
            parse_recipe("r", table)


def test_the_recipes_of_the_issue_are_there() -> None:
    wanted = {
        "feddm": "figure2 figure3 figure8 figure9 table1 table2 table4 ipc real noise",
        "feddualmatch": "table1 table2 ablation ipc noise figure4 figure6",
        "fedgloss": "table1 table2 table3 table4 ipc criteria",
        "distdd": "table1 mislabelling noniid nodes rounds participation noise",
        "fedsynth": "table",
    }
    names = {f"{paper}-{part}" for paper, parts in wanted.items() for part in parts.split()}
    assert names <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_no_scale_makes_two_cells_the_same_experiment(name: str) -> None:
    """A scale's settings are above those of rows and columns: they must not set what these differ
    in, unless ``by_row`` or ``by_column`` sets it again."""
    recipe = load_recipe(name)
    for scale in recipe.scales:
        requests = [cell.request for cell in recipe.cells(scale)]
        if scale != "smoke":
            assert all(requests.count(request) == 1 for request in requests)


@pytest.mark.parametrize(
    ("name", "scale", "rows", "columns"),
    [
        ("distdd-rounds", "cpu", [], ["500 rounds"]),
        ("fedgloss-table2", "cpu", ["Fed-GLOSS-DP"], ["MNIST, 10.18"]),
        ("fedgloss-ipc", "cpu", ["100 images"], []),
    ],
)
def test_a_cell_that_a_scale_overrides_is_refused(
    name: str, scale: ScaleName, rows: list[str], columns: list[str]
) -> None:
    """500 rounds that are 100 at scale cpu must not stand beside what the paper has for 500."""
    with pytest.raises(RequestError, match=r"the same experiment as .*; choose another scale"):
        load_recipe(name).part(scale, rows, columns)
    load_recipe(name).part("paper", rows, columns)


def test_a_cell_that_equals_another_without_the_scale_is_not_the_scales_fault() -> None:
    """Fed-GLOSS's table 4 inherits table 2's DP-FedAvg, which is its own with the high rate."""
    part = load_recipe("fedgloss-table4").part("paper", ["DP-FedAvg"], ["MNIST, 2.79"])
    assert [cell.published for cell in part.cells("paper")] == [45.25]


def test_columns_that_a_scale_leaves_out_keep_their_settings() -> None:
    (cell,) = (
        load_recipe("feddualmatch-table1")
        .part("cpu-long", ["FedAvg"], ["MNIST, 0.05"])
        .cells("cpu-long")
    )
    assert (cell.request["partition"], cell.published) == ("dirichlet:0.05:balanced", 97.93)


def test_scaffold_is_weighted_by_records_where_clients_differ_in_size() -> None:
    """With equal weights it collapses at NIID-Bench's partitions (docs/methods.md)."""
    for name in ("feddm-table1", "feddm-figure2", "feddualmatch-table1", "feddualmatch-figure4"):
        for scale in load_recipe(name).scales:
            for cell in load_recipe(name).cells(scale):
                experiment = resolve(cell.request)
                if experiment.method["name"] == "scaffold":
                    assert experiment.method["weighting"] == "records", (name, scale)
                    assert experiment.method["control_weighting"] == "records", (name, scale)
                assert experiment.partition.startswith("dirichlet:")
                assert experiment.partition.endswith(":balanced")


def test_feddualmatch_at_scale_paper_is_as_printed() -> None:
    cells = load_recipe("feddualmatch-table1").cells("paper")
    of = {c.row: resolve(c.request).method for c in cells if c.column == "MNIST, 0.01"}
    ours, dynafed = of["FedDualMatch"], of["DynaFed"]
    assert (ours["squared"], ours["pixel_learning_rate"], ours["pixel_momentum"]) == (
        True,
        1.0,
        0.0,
    )
    assert (ours["server_learning_rate"], ours["server_momentum"]) == (0.001, 0.9)
    assert (ours["server_iterations"], ours["radius_step"]) == (
        500,
        0.5,
    )  # the rate times the steps
    assert (dynafed["matching_iterations"], dynafed["images_per_class"]) == (3000, 15)
    assert (dynafed["averaged_targets"], dynafed["initial_labels"]) == (True, "uniform")
    assert (dynafed["tuning_optimiser"], dynafed["tuning_learning_rate"]) == ("adam", 0.0001)


def test_feddualmatch_with_noise_has_the_papers_radius_step_too() -> None:
    """Not the default of private runs."""
    for cell in load_recipe("feddualmatch-noise").cells("paper"):
        assert resolve(cell.request).method["radius_step"] == 0.5


def test_feddm_noise_at_scale_paper_is_algorithm_2() -> None:
    """A noisy pixel gradient per step, 1,000 steps, from new noise in every round."""
    cells = load_recipe("feddm-noise").cells("paper")
    of = {c.column: resolve(c.request) for c in cells if c.row == "FedDM"}
    assert [p and p.sigma for p in (e.privacy for e in of.values())] == [None, 1, 2, 3, 5]
    method = of["sigma 1"].method
    assert (method["target"], method["iterations"], method["release_steps"]) == (
        "gradient",
        1000,
        1,
    )
    assert (method["initial"], method["warm_start"]) == ("noise", False)
    assert (method["pixel_optimiser"], method["pixel_learning_rate"]) == ("sgd", 1.0)


def test_distdd_at_scale_paper_is_as_printed() -> None:
    """The sum of eq. 3, the squared distance of eq. 27; the median where the paper has it."""
    for name in (name for name in recipe_names() if name.startswith("distdd")):
        for cell in load_recipe(name).cells("paper"):
            if cell.request["method"]["name"] == "distdd":
                method = resolve(cell.request).method
                rule = "median" if "median" in cell.row else "sum"
                assert (method["aggregate"], method["distance"]) == (rule, "mse")


def test_distdd_noise_has_a_column_without() -> None:
    cells = load_recipe("distdd-noise").cells("paper")
    sigmas = [(resolve(cell.request).privacy or None) for cell in cells]
    assert [s and s.sigma for s in sigmas] == [None, 0.01, 0.1, 1.0, 10.0, 100.0]


def test_distdd_has_mislabelled_clients_beside_mislabelled_samples() -> None:
    cells = load_recipe("distdd-mislabelling").cells("paper")
    of = {cell.column: resolve(cell.request) for cell in cells if cell.row == "DistDD"}
    assert of["40% of samples"].corrupt.clients == "all"
    wrong = of["40% of clients"]
    assert wrong.corrupt.share == 1.0
    assert len(wrong.corrupt.clients) / (wrong.clients or 1) == 0.4


def test_published_numbers_stand_where_the_papers_have_them() -> None:
    def published(name: str, row: str, column: str) -> tuple[float | None, float | None]:
        cells = load_recipe(name).cells("paper")
        cell = next(c for c in cells if (c.row, c.column) == (row, column))
        return cell.published, cell.spread

    assert published("feddm-table1", "FedDM", "MNIST, 0.01") == (98.21, 0.23)
    assert published("feddm-table2", "Baseline", "CIFAR-100") == (5044200, None)
    assert published("feddualmatch-table1", "FedDualMatch", "MNIST, 0.01") == (97.03, 0.04)
    assert published("fedgloss-table1", "Fed-GLOSS", "Fashion-MNIST") == (87.37, 0.09)
    assert published("distdd-table1", "DistDD, 100 images", "CIFAR-10, 0.1") == (57.3, None)
    assert published("fedsynth-table", "FedSynth", "MNIST, 7.8x") == (95.28, None)


def test_feddm_at_paper_scale_is_as_printed() -> None:
    cells = load_recipe("feddm-table1").cells("paper")
    feddm = {c.column: resolve(c.request) for c in cells if c.row == "FedDM"}
    mnist, cifar100 = feddm["MNIST, 0.1"], feddm["CIFAR-100, 0.1"]
    assert mnist.method["iterations"] == 1000
    assert mnist.method["images_per_class"] == 10
    assert cifar100.method["images_per_class"] == 5
    assert (mnist.rounds, mnist.clients, mnist.model["name"]) == (20, 10, "convnet")


def test_fed_gloss_at_paper_scale_is_as_printed() -> None:
    def method(name: str, row: str, column: str) -> Any:
        cells = load_recipe(name).cells("paper")
        return resolve(next(c.request for c in cells if (c.row, c.column) == (row, column)))

    plain = method("fedgloss-table1", "Fed-GLOSS", "MNIST")
    assert (plain.rounds, plain.method["server_learning_rate"]) == (60, 0.01)
    assert (plain.method["radius_epochs"], plain.method["radius_records"]) == (100, "all")
    assert (plain.method["server_augment"], plain.method["most_iterations"]) == ("dsa", 100)
    assert method("fedgloss-table1", "FedAvg", "MNIST").method["decay"] == "cosine"
    assert method("fedgloss-table1", "FedSGD", "MNIST").method["batch_size"] == 256
    condensed = method("fedgloss-table1", "DSC", "MNIST")  # DC at 50 images per class
    assert condensed.method["networks"] * condensed.rounds >= 1000
    assert (condensed.method["augment"], condensed.method["matching_steps"]) == ("none", 50)
    single = method("fedgloss-criteria", "cosine", "CIFAR-10").method
    assert (single["radius_choice"], single["fixed_iterations"]) == ("fixed", 1)
    private = method("fedgloss-table2", "Fed-GLOSS-DP", "MNIST, 10.18")
    assert (private.rounds, private.method["decay_rounds"]) == (15, 30)
    assert (private.method["criterion"], private.method["pixel_steps"]) == ("cosine", 5)
    generated = method("fedgloss-table2", "PSG", "MNIST, one-shot")
    assert generated.privacy is not None
    assert (generated.privacy.epsilon, generated.privacy.sigma) == (32.0, None)
    assert generated.method["restarts"] * generated.method["gradients"] == 10_000
    assert generated.method["batches"] == 10


def recipe_of(**more: Any) -> Any:
    table = {
        "title": "t",
        "source": "s",
        "settings": {"rounds": 5, "model": "mlp"},
        "methods": {"fedavg": {"batch_size": 1}},
        "rows": {"A": {"method": "fedavg"}, "B": {"method": {"name": "fedprox", "mu": 1.0}}},
        "columns": {"x": {"rounds": 6, "methods": {"fedavg": {"batch_size": 2}}}, "y": {}},
        "published": {"A": {"x": [1.0, 0.5], "y": 2.0}},
        "scales": {"smoke": {"settings": {"rounds": 7}, "methods": {"fedavg": {"momentum": 0.5}}}},
        **more,
    }
    return parse_recipe("r", table)


def test_layers_lie_over_each_other() -> None:
    a_x, a_y = recipe_of().cells("smoke")
    assert a_x.request["rounds"] == 7
    assert a_x.request["method"] == {"name": "fedavg", "batch_size": 2, "momentum": 0.5}
    assert (a_x.published, a_x.spread) == (1.0, 0.5)
    assert a_y.request["method"]["batch_size"] == 1
    everything = recipe_of(only_published=False).cells("paper")
    assert [(c.row, c.column) for c in everything] == [
        ("A", "x"),
        ("A", "y"),
        ("B", "x"),
        ("B", "y"),
    ]
    assert everything[2].request["method"] == {"name": "fedprox", "mu": 1.0}


def test_wrong_recipes_are_refused() -> None:
    with pytest.raises(RequestError, match=r"recipe r\.colour: no such setting"):
        recipe_of(colour="red")
    with pytest.raises(RequestError, match=r"published\.A: 'z' is not in the table"):
        recipe_of(published={"A": {"z": 1.0}})
    with pytest.raises(RequestError, match=r"scales\.cpu\.rows: 'C' is not in the table"):
        recipe_of(scales={"cpu": {"rows": ["C"]}})
    with pytest.raises(RequestError, match="did you mean 'feddm-table1'"):
        load_recipe("fedm-table1")
