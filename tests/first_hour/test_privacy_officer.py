"""The first hour of a privacy officer: what a budget costs, a private run, its page, an attack."""

import json
import random

import pytest

from tests.first_hour.desk import Desk

DECLARED = """
[data]
label_column = "sick"
client_column = "hospital"
missing = []

[data.ranges]
age = [20, 90]
pressure = [80, 200]

[data.categories]
sex = ["f", "m"]

[privacy]
epsilon = 3.0
public_size = 150
"""
# Folders that a private run keeps apart: docs/report.md, "What may be published".
APART = ("unpublished", "checkpoint", "refused", "nodes")


def write_patients(desk: Desk) -> None:
    """Three hospitals; who is older or has a higher blood pressure is sick more often."""
    drawn = random.Random(0)
    rows = ["age,pressure,sex,sick,hospital"]
    for number in range(600):
        age, pressure = drawn.randint(20, 90), drawn.randint(80, 200)
        sick = (age - 55) / 35 + (pressure - 140) / 60 + drawn.gauss(0, 0.3) > 0
        hospital = ("east", "north", "west")[number % 3]
        rows.append(f"{age},{pressure},{drawn.choice('fm')},{'yes' if sick else 'no'},{hospital}")
    desk.folder.mkdir(exist_ok=True)
    (desk.folder / "patients.csv").write_text("\n".join(rows))
    (desk.folder / "declared.toml").write_text(DECLARED)


@pytest.mark.slow
def test_what_a_budget_costs(desk: Desk) -> None:
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    plan = "fedstill privacy --rounds 5 --accesses 10 --q 0.1 --json"
    found = desk.answer(f"{plan} --epsilon 3")
    assert found["epsilon"] <= 3
    # That noise gives that budget, less noise a larger one, and twice as many rounds too.
    again = desk.answer(f"{plan} --sigma {found['sigma']}")
    assert again["epsilon"] == pytest.approx(found["epsilon"], abs=0.01)
    assert desk.answer(f"{plan} --sigma {found['sigma'] / 2}")["epsilon"] > 3
    longer = plan.replace("--rounds 5", "--rounds 10")
    assert desk.answer(f"{longer} --epsilon 3")["sigma"] > found["sigma"]
    said = desk.command("fedstill privacy --epsilon 3 --rounds 5 --accesses 10 --q 0.1")
    assert f"{found['sigma']:.4f}" in said


@pytest.mark.slow
def test_a_private_run_its_statement_and_its_audit(desk: Desk) -> None:
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    write_patients(desk)

    # What would leak is refused, with the setting that declares it.
    told = "--set data.label_column=sick --set data.client_column=hospital"
    asked = f"fedstill run fedavg --data patients.csv {told} --epsilon 3"
    assert "privacy.public_size" in desk.command(asked, code=2)
    said = desk.command(f"{asked} --set privacy.public_size=150", code=2)
    assert "data.ranges" in said
    assert "declare" in said
    assert not list(desk.folder.glob("runs/*/model.safetensors"))
    # So is a method that sends records.
    said = desk.command("fedstill run real --epsilon 3", code=2)
    assert "real has no private form" in said

    run = "fedstill run fedavg --config declared.toml --data patients.csv --rounds 5"
    desk.command(f"{run} --set model.width=8 --set model.depth=1 --out runs/private")
    summary = json.loads(desk.file("runs/private/summary.json"))
    assert 0 < summary["epsilon"] <= 3

    # The budget was counted at each client, before each access.
    folder = desk.folder / "runs" / "private"
    ledgers = sorted((folder / "ledger").glob("client-*.jsonl"))
    assert len(ledgers) == 3
    for ledger in ledgers:
        assert ledger.read_text().strip()

    # Nothing outside the folders that are kept apart has counts of records.
    outside = {p.name for p in folder.rglob("*") if p.is_file() and not apart(p.parts)}
    assert outside & {"holdings.json", "confusion.json", "partition.safetensors"} == set()
    assert {"report.html", "summary.json", "model.safetensors"} <= outside
    report = desk.file("runs/private/report.html")
    for part, shown in (("classes", False), ("holdings", False), ("privacy", True)):
        assert (f'href="#{part}"' in report) is shown

    # One page, then an attack on the same configuration, then the page with its result.
    statement = " ".join(desk.command("fedstill privacy --statement runs/private").split())
    assert "PRIVACY STATEMENT" in statement
    assert f"epsilon {summary['epsilon']:.2f} at delta 1e-05" in statement
    audit = desk.answer("fedstill audit runs/private --canaries 500 --confidence 0.9999 --json")
    assert audit["refuted"] is False
    assert max(f["bound"] for f in audit["audit"]["findings"]) <= 3
    assert (folder / "audit.json").exists()
    audited = " ".join(desk.command("fedstill privacy --statement runs/private").split())
    assert audited != statement
    assert "canaries instead of 500" in audited  # a small network: said, not hidden
    assert (folder / "statement.html").read_text().strip().endswith("</html>")


@pytest.mark.slow
def test_a_private_run_can_be_worth_its_noise(desk: Desk) -> None:
    """Sums over all records, released once: the same budget, and a bound with power."""
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    write_patients(desk)
    line = "fedstill run analytic --config declared.toml --data patients.csv --rounds 1"
    desk.command(f"{line} --out runs/sums")
    summary = json.loads(desk.file("runs/sums/summary.json"))
    assert 0 < summary["epsilon"] <= 3
    # Two classes; the noise is the operating system's, so the bound is far below the usual 90%.
    assert summary["accuracy"] > 0.7
    found = desk.answer("fedstill audit fedavg --canaries 5000 --confidence 0.9999 --json")
    assert found["verdict"] == "not refuted"  # and not "no power": the attack is not blind
    assert found["audit"]["canaries"] == 5000


def apart(parts: tuple[str, ...]) -> bool:
    return any(name in parts for name in APART)


@pytest.mark.slow
def test_a_run_without_privacy_promises_nothing(desk: Desk) -> None:
    short = "--rounds 1 --clients 3 --set method.iterations=2 --out runs/public"
    desk.command(f"fedstill run feddm {short}")
    statement = " ".join(desk.command("fedstill privacy --statement runs/public").split())
    assert "no privacy is promised" in statement
    assert "This run had no privacy mechanism" in desk.file("runs/public/report.html")
