"""The result of a run, for scripts and notebooks."""

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fedstill.data import Dataset
from fedstill.draw.figures import Figure, Plot, Series, whole
from fedstill.draw.numbers import counted, in_bytes, in_percent, in_time
from fedstill.draw.sets import picture
from fedstill.errors import RequestError, did_you_mean
from fedstill.models import Model
from fedstill.report import write_report
from fedstill.runs.metrics import RoundMetrics, Summary
from fedstill.runs.sets import StoredSet, load_set, set_name
from fedstill.scaling import Scaling
from fedstill.types import Params


@dataclass(frozen=True)
class Inputs:
    """What the run's records look like: how new ones are turned into inputs of the network."""

    shape: tuple[int, ...]  # of one record
    dtype: torch.dtype  # uint8: images
    scaling: Scaling
    class_names: tuple[str, ...]

    @staticmethod
    def of(data: Dataset) -> "Inputs":
        """Those of a data set."""
        return Inputs(data.shape, data.train.inputs.dtype, data.scaling, data.class_names)

    def __call__(self, x: Any) -> Tensor:
        """Inputs of the network [N, ...] from records as they were trained on.

        One record or several; a channel of 1 may be left out, and channels may come last. Images
        are bytes 0..255, or floats 0..1.
        """
        records = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x))
        return self.scaling(self._typed(self._shaped(records)))

    def _shaped(self, x: Tensor) -> Tensor:
        for records in (x, x[None]):
            if tuple(records.shape[1:]) == self.shape:
                return records
            if self.shape[:1] == (1,) and tuple(records.shape[1:]) == self.shape[1:]:
                return records[:, None]
            if len(self.shape) == 3 and records.dim() == 4:
                turned = records.movedim(3, 1)
                if tuple(turned.shape[1:]) == self.shape:
                    return turned
        raise RequestError(
            f"predict: x has shape {tuple(x.shape)}, the run's records have shape {self.shape}"
        )

    def _typed(self, x: Tensor) -> Tensor:
        if x.is_floating_point() == self.dtype.is_floating_point:
            return x.to(self.dtype)
        if self.dtype == torch.uint8 and x.numel() and 0 <= float(x.min()) <= float(x.max()) <= 1:
            return x.float()  # the scaling divides bytes alone by 255
        wanted = "bytes 0..255, or floats 0..1" if self.dtype == torch.uint8 else str(self.dtype)
        raise RequestError(f"predict: x holds {x.dtype}; the run's records are {wanted}")


