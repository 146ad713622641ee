"""The first hour of a researcher: a method of their own, proven and compared."""

import pytest

from tests.first_hour.desk import Desk

SAME = "--rounds 2 --clients 3 --partition iid"


@pytest.mark.slow
def test_a_method_from_the_template_is_proven_run_and_compared(desk: Desk) -> None:
    assert "fedavg" in desk.command("fedstill list methods")
    said = desk.command("fedstill new method momentum_average")
    assert "fedstill run momentum_average:MomentumAverage" in said

    # Its own tests, conformance among them, pass before anything is changed.
    desk.command("python -m pytest -q -p no:cacheprovider test_momentum_average.py")

    # On the command line and in Python it gives the same bits.
    for seed in (0, 1):
        line = f"fedstill run momentum_average:MomentumAverage {SAME} --seed {seed}"
        desk.command(f"{line} --out runs/mine-{seed}")
        desk.command(f"fedstill run fedavg {SAME} --seed {seed} --out runs/fedavg-{seed}")
    desk.python(
        "import fedstill\n"
        "from momentum_average import MomentumAverage\n"
        "fedstill.run(MomentumAverage(), rounds=2, clients=3, partition='iid', out='python')\n"
    )
    model = "model.safetensors"
    assert (desk.folder / "python" / model).read_bytes() == (
        desk.folder / "runs" / "mine-0" / model
    ).read_bytes()

    # One line per method, two seeds each, and a page.
    said = desk.command("fedstill compare runs/")
    assert "comparison.html" in said
    rows = {row["run"]: row for row in desk.table("comparison.csv")}
    assert set(rows) == {"fedavg", "momentum_average:MomentumAverage"}
    mine = rows["momentum_average:MomentumAverage"]
    assert mine["seeds"] == "2"
    assert float(mine["accuracy"]) > 0.5  # ten classes
    # Both send every weight; FedAvg adds the number of records.
    assert 0 <= float(rows["fedavg"]["up"]) - float(mine["up"]) < 1000
    page = desk.file("comparison.html")
    assert "runs/mine-0/report.html" in page
    assert (desk.folder / "runs" / "mine-0" / "report.html").exists()


@pytest.mark.slow
def test_a_mistake_is_found_by_the_checks_and_a_wrong_setting_is_explained(desk: Desk) -> None:
    desk.command("fedstill new method mine")
    source = desk.folder / "mine.py"
    good = source.read_text()
    update = "subtract(local_sgd(ctx, message.params, training), message.params)"
    assert update in good
    # Noise from outside the run's streams: the same seed no longer gives the same bits.
    noise = f"{{k: u + 1e-3 * torch.randn_like(u) for k, u in {update}.items()}}"
    broken = good.replace(update, noise).replace("\n\nfrom ", "\n\nimport torch\nfrom ", 1)
    source.write_text(broken)
    line = "python -m pytest -q -p no:cacheprovider test_mine.py"
    said = desk.command(f"{line} -k same_seed_same_bits --tb=line", code=1)
    assert "same_seed_same_bits" in said

    source.write_text(good)
    said = desk.command("fedstill run mine:Mine --set method.lr=0.1", code=2)
    assert "learning_rate" in said
    said = desk.command("fedstill run mine:Yours", code=2)
    assert "Yours" in said
    desk.command("fedstill new method mine", code=2)  # nothing is overwritten
    assert source.read_text() == good
