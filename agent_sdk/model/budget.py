"""What folding constants may cost: a file of a few bytes can ask for constants of any size, and for any work."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import onnx

from agent_sdk.errors import ModelError
from agent_sdk.model.nodes import describe

MAX_FOLDED_BYTES: Final = 2**30
"""Most bytes that the folded constants of a network may take."""
MAX_FOLDED_OPERATIONS: Final = 2**32
"""Most multiply-adds that folding a network may take: a few seconds on one core."""
PER_ELEMENT: Final = 8
"""What touching an element counts, in multiply-adds."""
PRODUCTS: Final = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"})
"""Ops that make an element from a row and a column."""
WINDOWS: Final[Mapping[str, int]] = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "DeformConv": 1, "ConvTranspose": 1}
"""Ops that slide weights over their first input, and which input the weights are."""
POOLS: Final = frozenset({"AveragePool", "LpPool", "MaxPool"})
"""Ops that slide a window of a size that they tell."""
EACH_WITH_ALL: Final = frozenset(
    {"Attention", "DFT", "Det", "Einsum", "GRU", "LRN", "LSTM", "LinearClassifier", "LinearRegressor", "MaxRoiPool"}
    | {"NonMaxSuppression", "RNN", "RoiAlign", "STFT", "SVMClassifier", "SVMRegressor", "TfIdfVectorizer"}
    | {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
)
"""Ops of which an output's element may take all elements of an input. All others touch each element a few times."""

Shape = Sequence[int]


class Budget:
    """What is left to fold with."""

    def __init__(self) -> None:
        self._bytes = self._operations = 0

    def spend(self, node: onnx.NodeProto, size: int, operations: int) -> None:
        """Take what a node costs. Raises ModelError where there is not enough left."""
        self._bytes += size
        self._operations += operations
        if self._bytes > MAX_FOLDED_BYTES:
            raise ModelError(f"{describe(node)}: folding constants would take more than {MAX_FOLDED_BYTES} bytes")
        if self._operations > MAX_FOLDED_OPERATIONS:
            raise ModelError(
                f"{describe(node)}: folding constants would take more than {MAX_FOLDED_OPERATIONS} multiply-adds"
            )


def operations(node: onnx.NodeProto, inputs: Sequence[Shape], made: int) -> int:
    """Multiply-adds of a node at most, or about.

    Args:
        node: what is computed.
        inputs: the shapes of its inputs; empty where an optional one is left out.
        made: how many elements it makes.
    """
    given = [math.prod(shape) for shape in inputs]
    touched = PER_ELEMENT * max(sum(given), made)
    kind = node.op_type
    if kind in PRODUCTS and inputs[0]:
        turned = kind == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
        return touched + made * inputs[0][0 if turned else -1]
    if kind in WINDOWS and len(inputs) > WINDOWS[kind]:
        weights = math.prod(inputs[WINDOWS[kind]][1:])
        return touched + weights * (given[0] if kind == "ConvTranspose" else made)
    if kind in POOLS:
        window = next((a.ints for a in node.attribute if a.name == "kernel_shape"), ())
        return touched + made * math.prod(map(int, window))
    if kind in EACH_WITH_ALL:
        return touched + made * max(given, default=0)
    return touched
