"""``make quick``: the tests near what was changed, then conformance on the toy problems.

Changed is what git says: the uncommitted changes, or the last commit where there are none. Near are
the test that mirrors a module, the tests that import it, and changed tests themselves. After 40
seconds no further test is begun (a third of them is conformance's): `make test` is the whole of it.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS = 40
CONFORMANCE = "tests/methods/test_conformance.py"
# Everything imports these: their importers are the whole suite, which is no neighbourhood.
SHARED = {"types", "records", "rng", "errors", "files", "version", "config.nested", "wire.tree"}


def changed() -> list[Path]:
    """Changed files that are still there."""
    listed = _git("diff", "--name-only", "HEAD")
    listed += _git("ls-files", "--others", "--exclude-standard")
    listed = listed or _git("diff", "--name-only", "HEAD~1")
    return [Path(name) for name in listed if (ROOT / name).exists()]


def neighbours(path: Path) -> list[Path]:
    """Test files near a changed file, the nearest first."""
    if path.suffix != ".py":
        return [Path("tests/test_docs.py")] if path.suffix == ".md" else []
    if path.parts[0] == "tests":
        return [path] if path.name.startswith("test_") else list(_tests(path.parent))
    if path.parts[:2] != ("src", "fedstill"):
        return []
    inside = path.relative_to("src/fedstill").with_suffix("")
    mirrored = Path("tests") / inside.parent / f"test_{inside.name}.py"
    if (ROOT / mirrored).exists():
        found = [mirrored]
    else:
        found = list(_tests(Path("tests") / inside.parent)) if inside.parent.name else []
    module = ".".join(inside.parts).removesuffix(".__init__")
    return found if module in SHARED else found + _importers(f"fedstill.{module}")


def _tests(folder: Path) -> list[Path]:
    return sorted(p.relative_to(ROOT) for p in (ROOT / folder).glob("test_*.py"))


def _importers(module: str) -> list[Path]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [f.relative_to(ROOT) for f in files if f"from {module} import" in f.read_text()]


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split()


def main() -> None:
    """Choose the tests, and run them."""
    near = list(dict.fromkeys(test for path in changed() for test in neighbours(path)))
    # What many changed files are near to comes first; the order of equals stays.
    counts = {test: sum(test in neighbours(path) for path in changed()) for test in near}
    near.sort(key=lambda test: -counts[test])
    chosen = [str(test) for test in near if str(test) != CONFORMANCE] + [CONFORMANCE]
    print("\n".join(chosen), flush=True)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
    ]
    words += [
        "-m",
        "not slow and not browser and not docs",
        "--most-seconds",
        str(SECONDS),
        *chosen,
    ]
    sys.exit(subprocess.run(words, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
