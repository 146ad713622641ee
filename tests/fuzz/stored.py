"""Files of a run: synthetic sets, partitions, manifests, ledgers, and the folder as a page."""

import json
from pathlib import Path
from random import Random

import msgspec
import torch

from fedstill.data import Partition
from fedstill.privacy.ledger import Access, Ledger
from fedstill.records import SyntheticSet
from fedstill.report.page import report_page
from fedstill.report.source import open_run
from fedstill.runs.checkpoint import Checkpoints
from fedstill.runs.metrics import Confusion, Holdings, RoundMetrics, Summary
from fedstill.runs.provenance import Session
from fedstill.runs.sets import SetMetadata, load_set, save_sets
from tests.fuzz.mutate import mutated_bytes, mutated_json, mutated_safetensors
from tests.fuzz.target import Check, Make, Target


def sets(folder: Path) -> tuple[Make, Check]:
    """Loaded: images of the shape and labels of the classes that the file names."""
    metadata = SetMetadata("feddm", 3, "toy", ("a", "b"), (0.5,), (0.5,), (1, 2, 2))
    hard = SyntheticSet(torch.arange(16.0).view(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]))
    soft = SyntheticSet(torch.arange(12.0).view(3, 1, 2, 2), torch.full((3, 2), 0.5))
    path, datas = folder / "set.safetensors", []
    for one in (hard, soft):
        save_sets(path, {0: one, 2: one}, metadata)
        datas.append(path.read_bytes())

    def make(rng: Random) -> bytes:
        return mutated_safetensors(rng.choice(datas), rng, datas)

    def check(case: bytes) -> None:
        path.write_bytes(case)
        stored = load_set(path)
        assert stored.images.shape[1:] == stored.metadata.shape
        assert torch.isfinite(stored.images).all()
        assert 0 <= int(stored.classes.min()) <= int(stored.classes.max())
        assert int(stored.classes.max()) < len(stored.metadata.class_names)
        assert len(stored.of(int(stored.clients[0]))) > 0

    return make, check


def partitions(folder: Path) -> tuple[Make, Check]:
    """Loaded: every record belongs to one client."""
    path = folder / "partition.safetensors"
    Partition(torch.tensor([0, 1, 1, 2, 0], dtype=torch.int32), 3).save(path)
    data = path.read_bytes()

    def make(rng: Random) -> bytes:
        return mutated_safetensors(data, rng)

    def check(case: bytes) -> None:
        path.write_bytes(case)
        found = Partition.load(path)
        assert sum(len(found.index(c)) for c in range(found.clients)) == len(found.owner)

    return make, check


def manifests(folder: Path) -> tuple[Make, Check]:
    """A damaged checkpoint is noticed, never believed."""
    Checkpoints(folder / "whole").save(1, b"server", {0: b"zero"})
    name = "round-0001.json"
    data = (folder / "whole" / name).read_bytes()
    (folder / "other").mkdir()

    def make(rng: Random) -> bytes:
        return mutated_json(data.decode(), rng).encode("utf-8", "replace")

    def check(case: bytes) -> None:
        for file in (folder / "whole").iterdir():
            if not (folder / "other" / file.name).exists():
                (folder / "other" / file.name).write_bytes(file.read_bytes())
        (folder / "other" / name).write_bytes(case)
        found = Checkpoints(folder / "other").load()
        assert found in (None, (1, b"server"))

    return make, check


def ledgers(folder: Path) -> tuple[Make, Check]:
    """Every line is counted, whatever it holds, or the ledger is refused."""
    path = folder / "client-00000.jsonl"
    line = msgspec.json.encode(Access(1, "poisson-sampled gaussian", 0.1, 1.0, 1.0))

    def make(rng: Random) -> list[bytes]:
        lines = [line] * rng.randrange(1, 4)
        changed = mutated_json(line.decode(), rng).encode("utf-8", "replace")
        if rng.random() < 0.3:
            changed = mutated_bytes(line, rng)
        return [*lines, changed.replace(b"\n", b" ").replace(b"\r", b" ")]

    def check(case: list[bytes]) -> None:
        path.write_bytes(b"\n".join(case))
        whole = [one for one in case if one]
        assert Ledger(path, 0.1, 1.0).count >= len(whole)

    return make, check


def pages(folder: Path) -> tuple[Make, Check]:
    """A folder is shown, whatever its files hold, and no text in them becomes markup."""
    metrics = RoundMetrics(1, 0.5, 1.0, 10, 10, 1.0, 2.0, [0, 1], {2: "failed"}, {"a": 1.0})
    summary = Summary(
        "fedavg", "toy", 3, "iid", 0, 1, 0.5, 0.5, 1.0, 10, 10, 1.0, 2.0, 1e-5, "done", "mlp", 9,
        "a", "b", "c", "1.0",
    )  # fmt: skip
    files = {
        "config.toml": b'method = "fedavg"\nrounds = 2\n',
        "summary.json": msgspec.json.encode(summary),
        "metrics.jsonl": msgspec.json.encode(metrics),
        "holdings.json": msgspec.json.encode(Holdings(["a", "b"], [[1, 2], [3, 4]], 5)),
        "confusion.json": msgspec.json.encode(Confusion(1, ["a", "b"], [[1, 2], [3, 4]])),
        "sessions.jsonl": msgspec.json.encode(Session("now", "fedstill", {"a": "1"}, {})),
    }

    def make(rng: Random) -> dict[str, bytes]:
        changed = dict(files)
        for name in rng.sample(sorted(files), rng.randrange(1, 3)):
            if name == "config.toml" or rng.random() < 0.2:
                changed[name] = mutated_bytes(files[name], rng)
            else:
                changed[name] = mutated_json(files[name].decode(), rng).encode("utf-8", "replace")
        return changed

    def check(case: dict[str, bytes]) -> None:
        for name, data in case.items():
            (folder / name).write_bytes(data)
        page = report_page(open_run(folder))
        page.encode()
        assert "\x1b" not in page
        assert page.count("<script") == 2
        start = page.index('id="data">') + len('id="data">')
        json.loads(page[start : page.index("</script>", start)])

    return make, check


TARGETS = (
    Target("sets", 0.06, sets),
    Target("partitions", 0.03, partitions),
    Target("manifests", 0.02, manifests),
    Target("ledgers", 0.03, ledgers),
    Target("pages", 0.01, pages),
)
