"""A model and its weights as an ``nn.Module``, for other PyTorch code."""

from torch import Tensor, nn

from fedstill.models.model import Model
from fedstill.types import Params


class NetworkModule(nn.Module):
    """A network with weights of its own; ``state_dict()`` has them by their names in the model."""

    def __init__(self, model: Model, params: Params) -> None:
        super().__init__()
        self._network = model
        for name, value in params.items():
            *parents, last = name.split(".")
            owner: nn.Module = self
            for parent in parents:
                if parent not in dict(owner.named_children()):
                    owner.add_module(parent, nn.Module())
                owner = owner.get_submodule(parent)
            owner.register_parameter(last, nn.Parameter(value.detach().clone()))

    def extra_repr(self) -> str:
        return repr(self._network)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self._network.apply(dict(self.named_parameters()), x)
