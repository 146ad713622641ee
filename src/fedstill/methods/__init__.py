"""The table of methods. Adding one is one file and one line here (and `make index`)."""

import inspect
from typing import TYPE_CHECKING

from fedstill.imports import LazyTable

if TYPE_CHECKING:
    from fedstill.types import AnyMethod

METHODS: "LazyTable[type[AnyMethod]]" = LazyTable(
    {
        "analytic": "fedstill.methods.analytic:Analytic",
        "central": "fedstill.methods.central:Central",
        "distdd": "fedstill.methods.distdd:DistDD",
        "dynafed": "fedstill.methods.dynafed:DynaFed",
        "fedavg": "fedstill.methods.fedavg:FedAvg",
        "feddm": "fedstill.methods.feddm:FedDM",
        "feddualmatch": "fedstill.methods.feddualmatch:FedDualMatch",
        "fedgloss": "fedstill.methods.fedgloss:FedGloss",
        "fednova": "fedstill.methods.fednova:FedNova",
        "fedprox": "fedstill.methods.fedprox:FedProx",
        "fedsgd": "fedstill.methods.fedsgd:FedSGD",
        "fedsynth": "fedstill.methods.fedsynth:FedSynth",
        "gm": "fedstill.methods.gm:GM",
        "local-gm": "fedstill.methods.local_gm:LocalGM",
        "psg": "fedstill.methods.psg:PSG",
        "random-mask": "fedstill.methods.random_mask:RandomMask",
        "real": "fedstill.methods.real:Real",
        "scaffold": "fedstill.methods.scaffold:Scaffold",
        "sketch": "fedstill.methods.sketch:Sketch",
    }
)

STARTS = (
    "analytic",
    "sketch",
)  # statistics in one round: a run of another method may start with one


def describe_method(cls: "type[AnyMethod]") -> str:
    """One line about a method: the first of its docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]
