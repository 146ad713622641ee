"""Scores of a model or a synthetic set, and sets in formats that other tools read."""

from fedstill.evaluate.evaluation import Evaluated, evaluate

__all__ = ["Evaluated", "evaluate"]
