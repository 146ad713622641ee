"""The privacy statement: what it says of private runs, of others, and what it must not say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedstill
from fedstill.cli import app
from fedstill.errors import RequestError
from fedstill.evaluate.audited import kept_audit
from fedstill.report.statement import Statement, write_statement
from tests.report.folders import NASTY, feddm_run, nasty_data


def private(folder: Path, **more: Any) -> Path:
    settings = {
        "method.images_per_class": 1,
        "method.iterations": 2,
        "method.server_epochs": 1,
        "privacy.sigma": 1.0,
        "privacy.sampling_rate": 0.25,
        "privacy.public_size": 20,
        "model.width": 8,
        **more,
    }
    fedstill.run(
        "feddm",
        data=nasty_data(),
        partition="iid",
        out=folder,
        rounds=2,
        clients=3,
        workers=1,
        model="mlp",
        set=settings,
    )
    return folder


def stated(folder: Path) -> Statement:
    path, made = write_statement(folder, kept_audit(folder))
    assert path.read_text() == made.html
    return made


def words_of(made: Statement) -> str:
    """The text in one line."""
    return " ".join(made.plain.split())


def audit_file(folder: Path, bound: float, **more: Any) -> None:
    """A kept audit as `fedstill audit` writes it."""
    finding = {
        "attacker": "door",
        "test": "gaussian",
        "bound": bound,
        "guesses": 4000,
        "right": 2500,
    }
    audit = {
        "method": "feddm",
        "claimed": 5.0,
        "delta": 1e-5,
        "sigma": 1.0,
        "rate": 0.25,
        "rounds": 2,
        "accesses": 4,
        "canaries": 4000,
        "coverage": 1.0,
        "confidence": 0.95,
        "finding": finding,
        "findings": [finding],
        "could_refute": True,
        **more,
    }
    kept = {"audit": audit, "notes": ["fewer canaries"], "version": "1", "made": "2026-01-02"}
    (folder / "audit.json").write_text(json.dumps(kept))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return private(tmp_path_factory.mktemp("statement") / "run")


def test_it_says_what_was_promised_against_whom_and_how_it_is_counted(run: Path) -> None:
    made = stated(run)
    summary = json.loads((run / "summary.json").read_text())
    assert made.good
    assert made.mark == f"epsilon {summary['epsilon']:.2f} at delta 1e-05"
    assert [part.title for part in made.parts] == [
        "What is promised",
        "Against whom",
        "How it is counted",
        "What is not promised",
        "Audit",
    ]
    facts = {name: value for part in made.parts for name, value in (part.facts or {}).items()}
    assert facts["accesses of the worst client"] == "4"  # two rounds of two
    assert facts["q"] == "0.25"
    assert facts["epsilon allowed"] == "no limit"
    assert facts["unit"] == "one record of one client"
    assert f"Not audited. To do it: fedstill audit {run}" in words_of(made)
    for words in ("person with several records", "across runs", "Side channels"):
        assert words in words_of(made)


def test_the_page_is_self_contained_and_escapes_names(run: Path) -> None:
    html = stated(run).html
    assert "default-src 'none'" in html
    assert not re.search(r"(src|href)=[\"'](?!data:)", html)
    assert NASTY not in html
    assert "&lt;script&gt;" in html  # the name of the data


def test_nothing_in_it_is_computed_from_records(run: Path) -> None:
    """No hash of data or partition, no class count: the same page for other records."""
    summary = json.loads((run / "summary.json").read_text())
    made = stated(run)
    for text in (made.html, made.plain):
        for key in ("data_sha256", "partition_sha256", "experiment_sha256"):
            assert summary.get(key) is None or summary[key] not in text
    before = made.plain
    for name in ("holdings.json", "partition.safetensors"):
        (run / name).unlink(missing_ok=True)
    assert stated(run).plain == before


def test_a_damaged_line_of_a_ledger_counts(run: Path) -> None:
    ledger = run / "ledger" / "client-00001.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + b'{"round": 3, "mech')
    assert "accesses of the worst client: 5" in words_of(stated(run))
    ledger.write_bytes(whole)


def test_the_audit_is_part_of_it(run: Path) -> None:
    audit_file(run, bound=2.5)
    made = stated(run)
    assert made.good
    assert "This proves nothing by itself" in words_of(made)
    assert "epsilon is at least: 2.50" in words_of(made)
    assert "Fewer canaries." in words_of(made)
    audit_file(run, bound=0.1)
    assert "No power" in words_of(stated(run))
    audit_file(run, bound=5.5)
    refuted = stated(run)
    assert not refuted.good
    assert "REFUTED by an audit" in refuted.mark
    assert "do not rely on it" in refuted.html
    audit_file(run, bound=2.5, sigma=2.0)
    assert "audit is of other settings" in words_of(stated(run))
    (run / "audit.json").write_text('{"audit": {"claimed": "much"}}')
    with pytest.raises(RequestError, match="audit again: fedstill audit"):
        stated(run)
    (run / "audit.json").unlink()


def test_without_privacy_nothing_is_promised(tmp_path: Path) -> None:
    made = stated(feddm_run(tmp_path / "run"))
    assert not made.good
    assert made.mark == "no privacy is promised"
    assert "Nothing. This run had no privacy mechanism." in words_of(made)
    assert [part.title for part in made.parts] == ["What is promised", "Audit"]


def test_reproducible_noise_is_not_private(tmp_path: Path) -> None:
    made = stated(private(tmp_path / "run", **{"privacy.reproducible": True}))
    assert not made.good
    assert made.mark == "NOT PRIVATE"
    assert "can subtract the noise" in words_of(made)


def test_the_command(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["privacy", "--statement", str(run), "--json"])
    assert done.exit_code == 0, done.output
    assert "What is not promised" in done.output
    assert (run / "statement.html").exists()
    assert json.loads(done.output.splitlines()[-1])["parts"][0]["title"] == "What is promised"
    out = tmp_path / "other.html"
    CliRunner().invoke(app, ["privacy", "--statement", str(run), "--out", str(out)])
    assert out.read_text().startswith("<!doctype html>")
    for words in ([str(run), "--epsilon", "3"], [str(tmp_path / "x")]):
        refused = CliRunner().invoke(app, ["privacy", "--statement", *words])
        assert isinstance(refused.exception, RequestError)
