"""AdamW (Loshchilov & Hutter 2019) on all parameters as one vector, steered by numbers that lie on the device.

The update is torch's: decay, moments, bias correction by the number of updates made. It is ours to write because a CUDA
graph replays it with a learning rate, a beta1 that one_cycle moves, and a verdict whether to update at all, all three
computed on the device: torch's fused AdamW takes beta1 from the host, and its foreach form has no such verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transnormer.config.schema import OptimSection
from transnormer.errors import CheckpointError
from transnormer.step.execution import Execution
from transnormer.step.shards import local, rows_of, sharded_like

_MOMENTS = ("exp_avg", "exp_avg_sq")


def weight_decays(model: nn.Module, optim: OptimSection) -> dict[nn.Parameter, float]:
    """The trainable parameters with their decay, those that decay first.

    Matrices do; biases, norms and embeddings only with `decay_all`.
    """
    embeddings = {
        id(weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    decays = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim >= 2 and id(parameter) not in embeddings
            decays[parameter] = optim.weight_decay if is_matrix or optim.decay_all else 0.0
    return dict(sorted(decays.items(), key=lambda item: -item[1]))


class AdamW:
    """`take` gradients, then `update`. Whoever changes the weights otherwise says so by `read_weights`.

    Of parameters in shards, the vector has what lies in this process: an update is the same for every entry by itself.
    """

    def __init__(self, model: nn.Module, optim: OptimSection, execution: Execution) -> None:
        decays = weight_decays(model, optim)
        self.parameters = list(decays)
        self._optim = optim
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self._sizes = [local(parameter).numel() for parameter in self.parameters]
        device = self.parameters[0].device
        self._weights, self.gradients, self._first, self._second = torch.zeros(4, sum(self._sizes), device=device)
        self._decays = _runs(list(decays.values()), self._sizes)
        self._updates = torch.zeros((), device=device)
        self._apply = execution.compile(_adamw)
        self.read_weights()

    def read_weights(self) -> None:
        """Go on from the weights that were just loaded or initialised."""
        torch._foreach_copy_(self._views(self._weights), [local(parameter) for parameter in self.parameters])

    def take(self, gradients: Sequence[Tensor], *, add: bool) -> None:
        """Keep gradients, or add them to those of the micro-batches before."""
        views = self._views(self.gradients)
        if add:
            torch._foreach_add_(views, list(gradients))
        else:
            torch._foreach_copy_(views, list(gradients))

    def norm(self) -> Tensor:
        """The norm of the gradients, of those that lie here."""
        return torch.linalg.vector_norm(self.gradients)

    def group_norms(self, membership: Tensor) -> Tensor:
        """The norm of the gradients in each group of parameters: [groups], for a 0/1 matrix [groups, parameters]."""
        norms = torch.stack(torch._foreach_norm(self._views(self.gradients)))
        # Not index_add_, whose sums depend on the order in which a GPU's threads come.
        return (membership * norms.square()).sum(dim=1).sqrt()

    def update(self, rate: Tensor, beta1: Tensor, norm: Tensor, go: Tensor) -> None:
        """One update with the gradients, of this `norm`, clipped as configured, if `go` is true; if not, none.

        All arguments are tensors without dimensions, `rate` and `beta1` in float64. Without a `go` nothing changes,
        whatever the gradients are.
        """
        self._updates.add_(go)
        updates = self._updates.double().clamp(min=1)
        for part, decay in self._decays:
            vectors = (self._weights[part], self.gradients[part], self._first[part], self._second[part])
            self._apply(vectors, decay, updates, rate, beta1, norm, go, self._optim)
        torch._foreach_copy_([local(parameter) for parameter in self.parameters], self._views(self._weights))

    def reset(self) -> None:
        """Back to no history."""
        for tensor in (self._first, self._second, self._updates):
            tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        """'<parameter name>.<step | exp_avg | exp_avg_sq>', as torch's AdamW names them, ready for safetensors."""
        tensors: dict[str, Tensor] = {}
        moments = zip(self._views(self._first), self._views(self._second), strict=True)
        for parameter, (first, second) in zip(self.parameters, moments, strict=True):
            name = self.names[parameter]
            # Each a tensor of its own: safetensors refuses memory that is shared. What is in shards stays so.
            tensors |= {f"{name}.step": self._updates.clone(), f"{name}.exp_avg": sharded_like(parameter, first)}
            tensors[f"{name}.exp_avg_sq"] = sharded_like(parameter, second)
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Replace the state; every tensor must belong to a parameter of this model."""
        known = {self.names[parameter] for parameter in self.parameters}
        if unknown := sorted({key.rpartition(".")[0] for key in tensors} - known):
            raise CheckpointError(
                f"the optimizer state has parameters that the model has not: {', '.join(unknown[:3])}"
            )
        self.reset()
        for vector, moment in zip((self._first, self._second), _MOMENTS, strict=True):
            for parameter, view in zip(self.parameters, self._views(vector), strict=True):
                if (stored := tensors.get(f"{self.names[parameter]}.{moment}")) is not None:
                    view.copy_(rows_of(parameter, stored))
        steps = [value for key, value in tensors.items() if key.endswith(".step")]
        if steps:  # all parameters have had the same number of updates
            self._updates.copy_(steps[0])

    def is_finite(self) -> Tensor:
        """Whether no moment is NaN or infinite."""
        return self._first.isfinite().all() & self._second.isfinite().all()

    @property
    def nbytes(self) -> int:
        """Bytes of the state, over all processes that have a part of it."""
        return 2 * self._first.element_size() * sum(parameter.numel() for parameter in self.parameters)

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = vector.split(self._sizes)
        return [part.view_as(local(parameter)) for part, parameter in zip(parts, self.parameters, strict=True)]


def _runs(decays: list[float], sizes: list[int]) -> list[tuple[slice, float]]:
    """The stretches of a vector of parameters of these sizes that have one decay."""
    runs, start = [], 0
    for decay in dict.fromkeys(decays):
        stop = start + sum(size for size, each in zip(sizes, decays, strict=True) if each == decay)
        runs.append((slice(start, stop), decay))
        start = stop
    return runs


def _adamw(
    vectors: tuple[Tensor, Tensor, Tensor, Tensor],
    decay: float,
    updates: Tensor,
    rate: Tensor,
    beta1: Tensor,
    norm: Tensor,
    go: Tensor,
    optim: OptimSection,
) -> None:
    """In one pass over memory when compiled. The scalars are float64: 1 - 0.999 loses four digits in float32."""
    weights, gradients, first, second = vectors
    beta2, eps = optim.betas[1], optim.eps
    if optim.clip_norm is not None:
        gradients = gradients * (optim.clip_norm / (norm + 1e-6)).clamp(max=1.0)
    if optim.clip_value is not None:
        gradients = gradients.clamp(-optim.clip_value, optim.clip_value)
    keep = 1 - rate.float() * decay
    new_first = first + (1 - beta1).float() * (gradients - first)
    new_second = beta2 * second + (1 - beta2) * gradients.square()
    correction = (1 - beta2**updates).sqrt().float()
    size = (rate / (1 - beta1**updates)).float()
    new_weights = weights * keep - size * new_first / (new_second.sqrt() / correction + eps)
    weights.copy_(torch.where(go, new_weights, weights))
    first.copy_(torch.where(go, new_first, first))
    second.copy_(torch.where(go, new_second, second))
