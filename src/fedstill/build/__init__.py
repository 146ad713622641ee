"""The one assembly: from a request to everything that runs, the same in every process.

    request -> experiment, data, partition, mislabelling, method, model      ``build``
            -> the plan of a private run                                     ``.planned()``
            -> its ledgers                                                   ``.with_ledgers(...)``

A run, a Flower node, a deployment, a vote, the conformance toys, ``fedstill evaluate``, ``tune``
and ``partition`` all take what they need from here.
"""

from fedstill.build.assembly import assemble, build, build_resolved, network_task, partitioned
from fedstill.build.experiment import BuiltExperiment
from fedstill.build.user_objects import UserObjects, path_of

__all__ = [
    "BuiltExperiment",
    "UserObjects",
    "assemble",
    "build",
    "build_resolved",
    "network_task",
    "partitioned",
    "path_of",
]
