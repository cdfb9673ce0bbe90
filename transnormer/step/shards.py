"""A model whose weights lie in shards on the processes of a run (PyTorch's FSDP2); whole tensors in and out."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, world_size: int, device: torch.device) -> None:
    """Leave each process its rows of every weight; layer by layer, the others' are there while they are needed."""
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in cast(Any, model).base_model.layers:
        fully_shard(layer, mesh=mesh)
    # After the forward pass too: what an evaluation left whole would be stale after the next update.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    if hasattr(model, "score_targets"):  # a way into the model beside `forward`
        register_fsdp_forward_method(model, "score_targets")


def local(tensor: Tensor) -> Tensor:
    """The rows that lie here, as a view; a tensor that is in no shards is itself."""
    return cast(DTensor, tensor.detach()).to_local() if isinstance(tensor, DTensor) else tensor.detach()


def whole(tensor: Tensor) -> Tensor:
    """All rows, gathered from all processes, which must all ask."""
    return cast(DTensor, tensor.detach()).full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def rows_of(tensor: Tensor, values: Tensor) -> Tensor:
    """Of the values for a whole tensor those that lie here."""
    if not isinstance(tensor, DTensor):
        return values
    placed = distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    return placed.to_local()


def sharded_like(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows that lie here as part of a tensor in shards like the other; a copy where that is whole."""
    if not isinstance(tensor, DTensor):
        return rows.clone()
    return DTensor.from_local(
        rows, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
