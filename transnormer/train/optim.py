"""AdamW as a run configures it: decay groups, the schedule's rate, clipping, and its state by parameter name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from transnormer.config.schema import OptimSection
from transnormer.errors import CheckpointError
from transnormer.train.schedules import beta1, learning_rate


def decay_groups(model: nn.Module, optim: OptimSection) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices, which decay, and biases, norms and embeddings, which do not."""
    embeddings = {
        id(weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        is_matrix = parameter.ndim >= 2 and id(parameter) not in embeddings
        (decayed if is_matrix or optim.decay_all else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_adamw(model: nn.Module, optim: OptimSection) -> torch.optim.AdamW:
    """AdamW over the model's parameters, on the device where they are."""
    on_cuda = next(model.parameters()).is_cuda
    return torch.optim.AdamW(
        decay_groups(model, optim), lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True if on_cuda else None
    )


def follow_schedule(optimizer: torch.optim.Optimizer, optim: OptimSection, total_steps: int, step: int) -> None:
    """Set the learning rate and beta1 of the update that follows `step` updates."""
    rate, first_beta = learning_rate(optim, total_steps, step), beta1(optim, total_steps, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["betas"] = (first_beta, optim.betas[1])


def clip_gradients(parameters: Iterable[nn.Parameter], optim: OptimSection) -> Tensor:
    """Clip as configured and return the global norm from before the clipping."""
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm([parameter.grad for parameter in with_gradient if parameter.grad is not None])
    if optim.clip_norm is not None:
        nn.utils.clip_grads_with_norm_(with_gradient, optim.clip_norm, norm)
    if optim.clip_value is not None:
        nn.utils.clip_grad_value_(with_gradient, optim.clip_value)
    return norm


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as '<parameter name>.<state name>', ready for safetensors."""
    return {
        f"{name}.{key}": value.detach().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Replace the optimizer's state; every tensor must belong to a parameter of this model."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, state_name = key.rpartition(".")
        by_name.setdefault(name, {})[state_name] = value
    if unknown := sorted(set(by_name) - set(names.values())):
        raise CheckpointError(f"the optimizer state has parameters that the model has not: {', '.join(unknown[:3])}")
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state_dict = optimizer.state_dict()
    state_dict["state"] = {index: by_name[name] for index, name in enumerate(ordered) if name in by_name}
    optimizer.load_state_dict(state_dict)
