"""What a model or a synthetic set is worth, and sets in the forms that other tools read."""

from fedstill.evaluate.evaluation import Evaluated, evaluate

__all__ = ["Evaluated", "evaluate"]
