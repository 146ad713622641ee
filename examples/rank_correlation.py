"""How far can a search on a distilled set be trusted? The rank correlation measures it.

    python examples/rank_correlation.py [--data mnist --data-dir DIR] [--ipc 10] [--out FOLDER]

A set is distilled once. Each of fourteen architectures is then trained in two ways: on the set
(several newly initialised networks), and by federated averaging on the clients' records. If the set
ranks the architectures as the federation does, Spearman's rho is 1; if it says nothing about them,
0. Its interval holds 95% of rho over architectures drawn with replacement.

Two numbers of the set are compared with the federation's test accuracy: the test accuracy after
training on the set, and the accuracy on held-out synthetic images, which is what `fedstill tune`
sees. Everything is kept in FOLDER, and what is there is not computed again.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedstill
from fedstill.engine.threads import threads
from fedstill.evaluate import evaluate
from fedstill.rng import Rng
from fedstill.runs.folder import RunFolder
from fedstill.steps.training import Training
from fedstill.tune.objective import Judge
from fedstill.tune.space import Candidate
from fedstill.tune.training import DEFAULT_TRAINING

Architecture = dict[str, Any]

ARCHITECTURES: dict[str, Architecture] = {
    "convnet 8, depth 1": {"name": "convnet", "width": 8, "depth": 1},
    "convnet 8, depth 2": {"name": "convnet", "width": 8, "depth": 2},
    "convnet 16, depth 2": {"name": "convnet", "width": 16, "depth": 2},
    "convnet 32, depth 2": {"name": "convnet", "width": 32, "depth": 2},
    "convnet 32, depth 2, no norm": {"name": "convnet", "width": 32, "depth": 2, "norm": "none"},
    "convnet 32, depth 2, group": {"name": "convnet", "width": 32, "depth": 2, "norm": "group"},
    "convnet 32, depth 2, max": {"name": "convnet", "width": 32, "depth": 2, "pooling": "max"},
    "convnet 16, depth 3": {"name": "convnet", "width": 16, "depth": 3},
    "convnet 64, depth 1, gelu": {
        "name": "convnet",
        "width": 64,
        "depth": 1,
        "activation": "gelu",
    },
    "linear": {"name": "mlp", "depth": 0},
    "mlp 32, depth 1": {"name": "mlp", "width": 32, "depth": 1},
    "mlp 200, depth 2": {"name": "mlp", "width": 200, "depth": 2},
    "mlp 64, depth 3": {"name": "mlp", "width": 64, "depth": 3},
    "resnet18 4": {"name": "resnet18", "width": 4},
}


@dataclass(frozen=True)
class Outcome:
    """One architecture's three accuracies."""

    on_set: float  # test accuracy after training on the set
    held_out: float  # accuracy on held-out synthetic images
    federated: float  # test accuracy after federated training


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple[float, float, float]]:
    """Measure, print a table, and return rho with its interval for both numbers of the set."""
    options = _options(arguments)
    distilled = _run(options.out / "distilled", options, method=options.method)
    outcomes: dict[str, Outcome] = {}
    print("| architecture | on the set | held out | federated |\n|---|---|---|---|")
    for number, (name, model) in enumerate(list(ARCHITECTURES.items())[: options.architectures]):
        outcome = _measure(options, distilled, number, model)
        outcomes[name] = outcome
        cells = (outcome.on_set, outcome.held_out, outcome.federated)
        print(f"| {name} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |", flush=True)
    federated = [outcome.federated for outcome in outcomes.values()]
    answers = {}
    for field, title in (("on_set", "on the set"), ("held_out", "held out")):
        values = [getattr(outcome, field) for outcome in outcomes.values()]
        rho = spearman(values, federated)
        low, high = bootstrap(values, federated, Rng(options.seed))
        answers[field] = (rho, low, high)
        print(f"Spearman's rho, {title} and federated: {rho:.2f} (95%: {low:.2f} to {high:.2f})")
    return answers


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of the ranks; equal values share the mean of their ranks."""
    x, y = _ranks(a), _ranks(b)
    if x.std() == 0 or y.std() == 0:
        return 0.0  # all equal: there is no order
    return float(np.corrcoef(x, y)[0, 1])


def bootstrap(
    a: Sequence[float], b: Sequence[float], rng: Rng, draws: int = 2000
) -> tuple[float, float]:
    """The middle 95% of rho over samples of the pairs, drawn with replacement."""
    generator = rng.at("bootstrap").numpy()
    values = []
    for _ in range(draws):
        rows = generator.integers(len(a), size=len(a))
        values.append(spearman([a[row] for row in rows], [b[row] for row in rows]))
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])


def _measure(
    options: argparse.Namespace, distilled: Path, number: int, model: Architecture
) -> Outcome:
    file = options.out / f"architecture-{number:02d}.json"
    if file.exists():
        return Outcome(**json.loads(file.read_text()))
    name = model["name"]
    settings = {f"{name}.{key}": value for key, value in model.items() if key != "name"}
    scores = evaluate(
        distilled / "synthetic" / _last_set(distilled),
        models=[name],
        set=settings,
        networks=options.networks,
        training=Training(0.02, momentum=0.9, batch_size=64, epochs=options.epochs),
        seed=options.seed,
    )
    judge = Judge(fedstill.load_set(distilled), options.seed, repeats=options.networks)
    with threads(1):
        verdict = judge.judge(
            Candidate(model, replace(DEFAULT_TRAINING, epochs=options.epochs)), lambda *_: True
        )
    assert verdict is not None
    federated = _run(options.out / f"federated-{number:02d}", options, model=model)
    # The mean of the last quarter: under a skewed partition single rounds jump.
    last = [m.accuracy for m in RunFolder(federated).read_metrics() if m.accuracy is not None]
    last = last[-max(1, options.federated_rounds // 4) :]
    outcome = Outcome(scores.set[0].summary["accuracy"], verdict.held_out, sum(last) / len(last))
    file.write_text(json.dumps(vars(outcome)))
    return outcome


def _last_set(run: Path) -> str:
    return max(path.name for path in (run / "synthetic").glob("round-*.safetensors"))


def _run(
    folder: Path,
    options: argparse.Namespace,
    *,
    method: str = "fedavg",
    model: Architecture | None = None,
) -> Path:
    """A run in this folder, resumed if it was begun."""
    begun = (folder / "config.toml").exists()
    distils = model is None
    settings: dict[str, Any] = {"method.images_per_class": options.ipc} if distils else {}
    settings |= {f"model.{key}": value for key, value in (model or {}).items()}
    fedstill.run(
        method,
        data=options.data,
        data_dir=options.data_dir,
        partition=options.partition,
        rounds=options.rounds if distils else options.federated_rounds,
        workers=options.workers,
        seed=options.seed,
        out=folder,
        resume=begun,
        set=settings,
    )
    return folder


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Rank correlation of set and federation.")
    parser.add_argument("--method", default="feddm", help="what distils")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--partition", default="dirichlet:0.1")
    parser.add_argument("--ipc", type=int, default=10, help="images per class")
    parser.add_argument("--rounds", type=int, default=3, help="of the distillation")
    parser.add_argument("--federated-rounds", type=int, default=20)
    parser.add_argument("--networks", type=int, default=3, help="networks per architecture")
    parser.add_argument("--epochs", type=int, default=40, help="on the set")
    parser.add_argument("--architectures", type=int, default=len(ARCHITECTURES))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/rank-correlation"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
