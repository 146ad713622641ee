"""What is at a path: a run, its sets, its model, or nothing of the kind.

Only the names of files are looked at, and PyTorch is not imported: commands refuse a wrong path
here before they import what opens it, and what opens it refuses it by the same functions.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedstill.errors import RequestError
from fedstill.files import TEMPORARY

_EXAMPLE = "runs/feddm-digits-001"
_MARKS = ("config.toml", "summary.json")  # either says that a folder holds a run
_DEPTH = 4  # reproductions/RECIPE/SCALE/CELL
# What a run that was killed before it existed may leave behind.
_LEFTOVER = re.compile(rf"\.lock|partition\.safetensors|unpublished|{TEMPORARY.pattern}")


def holds_run(path: Path) -> bool:
    """Whether a run was begun in this folder, and can be resumed."""
    try:
        return (path / "config.toml").exists()
    except OSError as error:
        raise RequestError(f"--out {path}: {error.strerror}; name another one") from error


def refuse_unless_free(path: Path) -> None:
    """Refuse to begin a run in a folder that holds anything: it is left alone."""
    if holds_run(path):
        raise RequestError(
            f"--out {path}: this folder holds another run; resume it with --resume, "
            "or name another folder"
        )
    foreign = path.exists() and (
        not path.is_dir() or any(not _LEFTOVER.fullmatch(p.name) for p in path.iterdir())
    )
    if foreign:
        raise RequestError(f"--out {path}: not an empty folder; name another one")


def resumable(path: Path | None) -> Path:
    """The folder of the run that ``--resume`` means, refused if there is none."""
    if path is None:
        raise RequestError("--resume: name the run's folder with --out")
    if not holds_run(path):
        raise RequestError(f"--resume: there is no run in {path}; drop --resume to start one")
    return path


def is_run(path: Path) -> bool:
    """Whether this folder holds a run that can be shown."""
    return any((path / name).is_file() for name in _MARKS)


def runs_in(folder: Path, depth: int = _DEPTH) -> list[Path]:
    """The run folders inside a folder that is none itself, in the order of their names.

    Links are not followed: nothing outside the folder is read.
    """
    if not folder.is_dir() or is_run(folder):
        return []
    found: list[Path] = []
    for inside in sorted(folder.iterdir()):
        if inside.is_symlink() or not inside.is_dir() or inside.name.startswith("."):
            continue
        if is_run(inside):
            found.append(inside)
        elif depth > 1:
            found += runs_in(inside, depth - 1)
    return found


def runs_meant(folders: Iterable[Path]) -> list[Path]:
    """These run folders, each once; a folder that holds run folders stands for all of them."""
    return list(dict.fromkeys(run for folder in folders for run in runs_in(folder) or [folder]))


def refuse_unless_run(path: Path) -> None:
    """Refuse a path that is not a folder with a run."""
    if not path.is_dir():
        what = "not a folder" if path.exists() else "no such folder"
        raise RequestError(f"{path}: {what}; name a run folder, such as {_EXAMPLE}")
    if not any(path.iterdir()):
        raise RequestError(f"{path}: an empty folder; name a run folder")
    if not any((path / name).exists() for name in _MARKS):
        raise RequestError(f"{path}: no run here (neither {' nor '.join(_MARKS)})")


def refuse_unless_runs(path: Path) -> None:
    """Refuse a path that is neither a run folder nor a folder of run folders."""
    if not runs_in(path):
        refuse_unless_run(path)


def refuse_unless_comparable(folders: Iterable[Path], target: float | None = None) -> None:
    """Refuse a comparison up to what is no accuracy, and of folders none of which holds a run."""
    if target is not None and not 0 < target <= 1:
        raise RequestError(f"--target {target}: give an accuracy between 0 and 1, e.g. 0.9")
    reasons: list[str] = []
    for folder in runs_meant(folders):
        try:
            refuse_unless_run(folder)
        except RequestError as error:
            reasons.append(str(error))
        else:
            return
    raise nothing_to_compare(reasons)


def nothing_to_compare(reasons: Sequence[str]) -> RequestError:
    """No run can be read: why each of them cannot."""
    return RequestError("compare: " + ("; ".join(reasons) or "name some run folders"))


def set_files(run: Path) -> list[Path]:
    """The files of a run's synthetic sets, round by round; refused if there are none."""
    files = sorted((run / "synthetic").glob("round-*.safetensors"))
    if not files:
        raise RequestError(f"{run}: no synthetic sets; its method makes none, or no round ended")
    return files


def set_file(path: Path) -> Path:
    """The file that is meant: ``path`` itself, or the last round's set of a run folder."""
    return set_files(path)[-1] if path.is_dir() else path


def rounds_to_show(run: Path, only: Iterable[int] = ()) -> dict[int, Path]:
    """The files of a run's synthetic sets by round: of these rounds, or of all."""
    if not run.is_dir():
        raise RequestError(f"{run}: no such folder; name a run folder, such as {_EXAMPLE}")
    kept = {int(file.stem.rpartition("-")[2]): file for file in set_files(run)}
    wanted = set(only)
    if missing := sorted(wanted - kept.keys()):
        raise RequestError(
            f"--round {missing[0]}: no set of that round; kept are rounds: "
            f"{', '.join(map(str, kept))}"
        )
    return {number: file for number, file in kept.items() if number in wanted or not wanted}


def model_and_set(run: Path) -> tuple[bool, bool]:
    """Whether a run folder has a model, and whether it has a set; refused if it has neither."""
    has_model = (run / "model.safetensors").exists()
    has_set = any((run / "synthetic").glob("round-*.safetensors"))
    if not has_model and not has_set:
        raise RequestError(f"{run}: neither a model nor a synthetic set; is it a run folder?")
    return has_model, has_set


def refuse_unless_set(path: Path) -> None:
    """Refuse a path at which there is neither a file nor a run folder with a set."""
    _refuse_missing(set_file(path))


def refuse_unless_set_or_model(path: Path) -> None:
    """Refuse a path at which there is neither a file nor a run folder with a set or a model."""
    if path.is_dir():
        model_and_set(path)
    else:
        _refuse_missing(path)


def _refuse_missing(file: Path) -> None:
    try:
        file.stat()
    except OSError as error:
        raise unopened(file, error) from error


def unopened(path: str | os.PathLike[str], error: OSError) -> RequestError:
    """A path that cannot be opened: why, and what to name instead."""
    if isinstance(error, FileNotFoundError):
        what = f"name a run folder, such as {_EXAMPLE}, or a file in it"
        return RequestError(f"{path}: no such file or folder; {what}")
    return RequestError(f"{path}: {error.strerror or error}")
