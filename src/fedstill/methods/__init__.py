"""The table of methods. Adding one is one file and one line here."""

import inspect

from fedstill.methods.analytic import Analytic
from fedstill.methods.central import Central
from fedstill.methods.distdd import DistDD
from fedstill.methods.dynafed import DynaFed
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.feddm import FedDM
from fedstill.methods.feddualmatch import FedDualMatch
from fedstill.methods.fedgloss import FedGloss
from fedstill.methods.fednova import FedNova
from fedstill.methods.fedprox import FedProx
from fedstill.methods.fedsgd import FedSGD
from fedstill.methods.fedsynth import FedSynth
from fedstill.methods.gm import GM
from fedstill.methods.local_gm import LocalGM
from fedstill.methods.psg import PSG
from fedstill.methods.random_mask import RandomMask
from fedstill.methods.real import Real
from fedstill.methods.scaffold import Scaffold
from fedstill.methods.sketch import Sketch
from fedstill.types import AnyMethod

METHODS: dict[str, type[AnyMethod]] = {
    "analytic": Analytic,
    "central": Central,
    "distdd": DistDD,
    "dynafed": DynaFed,
    "fedavg": FedAvg,
    "feddm": FedDM,
    "feddualmatch": FedDualMatch,
    "fedgloss": FedGloss,
    "fednova": FedNova,
    "fedprox": FedProx,
    "fedsgd": FedSGD,
    "fedsynth": FedSynth,
    "gm": GM,
    "local-gm": LocalGM,
    "psg": PSG,
    "random-mask": RandomMask,
    "real": Real,
    "scaffold": Scaffold,
    "sketch": Sketch,
}

STARTS = (
    "analytic",
    "sketch",
)  # statistics in one round: a run of another method may start with one


def describe_method(cls: type[AnyMethod]) -> str:
    """One line about a method: the first of its docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]
