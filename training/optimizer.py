"""Muon for the hidden matrices, AdamW for the embedding and the norms, float32 masters for both.

Muon (Jordan et al. 2024) orthogonalises each matrix's momentum with a few Newton-Schulz
steps; matrices of one shape are stacked so that a step is a handful of batched products.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
MAX_GRADIENT_NORM = 1.0
ADAM_BETAS = (0.9, 0.95)


def orthogonalise(stack: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrices of a stack [count, rows, columns], as bfloat16 of the same shape."""
    a, b, c = NEWTON_SCHULZ
    x = stack.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class MixedOptimizer:
    """Updates bfloat16 working weights through float32 masters.

    The working weights are those of `network`; this object owns masters and momenta. The learning rates are peak rates,
    which `step` scales.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        muon_learning_rate: float,
        adam_learning_rate: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self._working = dict(network.named_parameters())
        self.masters = {name: weight.detach().float().clone() for name, weight in self._working.items()}
        self._muon_rate = muon_learning_rate
        self._adam_rate = adam_learning_rate
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._stacks: dict[tuple[int, ...], list[str]] = defaultdict(list)
        adam_names = []
        for name, weight in self._working.items():
            if weight.ndim == 2 and "embed" not in name and "lm_head" not in name:
                self._stacks[tuple(weight.shape)].append(name)
            else:
                adam_names.append(name)
        self._momenta = {
            shape: torch.zeros(len(names), *shape, device=self.masters[names[0]].device)
            for shape, names in self._stacks.items()
        }
        self._adam_names = adam_names
        self._adam = torch.optim.AdamW(
            [self.masters[name] for name in adam_names], lr=adam_learning_rate, betas=ADAM_BETAS, weight_decay=0.0
        )

    @torch.no_grad()
    def step(self, scale: float) -> float:
        """Apply the gradients of the working weights at `scale` times the peak rates; return the norm of the gradient.

        Mutates the working weights and clears their gradients.
        """
        gradients = {name: weight.grad.float() for name, weight in self._working.items()}
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients.values()]))
        shrink = min(1.0, MAX_GRADIENT_NORM / (float(norm) + 1e-6))
        for shape, names in self._stacks.items():
            self._muon_step(shape, names, gradients, scale)
        for name in self._adam_names:
            self.masters[name].grad = gradients[name] * shrink
        for group in self._adam.param_groups:
            group["lr"] = self._adam_rate * scale
        self._adam.step()
        for name, weight in self._working.items():
            weight.copy_(self.masters[name])
            weight.grad = None
        return float(norm)

    def _muon_step(self, shape: tuple[int, ...], names: list[str], gradients: dict[str, Tensor], scale: float) -> None:
        """Do an orthogonalised step with Nesterov momentum for all matrices of one shape."""
        gradient = torch.stack([gradients[name] for name in names])
        momentum = self._momenta[shape]
        momentum.lerp_(gradient, 1 - self._momentum)
        update = orthogonalise(gradient.lerp(momentum, self._momentum)).float()
        rate = self._muon_rate * scale
        stretch = max(1.0, shape[0] / shape[1]) ** 0.5
        for name, direction in zip(names, update, strict=True):
            self.masters[name].mul_(1 - rate * self._weight_decay).add_(direction, alpha=-rate * stretch)

    def state(self) -> dict[str, Any]:
        """Return masters and the momenta of both optimizers, for the checkpoint."""
        return {"masters": self.masters, "momenta": self._momenta, "adam": self._adam.state_dict()}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Restore `state`, including the working weights."""
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
            self._working[name].copy_(master)
        for shape, momentum in self._momenta.items():
            momentum.copy_(state["momenta"][shape])
        self._adam.load_state_dict(state["adam"])
