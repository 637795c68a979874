"""A rough measure of an op's work, used only to share a fused kernel's latency among the ops it covers."""

import math

from hope_schema import ModelGraph, Op

ELEMENT_WORK = 8.0
"""What touching one output element costs, in multiply-adds: memory-bound ops move data, they do not compute."""


def work(graph: ModelGraph, op: Op) -> float:
    """Multiply-adds of convolutions and matrix products, plus a charge per output element for every op."""
    elements = sum(graph.tensor[name].elements for name in op.outputs)
    products = 0.0
    if op.type.rpartition(":")[2] in ("Conv", "FusedConv", "ConvTranspose") and op.parameters:
        products = elements * math.prod(op.parameters[0].shape[1:])
    elif op.type in ("Gemm", "MatMul") and (op.parameters or op.inputs):
        rows = graph.tensor[op.inputs[0]].shape
        products = elements * (rows[-1] if rows else 1)
    elif op.type in ("MaxPool", "AveragePool"):
        window = op.attributes.get("kernel_shape")
        if isinstance(window, tuple):
            products = elements * math.prod(side for side in window if isinstance(side, int))
    return products + ELEMENT_WORK * elements + 1.0
