"""Matrix products."""

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_sdk.runtimes.torch.node import Node
from agent_sdk.runtimes.torch.table.registry import Call, op


@op("MatMul")
def _matmul(node: Node) -> Call:
    return torch.matmul


@op("Gemm")
def _gemm(node: Node) -> Call:
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    left, right = node.get("transA", 0), node.get("transB", 0)

    def gemm(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a = a.t() if left else a
        if alpha == 1 and (c is None or (beta == 1 and c.dim() == 1)):
            return F.linear(a, b if right else b.t(), c)
        b = b.t() if right else b
        if c is None:
            return torch.mul(a @ b, alpha)
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)

    return gemm


@op("Einsum")
def _einsum(node: Node) -> Call:
    equation = node.get("equation")
    return lambda *xs: torch.einsum(equation, *xs)
