"""Help, lists and refusals come at once: none of them imports PyTorch."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.cli import audit, evaluate, export, options, tune
from fedstill.data.partition.rules import RULES
from fedstill.evaluate.export import FORMS
from fedstill.tune import OBJECTIVES
from fedstill.tune.space import SEARCHES
from fedstill.tune.study import PRUNERS, SAMPLERS

# Imports the command line as its script does, and says afterwards whether PyTorch came with it, and
# whether a process was started.
SCRIPT = """
import sys
started = set()
sys.addaudithook(lambda event, _: started.add(event) if event == "subprocess.Popen" else None)
from fedstill.cli import main
sys.argv = ["fedstill", *sys.argv[1:]]
try:
    main()
finally:
    print("HEAVY", sorted({"torch", "pyarrow", "flwr", "jinja2"} & set(sys.modules) | started))
"""

AT_ONCE = {
    "--help": 0,
    "--version": 0,
    "list": 0,
    "list methods": 0,
    "list recipes": 0,
    "list nothing": 2,
    "run --help": 0,
    "run": 2,
    "run fedavgg": 2,
    "run fedavg --model convnett": 2,
    "run fedavg --model convnet --set model.widht=3": 2,
    "run fedavg --set model.name=convnet --set model.width=0": 2,
    "run fedavg --set method.local_epoch=3": 2,
    "run fedavg --set method.local_epochs=-3": 2,
    "run fedavg --set method.decay=linear": 2,
    "run fedavg --set no_such_key=1": 2,
    "run fedavg --set data.channels=2": 2,
    "run fedavg --rounds 0": 2,
    "run fedavg --partition dirichlet": 2,
    "run fedavg --delta 0.1": 2,
    "run fedavg --config nowhere.toml": 2,
    "run fedavg --engine cloud": 2,
    "run fedavg --no-such-option": 2,
    "run fedavg --data nosuch": 2,
    "run fedavg --data ./nosuch.csv": 2,
    "run fedavg --data mnist --data-dir DIR/nosuch": 2,
    "run fedavg --data mnist --data-dir DIR/other": 2,
    "run fedavg --set data.name=nosuch": 2,
    "run --config DIR/wrong-data.toml": 2,
    "run fedavg --out DIR/other": 2,
    "run fedavg --out DIR/run": 2,
    "run fedavg --out DIR/wrong-data.toml": 2,
    "run --resume": 2,
    "run --resume --out DIR/nosuch": 2,
    "run --resume --out DIR/other": 2,
    "evaluate DIR/run --models nosuch": 2,
    "compare DIR/run --target 90": 2,
    "report DIR/run --port 80": 2,
    "report DIR/run --serve --out page.html": 2,
    "privacy --help": 0,
    "deploy --help": 0,
}
AT_ONCE |= {
    f"{name} --help": 0 for name in ("audit", "compare", "evaluate", "export", "new", "partition")
}
AT_ONCE |= {
    f"{name} DIR/{place}": 2
    for name in ("compare", "report", "report --serve", "show", "evaluate", "export", "tune")
    for place in ("nosuch", "other", "empty")
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a folder of something else, an empty one, and a file; there is no ``nosuch``."""
    folder = tmp_path_factory.mktemp("folders")
    for name in ("run", "other", "empty"):
        (folder / name).mkdir()
    (folder / "run" / "config.toml").touch()
    (folder / "run" / "model.safetensors").touch()
    (folder / "other" / "notes.txt").touch()
    (folder / "wrong-data.toml").write_text("method = 'fedavg'\ndata = 'nosuch'\n")
    return folder


@pytest.mark.parametrize("command", AT_ONCE)
def test_nothing_heavy_is_imported(command: str, folders: Path) -> None:
    call = [sys.executable, "-c", SCRIPT, *command.replace("DIR", str(folders)).split()]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert done.returncode == AT_ONCE[command], done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    if AT_ONCE[command]:
        assert done.stderr.startswith("fedstill: ")
        assert len(done.stderr.splitlines()) == 1


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, fedstill; print(dir(fedstill)); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, heavy = done.stdout.splitlines()
    assert heavy == "False"
    assert all(repr(name) in names for name in fedstill.__all__)


def test_a_function_keeps_its_name_when_its_module_is_imported_first() -> None:
    code = (
        "import fedstill.run, fedstill.tune, fedstill.compare, fedstill.evaluate, fedstill.data\n"
        "import fedstill.data.partition\n"
        "named = (fedstill.run, fedstill.tune, fedstill.compare, fedstill.evaluate)\n"
        "print(all(map(callable, (*named, fedstill.data.partition))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (audit.audit_command, fedstill.audit),
        (evaluate.evaluate_command, fedstill.evaluate),
        (tune.tune_command, fedstill.tune),
    ],
)
def test_commands_have_the_defaults_of_their_functions(
    command: Callable[..., Any], function: Callable[..., Any]
) -> None:
    ours, theirs = _defaults(command), _defaults(function)
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 5
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}


def test_help_names_the_choices_that_there_are() -> None:
    def helped(function: Callable[..., Any], name: str) -> str:
        hint = inspect.get_annotations(function, eval_str=True)[name]
        return str(hint.__metadata__[0].help)

    rules = [rule.form() for rule in RULES.values() if not rule.on_nodes]
    partition: Any = options.Partition
    assert partition.__metadata__[0].help == f"{', '.join(rules)}."
    assert ", ".join(FORMS) in helped(export.export_command, "to")
    for name, choices in {
        "search": SEARCHES,
        "objective": OBJECTIVES,
        "sampler": SAMPLERS,
        "pruner": PRUNERS,
    }.items():
        assert ", ".join(choices) in helped(tune.tune_command, name)
