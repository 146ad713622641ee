"""Other leaks, refused before the run: each with its reason and its remedy."""

import torch

from fedstill.data.catalogue import SOURCES
from fedstill.data.dataset import Dataset
from fedstill.errors import RequestError
from fedstill.models.separate import Separate
from fedstill.privacy.settings import PrivacySettings
from fedstill.private import PrivateForm
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.types import AnyMethod, Task

_PROBES = (3, 9, 65)  # records in a batch


def private_form_of(method: AnyMethod, name: str, rate: float) -> PrivateForm:
    """The method's private form; a method without one is refused."""
    form = method.private_form(rate)
    if form is None:
        raise RequestError(
            f"privacy: {name} has no private form: it would read the records directly; choose a "
            "method that has one (`fedstill list methods` marks them), or drop [privacy]"
        )
    return form


def refuse_partial_start(name: str, rate: float) -> None:
    """Refuse samples in a run that starts with statistics: they are releases of all records, and
    one ledger counts accesses of one kind."""
    if rate < 1:
        raise RequestError(
            f"privacy.sampling_rate = {rate:g}: '{name}', with which the run starts, reads all "
            "records at once, and all accesses of a run are alike; leave it out, or set it to 1"
        )


def refuse_leaks(
    settings: PrivacySettings, form: PrivateForm, method: AnyMethod, task: Task, data: Dataset
) -> None:
    """Refuse a run whose settings would leak records besides the noisy releases."""
    of_sizes = method.size_leaks if settings.public_size is None else ()
    for leak in (*form.leaks, *of_sizes):
        raise RequestError(f"method.{leak.setting} = {leak.value}: {leak.why}; {leak.remedy}")
    if settings.scaling != "public" and not _known(data):
        raise RequestError(
            f"data.mean = {list(data.scaling.mean)}, data.std = {list(data.scaling.std)}: if these "
            "were computed from the records they leak them without noise; if they were not, set "
            "privacy.scaling = 'public', else drop them"
        )
    refuse_fitted_columns(data)
    largest = max(settings.sizes(task.clients, data.name))
    if settings.delta >= 1 / largest:
        raise RequestError(
            f"privacy.delta = {settings.delta:g}: at 1/{largest} or more, publishing a random "
            f"record would count as private; choose less, e.g. {0.1 / largest:.0e}"
        )
    refuse_mixing(task)


_DECLARATIONS = {
    "ranges": ("its range", "= [low, high]"),
    "categories": ("its categories", "= [...]"),
    "missing": ("whether values are missing", ""),
}


def refuse_fitted_columns(data: Dataset) -> None:
    """Refuse features whose meaning was computed from the records: whatever the noise, the range of
    a column reveals its extremes."""
    fitted = [column for column in data.columns if column.undeclared]
    if not fitted:
        return
    first = fitted[0]
    what, form = _DECLARATIONS[first.undeclared]
    more = f" (and {len(fitted) - 1} more columns)" if len(fitted) > 1 else ""
    remedy = f"data.{first.undeclared}.{first.name} {form}"
    if first.undeclared == "missing":
        remedy = f"data.missing = ['{first.name}'], or [] for no column"
    raise RequestError(
        f"data.{first.undeclared}: column '{first.name}'{more}: {what} was computed from the "
        f"records, which leaks them without noise; declare what is publicly known: {remedy}"
    )


def refuse_mixing(task: Task) -> None:
    """Refuse a network that visibly mixes records, rather than compute it record by record: its
    author means it to see batches."""
    if mixes_records(task):
        raise RequestError(
            "model: its output for one record depends on the other records of the batch (batch "
            "norm?), so one record would change every gradient of a batch and clipping would bound "
            "nothing; use group or instance norm"
        )


def _known(data: Dataset) -> bool:
    """Whether the constants are published, or the same for all data: not from the records."""
    channels = len(data.scaling.mean)
    source = SOURCES.get(data.name)
    neutral = Scaling((0.5,) * channels, (0.5,) * channels)
    return data.scaling in (neutral, Scaling((), ())) or (
        source is not None and data.scaling == source.scaling
    )


@torch.no_grad()
def mixes_records(task: Task) -> bool:
    """Whether the network's outputs for a record depend on the other records in the batch.

    Tested on random inputs, so that it works for any user-supplied network. What it does not find
    is harmless: a network that is not our own gets one record at a time (``models/separate.py``).
    """
    model = task.model.model if isinstance(task.model, Separate) else task.model
    rng = Rng(0).at("probe")
    params = {k: v.to(task.device) for k, v in model.init(rng.torch()).items()}
    most = max(_PROBES)
    x = torch.randn((most, *task.shape), generator=rng.at("inputs").torch()).to(task.device)
    try:
        alone = model.features(params, x[:1])
    except (RuntimeError, IndexError, TypeError):  # it takes tokens
        ones = torch.ones((most, *task.shape), dtype=torch.int64, device=task.device)
        x = torch.cat([torch.zeros_like(ones[:1]), ones[1:]])
        alone = model.features(params, x[:1])
    return not all(
        torch.allclose(a[:1].float(), b.float(), rtol=1e-3, atol=1e-4)
        for records in _PROBES
        for a, b in zip(model.features(params, x[:records]), alone, strict=True)
    )
