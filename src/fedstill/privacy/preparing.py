"""From a request with a ``[privacy]`` section to a run that keeps to a plan, or is refused."""

from dataclasses import replace

from fedstill.privacy.guards import private_form_of, refuse_leaks
from fedstill.privacy.plan import PrivatePlan, make_plan
from fedstill.setup import Setup


def prepared(setup: Setup) -> Setup:
    """The same experiment with its plan, sigma decided; untouched where privacy is off."""
    settings = setup.experiment.privacy
    if settings is None:
        return setup
    sizes = settings.sizes(setup.partition.clients, setup.dataset.name)
    rate = settings.rate(sizes)
    form = private_form_of(setup.method, setup.experiment.method["name"], rate)
    refuse_leaks(settings, form, setup.method, setup.task, setup.dataset)
    classes = _held(setup) if settings.classes == "declared" else _all(setup)
    plan = make_plan(settings, form, rate, sizes, classes, _turns(setup))
    # In the configuration from now on: a resumed run must not solve for another one.
    experiment = replace(setup.experiment, privacy=replace(settings, sigma=plan.sigma))
    return replace(setup, experiment=experiment, plan=plan)


def in_words(plan: PrivatePlan | None) -> str | None:
    """What a run's epsilon stands for."""
    if plan is None:
        return None
    if plan.reproducible:
        return (
            "NOT PRIVATE: the noise comes from the seed (privacy.reproducible), so whoever knows "
            "it can take the noise away; epsilon is what the same run would cost without it"
        )
    return (
        f"epsilon at delta {plan.delta:g} for adding or removing one record, worst client, of all "
        f"it ever sent: Poisson samples at q {plan.rate:g}, clip {plan.clip:g}, Gaussian noise of "
        f"sigma {plan.sigma:g} times the clip"
    )


def private_defaults(setup: Setup) -> str | None:
    """Which settings of the method are as private runs have them: said aloud, not just done."""
    defaults = getattr(setup.method, "PRIVATE_DEFAULTS", {}) if setup.plan else {}
    kept = [f"{k} = {v}" for k, v in defaults.items() if getattr(setup.method, k) == v]
    return f"settings of a private run: {', '.join(kept)}" if kept else None


def _all(setup: Setup) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(setup.dataset.classes)),) * setup.partition.clients


def _held(setup: Setup) -> tuple[tuple[int, ...], ...]:
    """The classes of every client's records, which ``classes = "declared"`` declares public."""
    labels = setup.dataset.train.labels
    return tuple(
        tuple(labels[setup.partition.index(client)].unique().tolist())
        for client in range(setup.partition.clients)
    )


def _turns(setup: Setup) -> list[int]:
    """In how many rounds each client takes part: the sampling is public and known beforehand."""
    turns = [0] * setup.partition.clients
    for number in range(1, setup.experiment.rounds + 1):
        for client in setup.sample(number):
            turns[client] += 1
    return turns
