"""What an evaluation found: scores of a stored model, and of networks trained on a set."""

import html
import statistics
from dataclasses import dataclass

from fedstill.config.nested import Table
from fedstill.draw.numbers import counted
from fedstill.draw.tables import in_html, in_text
from fedstill.steps.scores import Scores

_HEAD = ["of", "network", "weights", "accuracy", "loss", "calibration"]


@dataclass(frozen=True)
class NetworkScores:
    """Scores of one architecture: of a stored model, or of several networks trained on a set."""

    model: Table
    size: int  # number of weights
    networks: tuple[Scores, ...]

    @property
    def summary(self) -> Table:
        """Mean and spread over the networks, as plain values."""
        columns = {
            "accuracy": [scores.accuracy for scores in self.networks],
            "loss": [scores.loss for scores in self.networks],
            "calibration_error": [scores.calibration_error for scores in self.networks],
        }
        table: Table = {"model": self.model, "size": self.size, "networks": len(self.networks)}
        for name, values in columns.items():
            table[name] = statistics.fmean(values)
            table[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        table["per_class"] = [
            None if None in column else statistics.fmean(column)
            for column in zip(*(scores.per_class for scores in self.networks), strict=True)
        ]
        return table

    @property
    def cells(self) -> list[str]:
        """Network, weights, accuracy, loss and calibration error, as text."""
        summary = self.summary

        def cell(name: str, form: str) -> str:
            spread = f" ± {format(summary[f'{name}_std'], form)}" if len(self.networks) > 1 else ""
            return f"{format(summary[name], form)}{spread}"

        numbers = (("accuracy", ".2%"), ("loss", ".3f"), ("calibration_error", ".3f"))
        return [self.model["name"], f"{self.size:,}", *(cell(*number) for number in numbers)]


@dataclass(frozen=True, repr=False)
class Evaluated:
    """What was found: scores of the stored model, if there is one, and of the set, if any."""

    source: str
    data: str
    class_names: tuple[str, ...]
    model: NetworkScores | None
    images: int
    set: tuple[NetworkScores, ...]
    round: int | None = None  # of the set
    note: str | None = None  # what a user should know about it, e.g. that the run has no model yet
    training: str | None = None  # how long and with what networks were trained on the set

    @property
    def summary(self) -> Table:
        """All of it as plain values: what ``--json`` prints."""
        return {
            "source": self.source,
            "data": self.data,
            "class_names": list(self.class_names),
            "model": self.model.summary if self.model else None,
            "images": self.images,
            "round": self.round,
            "note": self.note,
            "training": self.training,
            "set": [scores.summary for scores in self.set],
        }

    @property
    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of the table that a terminal and a notebook show."""
        found = [("model", self.model)] if self.model else []
        found += [("set", scores) for scores in self.set]
        return _HEAD, [[kind, *scores.cells] for kind, scores in found]

    @property
    def tested(self) -> str:
        """What was tested on what."""
        images = ""
        if self.images:
            images = f"the set of round {self.round} has {counted(self.images, 'image')}, "
        trained = f"networks trained on it for {self.training}, " if self.training else ""
        return f"{images}{trained}tested on {self.data}"

    def __repr__(self) -> str:
        note = [f"note: {self.note}"] if self.note else []
        return "\n".join([*note, self.tested, in_text(*self.rows)])

    def _repr_html_(self) -> str:
        said = [f"note: {self.note}", self.tested] if self.note else [self.tested]
        return "".join(f"<p>{html.escape(line)}</p>" for line in said) + in_html(*self.rows)
