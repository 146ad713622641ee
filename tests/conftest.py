import torch
from hypothesis import HealthCheck, settings

# Tests run in parallel on few cores: threads that wait for each other would only slow them down.
# Engines set the number of threads that their results depend on themselves.
torch.set_num_threads(1)

# How long an example takes on a busy machine says nothing about the code. The same examples each
# time: a test that fails today failed yesterday too.
settings.register_profile(
    "no-deadline",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("no-deadline")
