"""Synthetic sets in formats that other tools read: ``fedstill export SET --to FORM``.

| form | what is written |
|---|---|
| ``folder`` | one folder of PNG files per class, the usual image folder |
| ``parquet`` | one file with the columns ``image`` (PNG bytes), ``label`` and ``client`` |
| ``npz`` | exact values: ``x`` as the networks saw them, ``y``, ``client`` and the scaling |
| ``hf`` | a Hugging Face data set: ``data/train-*.parquet`` and a card; ``load_dataset(OUT)`` |

Images have 8 bits per channel: the scaling is undone and values are clipped to 0..1. Only
``npz`` keeps every bit.
"""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedstill.errors import RequestError, did_you_mean
from fedstill.files import replacing, write_atomically
from fedstill.runs.sets import StoredSet

_UNSAFE = re.compile(r"[^\w. -]")  # in the name of a folder


def export_set(stored: StoredSet, form: str, out: Path) -> list[Path]:
    """Write the set to ``out``; the files written. Existing files are not overwritten."""
    write = FORMS.get(form)
    if write is None:
        raise RequestError(f"--to: no form '{form}'{did_you_mean(form, FORMS)}")
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise RequestError(f"--out: {out} already exists; choose another path")
    return write(stored, out)


def _folder(stored: StoredSet, out: Path) -> list[Path]:
    names = _folder_names(stored.metadata.class_names)
    written = []
    clients = stored.clients.tolist()
    for row, (label, data) in enumerate(zip(stored.classes.tolist(), _pngs(stored), strict=True)):
        written.append(out / names[label] / f"client-{clients[row]:03d}-{row:05d}.png")
        write_atomically(written[-1], data)
    return written


def _folder_names(class_names: tuple[str, ...]) -> list[str]:
    """Names that are safe as folders and still distinct."""
    plain = [_UNSAFE.sub("_", name).strip(". ") or "_" for name in class_names]
    # "a/b" and "a:b" must not share a folder, nor "A" and "a" on a case-insensitive disk.
    seen = [name.lower() for name in plain]
    return [
        f"{name}-{number}" if seen.count(name.lower()) > 1 else name
        for number, name in enumerate(plain)
    ]


def _parquet(stored: StoredSet, out: Path) -> list[Path]:
    _write_parquet(stored, out)
    return [out]


def _hugging_face(stored: StoredSet, out: Path) -> list[Path]:
    data = out / "data" / "train-00000-of-00001.parquet"
    _write_parquet(stored, data)
    card = out / "README.md"
    write_atomically(card, _card(stored).encode())
    return [data, card]


def _write_parquet(stored: StoredSet, path: Path) -> None:
    import pyarrow as pa  # slow to import
    import pyarrow.parquet as pq

    images = [{"bytes": data, "path": None} for data in _pngs(stored)]
    columns: dict[str, Any] = {
        "image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        "label": pa.array(stored.classes.tolist(), pa.int64()),
        "client": pa.array(stored.clients.tolist(), pa.int32()),
    }
    features: dict[str, Any] = {
        "image": {"_type": "Image"},
        "label": {"names": list(stored.metadata.class_names), "_type": "ClassLabel"},
        "client": {"dtype": "int32", "_type": "Value"},
    }
    if stored.labels.is_floating_point():
        kind = pa.list_(pa.float32())
        columns["label_distribution"] = pa.array(stored.labels.tolist(), kind)
        value = {"dtype": "float32", "_type": "Value"}
        features["label_distribution"] = {"feature": value, "_type": "List"}
    table = pa.table(columns)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary)


def _card(stored: StoredSet) -> str:
    metadata = stored.metadata
    name = json.dumps(
        f"{metadata.method} on {metadata.data}, round {metadata.round}"
    )  # quoted YAML
    return (
        f"---\npretty_name: {name}\ntask_categories: [image-classification]\n"
        "configs:\n- config_name: default\n  data_files:\n"
        "  - split: train\n    path: data/train-*\n---\n\n"
        f"# {len(stored)} synthetic images\n\n"
        f"Distilled by `fedstill` with the method {metadata.method} from {metadata.data} "
        f"(round {metadata.round}, {len(stored.clients.unique())} clients). `label` is the class, "
        "`client` the client that made the image. Pixels have 8 bits; the networks saw exact "
        f"values, scaled with mean {list(metadata.mean)} and standard deviation "
        f"{list(metadata.std)}.\n\n"
        "Synthetic does not mean private: unless the run that made it had a privacy budget, an "
        "image may show a record.\n"
    )


def _npz(stored: StoredSet, out: Path) -> list[Path]:
    metadata = stored.metadata
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            x=stored.images.numpy(),
            y=stored.labels.numpy(),
            client=stored.clients.numpy(),
            class_names=np.array(metadata.class_names, dtype=np.str_),
            mean=np.array(metadata.mean, dtype=np.float32),
            std=np.array(metadata.std, dtype=np.float32),
        )
    return [out]


def _pngs(stored: StoredSet) -> list[bytes]:
    shape = stored.metadata.shape
    if len(shape) != 3 or shape[0] not in (1, 3, 4):
        text = "x".join(map(str, shape))
        raise RequestError(
            f"{stored.metadata.data}: inputs of shape {text} are not images; use --to npz"
        )
    pixels = (stored.metadata.scaling.undo(stored.images).clamp(0, 1) * 255).round().byte()
    encoded = []
    for image in pixels.permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image.squeeze(2) if shape[0] == 1 else image).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    return encoded


FORMS: dict[str, Callable[[StoredSet, Path], list[Path]]] = {
    "folder": _folder,
    "parquet": _parquet,
    "npz": _npz,
    "hf": _hugging_face,
}
