"""What launching a segment costs beyond its kernels.

A chain of kernels that keep all cores at work, and one of them alone, each after a rest in which a gang's workers fall
asleep as they do while another processor is at work: what does not grow with the chain is the launch.
"""

import time
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final

from onnx import TensorProto, helper

from agent_sdk.model import Model, read_model
from agent_sdk.runtimes.alone import time_executable
from agent_sdk.runtimes.base import Processor, whole_network

CHAIN: Final = 8
"""Kernels by which the longer chain exceeds the shorter one, for telling launches from kernels."""
ROWS: Final = 64
"""Rows per thread of the tensor on which launches are timed: some 50 µs of work for each. Of less the caller has done
all before a worker is awake."""
WIDTH: Final = 512
ROW_BYTES: Final = 4 * WIDTH
REST_S: Final = 0.001
"""Longer than any runtime's workers poll before they sleep."""


def launch_us(processor: Processor, rows: int, deadline: float) -> float:
    """What a segment on a tensor of this many rows takes beyond its kernels, microseconds. Raises ProcessorError."""
    chains = [read_model(_chain(length, rows), name=f"chain{length}") for length in (1, 1 + CHAIN)]
    one, many = (_rested_us(processor, chain, deadline) for chain in chains)
    return max(0.0, one - (many - one) / CHAIN)


def _rested_us(processor: Processor, model: Model, deadline: float) -> float:
    with closing(processor.compile(whole_network(model))) as executable:
        return time_executable(executable, deadline, after=partial(time.sleep, REST_S)).us


def _chain(length: int, rows: int) -> bytes:
    """A model of ``length`` softmaxes in a row: nobody fuses them, and every runtime shares out their rows."""
    names = [f"t{index}" for index in range(length + 1)]
    nodes = [helper.make_node("Softmax", list(ends[:1]), list(ends[1:]), axis=-1) for ends in pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, WIDTH]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())
