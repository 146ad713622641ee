"""What starting costs: processor seconds of commands that need no PyTorch, and of a client's first
step in a new process.

Every measurement is a process of its own; the least of some repeats counts, because the machine is
shared. To compare with another version, name the folder of its sources: the two take turns.

    python benchmarks/start.py [--repeats 5] [--other DIR/src]
"""

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "src"
COMMANDS = {
    "fedstill --help": "--help",
    "fedstill list": "list",
    "fedstill run --help": "run --help",
    "an unknown method": "run fedavgg",
    "an unknown setting": "run fedavg --set method.local_epoch=3",
    "a bad value": "run fedavg --set method.local_epochs=0",
    "data that are not there": "run feddm --data nosuch",
    "data that are not in --data-dir": "run feddm --data mnist --data-dir nosuch",
    "an --out that is not free": "run feddm --out .",
    "a run to resume that is not there": "run --resume --out nosuch",
    "a run to compare that is not there": "compare nosuch",
    "a run to show that is not there": "show nosuch",
    "a set to evaluate that is not there": "evaluate nosuch",
    "five rounds of fedavg on the digits": "run fedavg --rounds 5 --workers 1 --out run",
}
# A worker process up to its first pixel step, and the same in a process of Flower's.
FIRST_STEP = """
import tempfile, pathlib, warnings
warnings.simplefilter("ignore")
{first}
import fedstill.engine.worker
from fedstill import wire
from fedstill.build import build
from fedstill.client import Work
from fedstill.types import ServerContext
built = build({{"method": "{method}"}})
context = ServerContext(built.task, 1, built.rng)
down = built.method.broadcast(context, built.method.init(context))
data = wire.encode(down, built.method.download(built.task))
def stop(*_):
    raise SystemExit
built.runner.answer(Work(1, 0, data, None), stop)
"""
FLOWER = """
from flwr.supernode.cli import flwr_clientapp
import fedstill.engine.flower.client_app
"""


def seconds(call: list[str], sources: Path) -> float:
    """Processor time of this process, in user and system mode."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(sources)}
    # Modules are compiled once, as on a user's machine, whatever this environment says.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "fedstill-start")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "notes.txt").touch()  # so that it is no free folder for a run
        done = subprocess.run(
            call, capture_output=True, text=True, env=environment, cwd=folder, check=False
        )
    if "Traceback" in done.stderr:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    python = sys.executable
    calls = {
        name: [python, "-m", "fedstill", *arguments.split()] for name, arguments in COMMANDS.items()
    }
    for method in ("feddm", "fedavg"):
        code = FIRST_STEP.format(method=method, first="")
        calls[f"a worker to its first step of {method}"] = [python, "-c", code]
    if importlib.util.find_spec("flwr"):
        code = FIRST_STEP.format(method="feddm", first=FLOWER)
        calls["a Flower node's process to its first step of feddm"] = [python, "-c", code]
    versions = [HERE] if asked.other is None else [asked.other.resolve(), HERE]
    kinds = ["before", "after"][-len(versions) :]
    for name, call in calls.items():
        taken: dict[Path, list[float]] = {version: [] for version in versions}
        for version in versions:
            seconds(call, version)  # compiles modules
        for _ in range(asked.repeats):
            for version in versions:
                taken[version].append(seconds(call, version))
        found[name] = [min(times) for times in taken.values()]
        print(f"{name}: " + " -> ".join(f"{least:.2f} s" for least in found[name]))
    if asked.json:
        each = ((name, dict(zip(kinds, times, strict=True))) for name, times in found.items())
        print(json.dumps({f"{kind} {name}": t for name, by in each for kind, t in by.items()}))


if __name__ == "__main__":
    main()
