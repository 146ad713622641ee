"""fedstill: federated learning that ships distilled data, not weights."""

from fedstill.data import Dataset, arrays
from fedstill.evaluate import evaluate
from fedstill.methods import METHODS
from fedstill.models import MODELS, Model, convert_norms
from fedstill.observe.observer import Observer
from fedstill.rng import Rng
from fedstill.run import Result, run
from fedstill.runs.sets import load_set
from fedstill.tune import tune
from fedstill.version import VERSION

__version__ = VERSION

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
    "convert_norms",
    "evaluate",
    "load_set",
    "run",
    "tune",
]
