"""fedstill: federated learning that ships distilled data, not weights.

    >>> import fedstill
    >>> result = fedstill.run("feddm", rounds=5)
    >>> result.plot(), result.predict(images), result.synthetic()

Functions take the options of the commands of the same name (``fedstill run --help``):

    run             one federated run, from data, method and network to a ``Result``
    evaluate        the accuracy of a model or of a synthetic set
    tune            search for hyper-parameters and an architecture on a synthetic set
    compare         several runs side by side
    frontier        accuracy against uploaded bytes, for many methods
    audit           an empirical lower bound on a claimed epsilon

Data and networks:

    arrays          a data set from arrays or tensors
    load_set        the synthetic sets of a run's round, as a torch ``Dataset``
    convert_norms   a module's batch norms, replaced by norms that do not mix records

Objects:

    Result          what a run gave: predict(), module(), synthetic(), frame(), plot(), report()
    Observer        gets every event of a run; derive from it and pass it to ``run``
    Dataset         both splits of a data set, its classes and its scaling
    Model           a network as pure functions; ``Model.from_module`` makes one of an nn.Module
    Rng             named random streams

Tables:

    METHODS         the methods by name
    MODELS          the networks by name

To write a method: ``fedstill.types.Method``, ``fedstill.testing.CHECKS``, and ``fedstill new``.
"""

from typing import TYPE_CHECKING

from fedstill.imports import import_when_used
from fedstill.version import VERSION

if TYPE_CHECKING:
    from fedstill.compare import compare
    from fedstill.data import Dataset, arrays
    from fedstill.evaluate import evaluate
    from fedstill.evaluate.auditing import audit
    from fedstill.frontier import frontier
    from fedstill.methods import METHODS
    from fedstill.models import MODELS, Model, convert_norms
    from fedstill.observe.observer import Observer
    from fedstill.result import Result
    from fedstill.rng import Rng
    from fedstill.run import run
    from fedstill.runs.sets import load_set
    from fedstill.tune import tune

__all__ = [
    "METHODS",
    "MODELS",
    "Dataset",
    "Model",
    "Observer",
    "Result",
    "Rng",
    "__version__",
    "arrays",
    "audit",
    "compare",
    "convert_norms",
    "evaluate",
    "frontier",
    "load_set",
    "run",
    "tune",
]

__version__ = VERSION

import_when_used(
    __name__,
    {
        "compare": "fedstill.compare",
        "Dataset": "fedstill.data",
        "arrays": "fedstill.data",
        "evaluate": "fedstill.evaluate",
        "audit": "fedstill.evaluate.auditing",
        "frontier": "fedstill.frontier",
        "METHODS": "fedstill.methods",
        "MODELS": "fedstill.models",
        "Model": "fedstill.models",
        "convert_norms": "fedstill.models",
        "Observer": "fedstill.observe.observer",
        "Result": "fedstill.result",
        "Rng": "fedstill.rng",
        "run": "fedstill.run",
        "load_set": "fedstill.runs.sets",
        "tune": "fedstill.tune",
    },
)
