"""What a run says before its first round: what was chosen for the user, and what may go wrong."""

from collections.abc import Iterator

from fedstill.build import BuiltExperiment
from fedstill.draw.numbers import counted
from fedstill.errors import printable
from fedstill.privacy.noise_share import noise_in_means

_MOST_OWNERS, _LONGEST_OWNER = 6, 40  # names of owners in a run's first line, and their characters

# Points of accuracy that noise costs `analytic` on MNIST, by its length in a class mean
# (docs/measurements.md, "Statistics in one round").
_LOST_ON_MNIST = ((0.15, 7), (0.28, 12), (0.53, 30), (1.2, 39))


def notes(built: BuiltExperiment, first: bool) -> Iterator[str]:
    """The notes of this run, one by one; ``first``: it has not begun before."""
    found = (
        _choices(built),
        _private_defaults(built),
        _plan(built),
        _first_round(built) if first else None,
        built.model.start_note if first else None,
        built.method.start_note if first else None,
        _small_rounds(built),
        _noise(built),
    )
    yield from filter(None, found)


def owners(built: BuiltExperiment) -> str | None:
    """Whose records became clients; of a private run not by name."""
    data = built.dataset
    if built.experiment.partition != "natural" or built.method.pooled:
        return None
    names = [printable(name) for name in data.group_names[: built.partition.clients]]
    if built.plan is not None or not names or max(map(len, names)) > _LONGEST_OWNER:
        return f"one per {data.owned_by or 'owner'}"
    shown = ", ".join(names[:_MOST_OWNERS]) + (", ..." if len(names) > _MOST_OWNERS else "")
    return f"one per {data.owned_by or 'owner'} ({shown})"


def _private_defaults(built: BuiltExperiment) -> str | None:
    """The settings that are the method's defaults for private runs, to be shown to the user."""
    defaults = built.method.PRIVATE_DEFAULTS if built.plan else {}
    settings = built.experiment.method
    kept = [f"{k} = {v}" for k, v in defaults.items() if settings.get(k) == v]
    return f"defaults of a private run: {', '.join(kept)}" if kept else None


def _small_rounds(built: BuiltExperiment) -> str | None:
    """A participation that leaves one client per round, to be shown to the user."""
    candidates, share = len(built.candidates), built.experiment.participation
    if share == 1.0 or candidates == 1 or built.clients_per_round > 1:
        return None
    return f"participation = {share:g} of {candidates} clients is one client per round"


def _choices(built: BuiltExperiment) -> str | None:
    """What was chosen for the user: by the method (how sets are sent), or by the data."""
    chosen = {f"method.{k}": v for k, v in built.method.choices(built.task).items()}
    if built.method.sends_sets:
        chosen = {"wire.up": built.experiment.wire.up, **chosen}
    return ", ".join(f"{key} = {value}" for key, value in chosen.items()) or None


def _first_round(built: BuiltExperiment) -> str | None:
    """That another method makes the first round."""
    if built.start is None:
        return None
    return f"round 1 is {built.name_in(1)}'s: {built.name_in(2)} goes on from its weights"


def _plan(built: BuiltExperiment) -> str | None:
    """How the budget of a private run is spent, and why like this."""
    plan = built.plan
    if plan is None:
        return None
    each = "all records" if plan.rate == 1 else f"samples of {plan.rate:.3g} of the records"
    first = "" if plan.first is None else f" (the first round: {plan.first})"
    why = (
        "a sum over all records has the least noise for its cost, and serves many steps"
        if plan.rate == 1
        else "small samples cost less each, which suits a method that needs a new sum for each step"
    )
    return (
        f"plan: {counted(plan.accesses, 'access')} per client and round{first}, to {each}, with "
        f"sigma {plan.sigma:.3g}: {why}"
    )


def _noise(built: BuiltExperiment) -> str | None:
    """How much of a released statistic is noise, where it is too much for a useful answer."""
    plan, method = built.plan, built.method_in(1)
    size = method.statistic_size(built.task) if plan else None
    if plan is None or size is None:
        return None
    noise = noise_in_means(plan, size)
    cost = max((points for least, points in _LOST_ON_MNIST if noise >= least), default=None)
    if cost is None:
        return None
    return (
        f"warning: the noise in a class mean will be {noise:.2g} times as long as the vectors "
        f"that it is a mean of; on MNIST that much cost about {cost} points of accuracy; raise "
        f"epsilon, or use shorter vectors (they have {size} numbers)"
    )
