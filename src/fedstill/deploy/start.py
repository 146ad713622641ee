"""``fedstill deploy run``: starts a run, shows its log, and ends as the run ended.

`flwr run --stream` ends with exit code 0 when a run has failed: a script or a service would take
it for done.
"""

import json
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from fedstill.deploy.control import Control, Status, Unreachable, control
from fedstill.deploy.link import LINK, flower_home
from fedstill.deploy.outcome import refuse_failure
from fedstill.deploy.register import refuse_unbound
from fedstill.engine.flower import require_flower
from fedstill.engine.flower.environment import command, flower_environment
from fedstill.errors import Interrupted, RequestError, RunError, printable

_PATIENCE = 60.0  # seconds for a SuperLink that was restarted to answer again
_POLL = 1.0


def run_app(app: Path, *, resume: bool, out: Path | None, show: Callable[[str], None]) -> None:
    """One run, or the rest of one. Returns if the run is done; whatever else it ends with is the
    error that ``fedstill run`` would have ended with."""
    require_flower()
    if not (app / "experiment.toml").is_file():
        raise RequestError(f"{app}: no experiment.toml; `fedstill deploy init` makes an app")
    again = f"resume with: fedstill deploy run {shlex.quote(str(app))} --resume"
    with control(app) as superlink:
        refuse_unbound(app, superlink.nodes())
        number = _start(app, resume, out)
        show(f"run {number} started\n")
        try:
            status = _follow(superlink, number, show)
        except KeyboardInterrupt:
            raise Interrupted(
                f"run {number} continues without this terminal; with FLWR_HOME={flower_home(app)}, "
                f"`flwr log {number} {LINK}` shows it and `flwr stop {number} {LINK}` stops it"
            ) from None
        except Unreachable as error:
            raise RunError(f"{error}; when it runs again, {again}") from error
    refuse_failure(status, again)


def _start(app: Path, resume: bool, out: Path | None) -> int:
    """Start the run; Flower's number of it."""
    config = [f"resume={'true' if resume else 'false'}"]
    if out is not None:
        config.append(f"out={json.dumps(str(out.resolve()))}")
    done = subprocess.run(
        [
            *(command("flwr"), "run", str(app.resolve()), LINK, "--format", "json"),
            *("--run-config", " ".join(config)),
        ],
        env=flower_environment(flower_home(app)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        reply = json.loads(done.stdout)
        if reply["success"]:
            return int(reply["run-id"])
        reason = str(reply.get("error-message", reply))
    except (ValueError, KeyError, TypeError):
        reason = done.stdout + done.stderr
    raise RunError(f"the run was not started: {printable(reason).strip()}")


def _follow(superlink: Control, number: int, show: Callable[[str], None]) -> Status:
    """Show the log until the run is over. A connection that breaks is made again."""
    seen, deadline = 0.0, time.monotonic() + _PATIENCE
    while True:
        try:
            for text, written in superlink.log(number, seen):
                seen, deadline = written, time.monotonic() + _PATIENCE
                show(printable(text))
            status = superlink.status(number)
            if status.finished:
                return status
            deadline = time.monotonic() + _PATIENCE
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL)
