"""Refusing a wrong request before PyTorch is imported.

``resolve`` checks everything and stays the authority. What is checked here is a part of it, in the
same words, from ``index.json`` in place of the classes: names, keys, types and ranges, and whether
the data are where the request says. It lets a user correct a typing error in a third of a second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.config.experiment import Experiment
from fedstill.config.index import Entry, index
from fedstill.config.nested import convert
from fedstill.config.request import spelled_out
from fedstill.data.local import refuse_absent
from fedstill.errors import RequestError, did_you_mean


def refuse_early(request: Mapping[str, Any]) -> None:
    """Refuse this request, if that can be done without the classes it names."""
    table = spelled_out(request)
    experiment = convert({"method": {}, **table}, Experiment, "")
    if experiment.privacy is not None:
        experiment.privacy.check()
    if "name" not in experiment.method:
        raise RequestError("method: which one? `fedstill list methods` shows them")
    _refuse_section("method", experiment.method, index().methods)
    if "model" in table:
        refuse_model(experiment.model)
    if "partition" in table:
        from fedstill.data.partition.rules import parse_partition  # here: it imports NumPy

        parse_partition(experiment.partition)
    if ":" not in experiment.method["name"]:  # a user's own may prefer other data
        refuse_absent(experiment.data)


def model_names(given: str | Sequence[str] | None) -> list[str] | None:
    """Names of networks, in a list or between commas. Unknown ones are refused."""
    if given is None:
        return None
    listed = given.split(",") if isinstance(given, str) else given
    names = [name for each in listed if (name := each.strip())]
    for name in names:
        refuse_model({"name": name})
    return names


def refuse_model(section: Mapping[str, Any]) -> None:
    """Refuse a ``[model]`` section whose name or settings are not known."""
    _refuse_section("model", section, index().models)


def _refuse_section(kind: str, section: Mapping[str, Any], known: Mapping[str, Entry]) -> None:
    name = section.get("name")
    if name is None or (isinstance(name, str) and ":" in name):
        return  # a default, or a user's own: its settings are known when it is imported
    if not isinstance(name, str):
        raise RequestError(f"{kind}.name: expected str (it is {name!r})")
    if name not in known:
        raise RequestError(f"{kind}: no {kind} '{name}'{did_you_mean(name, known)}")
    settings = {key: value for key, value in section.items() if key != "name"}
    convert(settings, known[name].settings_class(), kind)
