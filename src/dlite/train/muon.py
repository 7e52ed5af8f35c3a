"""Muon (Jordan et al., 2024): momentum whose matrix updates are made orthogonal, for the backbone's matrices.

The orthogonalisation uses the
Polar Express polynomials (Amsel et al., 2505.16932), in fp32: PyTorch's own Muon works in bf16, slow on most CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, then the nearest orthogonal matrix, scaled by sqrt(rows / columns) where that is above 1."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                average = state.setdefault("momentum", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(average, group["momentum"]))
                matrix.add_(update, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Towards U V^T of the matrix's singular value decomposition, by three odd polynomials of degree five.

    Three are cheap, not exact: singular values between 1/100 and all of the norm come out between 0.2 and 2.7.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() * 1.01 + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.T
        x = torch.addmm(x, b * gram + c * (gram @ gram), x, beta=a)
    return x.T if tall else x
