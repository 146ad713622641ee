"""Texts and domains on the command line."""

import json
from pathlib import Path

from typer.testing import CliRunner

from fedstill.cli import app

RUNNER = CliRunner()
SPEECH = "".join(f"a {a} and a {b}. " for a in ("cat", "cow") for b in ("sun", "sea", "moon"))


def test_partition_of_a_play(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text(f"ANN:\n{SPEECH}\n\nBEN:\n{SPEECH * 2}")
    picture = tmp_path / "p.png"
    options = (
        "--data",
        "shakespeare",
        "--data-dir",
        str(tmp_path),
        "--out",
        str(picture),
        "--json",
    )
    done = RUNNER.invoke(app, ["partition", *options, "--set", "data.sequence_length=10"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["clients"], len(answer["counts"][0])) == (2, 97)
    assert answer["records"] == sum(map(sum, answer["counts"])) == 10 * (8 + 16)
    assert "240 tokens" in done.stdout
    assert picture.stat().st_size > 1000


def test_a_run_ends_with_the_accuracy_of_each_domain(tmp_path: Path) -> None:
    options = ("--data", "digit-domains", "--rounds", "1", "--workers", "1", "--model", "mlp")
    domains = 'data.domains=["print", "turned"]'
    out = ("--out", str(tmp_path / "run"), "--set", domains, "--set", "model.width=8")
    done = RUNNER.invoke(app, ["run", "fedsgd", *options, *out])
    assert done.exit_code == 0, done.output
    line = next(x for x in done.stdout.splitlines() if x.startswith("by domain: "))
    assert line.count("%") == 2
    assert line.index("turned ") < line.index("print ")


def test_the_lists_name_them() -> None:
    data = RUNNER.invoke(app, ["list", "data"]).stdout
    for name in ("digit-domains", "femnist", "digit-five", "office-home", "shakespeare", "reddit"):
        assert name in data
    models = RUNNER.invoke(app, ["list", "models"]).stdout
    assert "gru" in models
    assert "transformer" in models
