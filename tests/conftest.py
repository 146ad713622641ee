import torch

# Tests run side by side on few cores: threads that wait for each other would only slow them down.
# Engines set the number of threads that their results depend on by themselves.
torch.set_num_threads(1)
