"""Records as the vectors of a fixed feature map: computed once per record, and kept on disk."""

import dataclasses

import torch
from torch import Tensor

from fedstill.data.cache import cached
from fedstill.data.dataset import Dataset
from fedstill.data.decoded import Decoded
from fedstill.features import FeatureMap
from fedstill.records import Split
from fedstill.scaling import Scaling


def mapped(dataset: Dataset, features: FeatureMap, device: torch.device, alone: bool) -> Dataset:
    """The data set with vectors for inputs. ``alone``: the map gets one record at a time, because
    it might mix records and privacy is on."""

    def vectors(split: Split) -> Split:
        chunk = 1 if alone else features.chunk
        inputs = split.inputs
        made = torch.empty(len(inputs), features.size)
        for rows, part in zip(made.split(chunk), inputs.split(chunk), strict=True):
            rows.copy_(_vectors(features, dataset.scaling(part.to(device)), alone))
        return Split(made, split.labels.clone())

    def both() -> Decoded:
        with torch.no_grad():
            return Decoded(vectors(dataset.train), vectors(dataset.test), dataset.class_names)

    if not len(dataset.train) and not len(dataset.test):  # a node that has opened no records
        return _with(dataset, both())
    raw = Decoded(dataset.train, dataset.test, dataset.class_names).fingerprint()
    made_from = {"records": raw, "scaling": str(dataset.scaling), "features": features.fingerprint}
    kept, _ = cached("features", (), {**made_from, "device": device.type, "alone": alone}, both)
    return _with(dataset, kept)


def _with(dataset: Dataset, made: Decoded) -> Dataset:
    train = dataclasses.replace(dataset.train, inputs=made.train.inputs)
    test = dataclasses.replace(dataset.test, inputs=made.test.inputs)
    return dataclasses.replace(dataset, train=train, test=test, scaling=Scaling((), ()))


def _vectors(features: FeatureMap, x: Tensor, alone: bool) -> Tensor:
    """A vector that is not finite becomes zero, and so does one that cannot be computed where
    privacy is on: no record may decide whether a release exists."""
    try:
        vectors = features(x)
    except Exception:
        if not alone:
            raise
        return torch.zeros(len(x), features.size)
    good = torch.isfinite(vectors).all(1, keepdim=True)
    return torch.where(good, vectors, 0.0)
