"""A hostile server and a deployed node with TLS, a key, a budget and a column of names."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from fedstill.build import build
from fedstill.config.nested import read_toml
from fedstill.engine.flower.codes import CODES, explained
from tests.engine.deployment import Deployment

pytestmark = pytest.mark.slow

EXPERIMENT = [
    *("fedsgd", "--clients", "1", "--rounds", "9", "--partition", "nodes", "--model", "mlp"),
    *("--set", "model.width=8", "--set", "privacy.sigma=1", "--set", "privacy.sampling_rate=0.5"),
    *("--set", "privacy.epsilon=1000", "--set", "privacy.public_size=20"),
]
SERVER = """from pathlib import Path

from tests.engine.hostile_server import hostile_app

app = hostile_app(Path(__file__).parent.parent / "experiment.toml")
"""


def records(folder: Path, secret: str) -> Path:
    """A table of digits with a column of names; one label is a name by mistake."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    def png(value: int) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(np.full((8, 8), value, dtype=np.uint8)).save(buffer, "png")
        return buffer.getvalue()

    table = pa.table(
        {
            "image": [{"bytes": png(i), "path": None} for i in range(20)],
            "label": [*(str(i % 10) for i in range(19)), f"{secret} 19"],
            "patient": [f"{secret} {i}" for i in range(20)],
        }
    )
    folder.mkdir()
    pq.write_table(table, folder / "train.parquet")
    return folder


def test_a_hostile_server_learns_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    secret = "Jane Doe"
    data = records(tmp_path / "records", secret)
    marker = tmp_path / "their_code.ran"
    (tmp_path / "their_code.py").write_text(f"open({str(marker)!r}, 'w')\n")
    attacks = {
        "column": {"config": {"data": {"label_column": "patient", "image_column": "patient"}}},
        "classes": {"class_names": [f"{secret} {i}" for i in range(10)]},
        "path": {"experiment_sha256": "../../../../elsewhere"},
        "file": {"config": {"data": {"name": "shakespeare", "vocabulary": "/etc/passwd"}}},
        "code": {"config": {"model": {"name": "their_code:make"}}},
        "no privacy": {"drop": "privacy"},
        "work": {"config": {"method": {"name": "feddm", "iterations": 10**7}}},
    }
    with Deployment(tmp_path, *EXPERIMENT) as deployment:
        plan = build(read_toml(deployment.app / "experiment.toml")).planned().plan
        assert plan is not None
        deployment.environment["PYTHONPATH"] += f":{tmp_path}"
        (deployment.app / "fedstill_app" / "server.py").write_text(SERVER)
        (tmp_path / "run.json").write_text(json.dumps(attacks))
        deployment.register()
        # Two of the attacks get an honest answer, because the node reads what it always reads. Two
        # more turns are left for those who ask four times at once.
        budget = plan.spent(4) * 1.001
        deployment.start_node(0, f'data="{data}" epsilon={budget}', key=deployment.key(0))
        deployment.run()
        answered = tmp_path / "run.replies"
        deployment.wait(answered.exists, 900, "run")
        replies = json.loads(answered.read_text())
        seen = json.dumps(replies) + deployment.log("superlink") + deployment.log("run")
        assert "1 of 20 records do not fit the task" in deployment.log("node-0")
    assert secret not in seen
    assert "root:" not in seen
    assert not marker.exists()
    assert not list(tmp_path.rglob("elsewhere*"))
    at_once = replies.pop("at once")
    codes = {explained(code): code for code in CODES}
    found = {name: codes.get(reply["error"]) for name, reply in replies.items()}
    assert found == {
        "column": None,
        "classes": "task",
        "path": "message",
        "file": None,
        "code": "request",
        "no privacy": "request",
        "work": "limit",
        "query": "message",
    }
    said = sorted(str(codes.get(reply["error"])) for reply in at_once)
    assert said == ["None", "None", "budget", "budget"]
    (ledger,) = (tmp_path / "nodes").rglob("*.jsonl")
    assert json.loads(ledger.read_text().splitlines()[-1])["total"] == 4
    assert replies["column"]["bytes"] == replies["file"]["bytes"] > 0
    assert not any(reply.get("traceback") for reply in [*replies.values(), *at_once])
