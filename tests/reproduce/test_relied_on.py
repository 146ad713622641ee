import json

from tests.reproduce.relied_on import FILE, all_left_open


def test_no_recipe_relies_on_a_default_that_changed() -> None:
    """Cells of the papers' tables keep their settings when a default changes: the value is then
    written into the recipe."""
    relied = json.loads(FILE.read_text())
    changed = {
        (where, key): (relied[method][key], value)
        for where, method, defaults in all_left_open()
        for key, value in defaults.items()
        if relied[method].get(key, value) != value
    }
    assert not changed
    assert {method for _, method, _ in all_left_open()} == set(relied)
