"""From ONNX op type to torch call. A module per family; an op that stands in none is *unsupported here*.

A *maker* is given a ``Node`` and returns the call: a function of the op's inputs as tensors, in ONNX's order, None for
those left out, that returns its outputs, a tensor or a tuple. Whatever the graph's shapes and constants decide is
decided in the maker, so that the call does nothing but launch kernels. Calls never write into their inputs.

Where torch has several ways to run an op, or several ops in a row, the others stand in ``OTHERS``: which is fastest
differs from shape to shape, and is found by timing them.
"""

from agent_sdk.runtimes.torch.table import elementwise, matrix, normalise, reduce, shapes, windows
from agent_sdk.runtimes.torch.table.registry import MAKERS, OTHERS, Call, call_for

FAMILIES = (elementwise, matrix, normalise, reduce, shapes, windows)
"""Each enters what it has into ``MAKERS`` and ``OTHERS`` when it is imported."""

__all__ = ["FAMILIES", "MAKERS", "OTHERS", "Call", "call_for"]
