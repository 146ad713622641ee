"""Eight forms of the same records, as users have them on disk: a program for a fresh environment.

Three digits of three hospitals, from the built-in data; the words are what a user would write.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedstill.data import DataSettings, load

HOSPITALS = ("east", "north", "west")
KINDS = ("round", "straight", "bent")  # the digits 0, 1 and 2
digits = load(DataSettings("digits")).train
chosen = np.flatnonzero(digits.labels.numpy() < len(KINDS))[:360]
images = digits.inputs.numpy()[chosen, 0]
labels = digits.labels.numpy()[chosen]
owners = [HOSPITALS[i % 3] for i in range(len(labels))]
kinds = [KINDS[label] for label in labels]
columns = [f"pixel{i}" for i in range(64)]
rows = [[*image.ravel().tolist(), kind] for image, kind in zip(images, kinds, strict=True)]


def write_csv(path: Path, header: list[str], body: Sequence[Sequence[object]]) -> None:
    """One table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *body])


def write_png(path: Path, image: np.ndarray) -> None:
    """One image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


named = []
for i, (image, kind, owner) in enumerate(zip(images, kinds, owners, strict=True)):
    split = "test" if i % 5 == 0 else "train"
    write_png(Path("photos") / kind / f"{i}.png", image)
    write_png(Path("split") / split / kind / f"{i}.png", image)
    write_png(Path("sites") / owner / kind / f"{i}.png", image)
    named.append([f"photos/{kind}/{i}.png", kind, owner])
write_csv(Path("index.csv"), ["photo", "kind", "hospital"], named)
owned = [[*row, owner] for row, owner in zip(rows, owners, strict=True)]
write_csv(Path("table.csv"), [*columns, "kind", "hospital"], owned)
for hospital in HOSPITALS:
    part = [row[:-1] for row in owned if row[-1] == hospital]
    write_csv(Path("hospitals") / f"{hospital}.csv", [*columns, "kind"], part)
encoded = [{"bytes": Path(path).read_bytes()} for path, *_ in named]
table = pa.table({"image": encoded, "label": kinds, "hospital": owners})
pq.write_table(table, "images.parquet")
cut = len(labels) * 4 // 5
parts = {"x_train": images[:cut], "x_test": images[cut:]}
np.savez("arrays.npz", **parts, y_train=labels[:cut], y_test=labels[cut:])
