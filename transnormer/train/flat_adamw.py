"""AdamW on all parameters as one vector, steered by numbers that lie on the device: nothing waits for the CPU.

The update is torch's (Loshchilov & Hutter 2019): decay, moments, bias correction by the number of updates made. The
moments are views of two vectors that the torch optimizer's state points to, so checkpoints do not know the difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transnormer.config.schema import OptimSection


class FlatAdamW:
    """`adopt` takes weights and moments from where a checkpoint or initialisation put them, `update` changes them."""

    def __init__(self, optimizer: torch.optim.AdamW, optim: OptimSection, *, compiled: bool) -> None:
        self._optimizer, self._optim = optimizer, optim
        self.parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        self._sizes = [parameter.numel() for parameter in self.parameters]
        device = self.parameters[0].device
        self._weights, self._gradients, self._first, self._second = torch.zeros(4, sum(self._sizes), device=device)
        decays = [group["weight_decay"] for group in optimizer.param_groups for _ in group["params"]]
        self._decay = torch.tensor(decays, device=device).repeat_interleave(torch.tensor(self._sizes, device=device))
        self._updates = torch.zeros(len(self.parameters), device=device)
        self._apply = torch.compile(_adamw, dynamic=False) if compiled else _adamw

    def adopt(self) -> None:
        """Take over the parameters and the torch optimizer's state, and put our memory under that state."""
        self._first.zero_()
        self._second.zero_()
        self._updates.zero_()
        moments = zip(self._views(self._first), self._views(self._second), self._updates.unbind(), strict=True)
        for parameter, (first, second, updates) in zip(self.parameters, moments, strict=True):
            state = self._optimizer.state[parameter]
            ours = {"step": updates, "exp_avg": first, "exp_avg_sq": second}
            for name, tensor in ours.items():
                if name in state:
                    tensor.copy_(state[name])
            state.update(ours)
        torch._foreach_copy_(self._views(self._weights), [parameter.data for parameter in self.parameters])

    def clip(self, gradients: Sequence[Tensor]) -> Tensor:
        """Take the gradients, clipped as configured; returns their norm from before."""
        torch._foreach_copy_(self._views(self._gradients), list(gradients))
        norm = torch.linalg.vector_norm(self._gradients)
        if self._optim.clip_norm is not None:
            self._gradients.mul_((self._optim.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        if self._optim.clip_value is not None:
            self._gradients.clamp_(-self._optim.clip_value, self._optim.clip_value)
        return norm

    def update(self, rate: Tensor, beta1: Tensor, go: Tensor) -> None:
        """One update with the clipped gradients if `go` is true; if not, nothing changes, whatever they are.

        `rate`, `beta1` (float64) and `go` (bool) are tensors without dimensions.
        """
        self._updates.add_(go)
        self._apply(
            (self._weights, self._gradients, self._first, self._second, self._decay),
            self._updates[0].double().clamp(min=1),
            rate,
            beta1,
            self._optim.betas[1],
            self._optim.eps,
            go,
        )
        torch._foreach_copy_([parameter.data for parameter in self.parameters], self._views(self._weights))

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = vector.split(self._sizes)
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]


def _adamw(
    vectors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    updates: Tensor,
    rate: Tensor,
    beta1: Tensor,
    beta2: float,
    eps: float,
    go: Tensor,
) -> None:
    """In one pass over memory when compiled. The scalars are float64: 1 - 0.999 loses four digits in float32."""
    weights, gradients, first, second, decay = vectors
    keep = 1 - rate.float() * decay
    new_first = first + (1 - beta1).float() * (gradients - first)
    new_second = beta2 * second + (1 - beta2) * gradients.square()
    correction = (1 - beta2**updates).sqrt().float()
    size = (rate / (1 - beta1**updates)).float()
    new_weights = weights * keep - size * new_first / (new_second.sqrt() / correction + eps)
    weights.copy_(torch.where(go, new_weights, weights))
    first.copy_(torch.where(go, new_first, first))
    second.copy_(torch.where(go, new_second, second))
