"""What a fixed public map of records to vectors is."""

from abc import ABC, abstractmethod

from torch import Tensor


class FeatureMap(ABC):
    """A fixed map from inputs [N, ...] to vectors [N, size] of norm 1 (or 0).

    It is public: chosen before any record is seen, and never fitted to records. Each row depends on
    its own record alone, so a private mechanism may clip and sum the rows.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers per vector."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """The vectors of these inputs, which are scaled as networks see them."""

    @property
    def chunk(self) -> int:
        """How many inputs at a time are fast."""
        return 256

    @property
    def fingerprint(self) -> str:
        """What kept vectors are found by on this machine."""
        return repr(self)


def unit(vectors: Tensor, least: float = 1e-12) -> Tensor:
    """Each row divided by its norm, or by ``least`` if that is larger; zeros stay zeros."""
    lengths: Tensor = vectors.norm(dim=1, keepdim=True).clamp(min=least)
    return vectors / lengths


def positive_root(x: Tensor) -> Tensor:
    """The square root of each number; of a negative one, zero."""
    return x.clamp(min=0).sqrt()