@dataclass(frozen=True, repr=False)
class Result:
    """What a run gave: numbers, weights, synthetic sets, and the folder that holds everything.

    It stands for its folder: ``fedstill.evaluate(result)``, ``fedstill.compare([a, b])``.
    """

    folder: Path
    summary: Summary
    metrics: list[RoundMetrics]  # one per round
    model: Model
    params: Params  # the weights
    inputs: Inputs

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    def predict(self, x: Any) -> NDArray[np.int64]:
        """The most probable class of each record, as a number; ``class_names`` has the names.

        ``x`` is an array or tensor of records as the run's: it is scaled as they were. Of a text,
        the next token at each position.
        """
        classes: NDArray[np.int64] = self._logits(x).argmax(-1).cpu().numpy()
        return classes

    def predict_proba(self, x: Any) -> NDArray[np.float32]:
        """The probability of every class, for each record."""
        probabilities: NDArray[np.float32] = self._logits(x).softmax(-1).cpu().numpy()
        return probabilities

    @torch.no_grad()
    def _logits(self, x: Any) -> Tensor:
        device = next(iter(self.params.values())).device
        chunks = self.inputs(x).split(self.model.chunk)
        return torch.cat(
            [self.model.inference(self.params, chunk.to(device))[-1] for chunk in chunks]
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, by their numbers."""
        return self.inputs.class_names

    def module(self) -> nn.Module:
        """The trained network as an ``nn.Module``, a copy in evaluation mode.

        Its inputs are scaled: ``result.module()(result.inputs(x))`` gives the logits of ``x``.
        """
        return self.model.module(self.params).eval()

    def synthetic(self, round: int | None = None) -> StoredSet:
        """The synthetic sets of a round, by default the last one: a torch ``Dataset``."""
        folder = self.folder / "synthetic"
        if round is None:
            return load_set(self.folder)
        if not (folder / set_name(round)).exists():
            kept = sorted(int(p.stem.rpartition("-")[2]) for p in folder.glob("round-*"))
            shown = f"there are those of rounds {_listed(kept)}" if kept else "there are none"
            raise RequestError(f"synthetic: no set of round {round}; {shown}")
        return load_set(folder / set_name(round))

    def picture(self, round: int | None = None, client: int | None = None) -> Image.Image:
        """The synthetic images of a round, as ``fedstill show`` draws them: of all clients, or all
        images of one. A notebook shows it; ``picture().save("images.png")`` writes it."""
        return picture(self.synthetic(round), client)

    def records(self) -> list[dict[str, Any]]:
        """``metrics`` as plain records, one per round, the method's own numbers included."""
        return [_record(metrics) for metrics in self.metrics]

    def frame(self) -> Any:
        """``metrics`` as a pandas ``DataFrame``, one row per round."""
        try:
            import pandas
        except ImportError as error:
            raise RequestError(
                "frame: pandas is not installed; pip install pandas, or use records()"
            ) from error
        return pandas.DataFrame(self.records()).set_index("round")

    def plot(self, by: str = "round") -> Plot:
        """Test accuracy by ``"round"``, uploaded ``"bytes"`` or ``"seconds"``.

        A notebook shows it; ``plot().save("accuracy.svg")`` (or ``.png``) writes it.
        """
        if by not in _AXES:
            raise RequestError(f"plot: no axis '{by}'{did_you_mean(by, _AXES)}")
        label, text = _AXES[by]
        places, up, seconds = [], 0.0, 0.0
        for m in self.metrics:
            up, seconds = up + m.up_bytes, seconds + m.seconds
            if m.accuracy is not None:
                at = {"round": float(m.round), "bytes": up, "seconds": seconds}[by]
                places.append((at, m.accuracy))
        title = f"{self.summary.method} on {self.summary.data}: test accuracy"
        return Plot(Figure(title, label, "accuracy", [Series("", places)], text))

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write the run as one HTML page, by default ``report.html`` in its folder; its path."""
        return write_report(self.folder, Path(out) if out is not None else None)

    def __repr__(self) -> str:
        return f"<Result {'; '.join(f'{k} {v}' for k, v in self._shown().items())}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the numbers, and accuracy by round."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._shown().items()
        )
        figure = self.plot().svg if any(m.accuracy is not None for m in self.metrics) else ""
        return f"<table>{rows}</table><div style='max-width:640px'>{figure}</div>"

    def _shown(self) -> Mapping[str, str]:
        s = self.summary
        shown = {
            "run": f"{s.method} on {s.data}, {counted(s.clients, 'client')}, {s.partition}",
            "accuracy": in_percent(s.accuracy),
            "rounds": f"{s.rounds_done} ({s.status})",
            "sent": f"{in_bytes(s.up_bytes)} up, {in_bytes(s.down_bytes)} down",
            "time": in_time(s.seconds),
        }
        if s.privacy is not None:
            shown["privacy"] = f"epsilon {s.epsilon or 0:.2f}, delta {s.delta:g}"
        return {**shown, "folder": str(self.folder)}


_AXES = {
    "round": ("round", whole),
    "bytes": ("uploaded", in_bytes),
    "seconds": ("time", in_time),
}


def _record(metrics: RoundMetrics) -> dict[str, Any]:
    return {
        "round": metrics.round,
        "accuracy": metrics.accuracy,
        "loss": metrics.loss,
        "up_bytes": metrics.up_bytes,
        "down_bytes": metrics.down_bytes,
        "seconds": metrics.seconds,
        "epsilon": metrics.epsilon,
        "clients": len(metrics.clients),
        "failed": len(metrics.failed),
        **metrics.details,
    }


def _listed(numbers: list[int]) -> str:
    if len(numbers) > 8:
        return f"{numbers[0]} to {numbers[-1]} ({len(numbers)} of them)"
    return ", ".join(map(str, numbers))
