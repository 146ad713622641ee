"""Fixed public maps from a record to a vector: the table, and how one is made."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedstill.errors import RequestError, did_you_mean
from fedstill.features.backbone import Backbone
from fedstill.features.base import FeatureMap, unit
from fedstill.features.orientation import Orientation
from fedstill.features.pixels import Pixels
from fedstill.features.project import Projected
from fedstill.features.random import RandomNetworks
from fedstill.features.scatter import Scatter
from fedstill.imports import import_object

__all__ = ["FEATURES", "Backbone", "FeatureMap", "make_features", "projected", "unit"]

AUTO = "auto"


@dataclass(frozen=True)
class FeatureEntry:
    """An entry of the table: how the map is made for a shape and a seed, and a description."""

    make: Callable[[tuple[int, ...], int], FeatureMap]
    description: str


FEATURES: dict[str, FeatureEntry] = {
    "orientation": FeatureEntry(
        lambda shape, seed: Orientation(shape), "edges by orientation in 7x7 cells: 392 numbers"
    ),
    "pixels": FeatureEntry(
        lambda shape, seed: Pixels(shape), "the inputs themselves: also for tables"
    ),
    "random": FeatureEntry(
        RandomNetworks, "outputs of two random convolutional networks of width 32"
    ),
    "scatter": FeatureEntry(
        lambda shape, seed: Scatter(shape), "wavelet scattering of orders 0 to 2"
    ),
    "wavelets": FeatureEntry(
        lambda shape, seed: Scatter(shape, second=False), "the same, orders 0 and 1: shorter"
    ),
}


def make_features(name: str, shape: tuple[int, ...], seed: int = 0) -> FeatureMap:
    """The map of this name for inputs of this shape.

    ``auto``: ``scatter`` for images, ``pixels`` for others. ``package.module:make`` is called
    without arguments and returns an ``nn.Module``, whose weights are kept.
    """
    if name == AUTO:
        name = "scatter" if len(shape) == 3 and min(shape[1:]) >= 8 else "pixels"
    if ":" in name:
        module = import_object("model.feature_map", name)
        if not isinstance(module, nn.Module):
            module = module()
        if not isinstance(module, nn.Module):
            raise RequestError(f"model.feature_map: {name} made no nn.Module")
        return Backbone(module, shape)
    if name not in FEATURES:
        raise RequestError(f"model.feature_map: no features '{name}'{did_you_mean(name, FEATURES)}")
    return FEATURES[name].make(shape, seed)


def projected(features: FeatureMap, size: int | None, seed: int = 0) -> FeatureMap:
    """The same followed by a random projection to ``size`` numbers; ``None``: as it is."""
    if size is None:
        return features
    if size >= features.size:
        raise RequestError(
            f"model.projection: {size} is not less than the {features.size} numbers of the "
            "features; choose less, or leave it out"
        )
    return Projected(features, size, seed)
