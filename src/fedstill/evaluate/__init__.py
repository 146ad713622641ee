"""Scores of a model or a synthetic set, and sets in formats that other tools read."""

from fedstill.evaluate.evaluated import Evaluated
from fedstill.evaluate.evaluation import evaluate

__all__ = ["Evaluated", "evaluate"]
