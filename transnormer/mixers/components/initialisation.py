"""Which tensors hold what was read from a file, and are not to be initialised again."""

from __future__ import annotations

from torch import Tensor


def is_loaded(tensor: Tensor) -> bool:
    """Whether transformers filled this tensor from a file, by its own mark.

    It initialises a whole module where one tensor of it is missing, or lies on the disk. It takes `nn.init` to leave
    marked tensors alone; what is drawn or copied by hand must ask.
    """
    return getattr(tensor, "_is_hf_initialized", False)
