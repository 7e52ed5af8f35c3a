"""Make a frozen fp32 model fast for the few rows of a decoding pass on a CPU.

Such a pass reads every weight once for 1 to 9 rows, so it is bound by memory and by the number of operator calls.
Three rewrites, all exact up to fp32 rounding: weights packed in oneDNN's layout (the operators that the PyTorch
compiler's CPU freezing uses), projections of the same input fused into one product, and RMSNorm as one operator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

TYPICAL_ROWS = 8
SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def freeze_for_cpu(module: nn.Module, same_input: tuple[tuple[str, ...], ...] = SAME_INPUT) -> bool:
    """Rewrite ``module`` in place where that helps (fp32 on a CPU); it can no longer be trained. False: left alone.

    ``same_input`` names sibling projections that are always called on one tensor, in that order.
    """
    if not all(can_pack(p) for p in module.parameters()):
        return False
    for parent in list(module.modules()):
        for names in same_input:
            children = [getattr(parent, name, None) for name in names]
            if all(type(child) is nn.Linear for child in children):
                fused = FusedProjections(children)  # type: ignore[arg-type]
                for index, name in enumerate(names):
                    setattr(parent, name, Projection(fused, index))
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, child.bias))
            elif type(child).__name__.endswith("RMSNorm") and (fast := fast_norm(child)) is not None:
                setattr(parent, name, fast)
    return True


def can_pack(tensor: Tensor) -> bool:
    """True for fp32 weights on a CPU whose PyTorch has the packing operators."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class PackedLinear(nn.Module):
    """A frozen linear layer in oneDNN's layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), TYPICAL_ROWS)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")  # type: ignore[no-any-return]


class FusedProjections:
    """Several projections of one input as a single product; each member returns its slice of the shared result."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        biases: list[Tensor] = [x.bias if x.bias is not None else x.weight.new_zeros(x.out_features) for x in linears]
        bias = torch.cat(biases) if any(x.bias is not None for x in linears) else None
        self.product = PackedLinear(torch.cat([x.weight.detach() for x in linears]), bias)
        self.sizes = [x.out_features for x in linears]
        self._input: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, x: Tensor, index: int) -> Tensor:
        """The slice of one member; computed on the first call with a given input, dropped after the last member's."""
        if self._input is not x:
            self._input, self._parts = x, self.product(x).split(self.sizes, -1)
        part = self._parts[index]
        if index == len(self.sizes) - 1:
            self._input, self._parts = None, ()
        return part


class Projection(nn.Module):
    """One member of ``FusedProjections``, in the place of the layer it replaces."""

    def __init__(self, fused: FusedProjections, index: int) -> None:
        super().__init__()
        self.fused, self.index = fused, index

    def forward(self, x: Tensor) -> Tensor:
        return self.fused.part(x, self.index)


class FastRMSNorm(nn.Module):
    """RMSNorm as one operator, with the scale the replaced module was seen to apply."""

    def __init__(self, scale: Tensor, eps: float) -> None:
        super().__init__()
        self.scale, self.eps = scale, eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, self.scale.shape, self.scale, self.eps)


@torch.no_grad()
def fast_norm(module: nn.Module) -> FastRMSNorm | None:
    """A fast twin of an RMSNorm module of any family, or None if on a probe the two do not agree."""
    weight = getattr(module, "weight", None)
    if weight is None:
        return None
    eps = float(getattr(module, "variance_epsilon", getattr(module, "eps", None) or 1e-6))
    # 1 / sqrt(mean(1) + eps) is the factor on a row of ones; dividing it out leaves the scale (Gemma: 1 + w).
    scale = module(torch.ones(1, len(weight)))[0] * (1 + eps) ** 0.5
    fast = FastRMSNorm(scale, eps)
    probe = torch.linspace(-3, 5, 4 * len(weight)).sin().view(4, -1) * torch.tensor([[1e-3], [1.0], [30.0], [1e3]])
    return fast if torch.allclose(fast(probe), module(probe), rtol=1e-5, atol=1e-6) else None
