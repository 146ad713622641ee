"""The table of methods. Adding one is one file and one line here."""

import inspect
from dataclasses import is_dataclass
from typing import Any

from fedstill.errors import RequestError
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
from fedstill.registry import import_object, refuse_unknown

METHODS: dict[str, type[Any]] = {
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
}

_PROTOCOL = (
    "init",
    "init_client",
    "download",
    "upload",
    "broadcast",
    "client",
    "server",
    "params",
)


def find_method(name: str) -> type[Any]:
    """The method called ``name``, or a user's own as ``package.module:Class``."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise refuse_unknown("method", "method", name, METHODS)
    found = import_object("method", name)
    missing = [f for f in _PROTOCOL if not callable(getattr(found, f, None))]
    if missing:
        raise RequestError(f"method: '{name}' is not a method class: it lacks {missing[0]}()")
    if not inspect.isclass(found) or not is_dataclass(found):
        raise RequestError(f"method: '{name}' is not a frozen dataclass, as methods are")
    return found


def describe_method(cls: type[Any]) -> str:
    """One line about a method: the first of its docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]
