"""The built-in data set: 1,797 real handwritten digits of 8x8 pixels, shipped in the package.

The images are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak (UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), as
scikit-learn ships them. Changed here: the grey values 0..16 are stretched to 0..255.

The records have no official split, so ours is fixed once and for all: every fifth record
(index % 5 == 4) is a test record, whatever the seed. That gives 1,438 training and 359 test
records.
"""

from importlib.resources import as_file, files

import numpy as np
import torch

from fedstill.records import Split

CLASS_NAMES = tuple("0123456789")


def load_digits() -> tuple[Split, Split]:
    """The training and the test split: uint8 images [N, 1, 8, 8] and labels 0..9."""
    with as_file(files("fedstill.data") / "digits.npz") as path, np.load(path) as archive:
        images = torch.from_numpy(archive["images"])
        labels = torch.from_numpy(archive["labels"].astype(np.int64))
    held_out = torch.arange(len(labels)) % 5 == 4
    train = Split(images[~held_out].contiguous(), labels[~held_out].contiguous())
    test = Split(images[held_out].contiguous(), labels[held_out].contiguous())
    return train, test
