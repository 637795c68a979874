"""What is left of the work behind a session's answers: after the last of them, and when the session is closed.

Part of ``benchmarks.session`` (``--only behind``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from benchmarks.results import Measure, verdict

SHAPES: Final = 100
LEFT_S: Final = 10.0
"""How long the processor is watched after the last answer."""
CPU_S: Final = 1.0
"""Seconds of CPU in that time, at most."""
OPS: Final = 4000
CLOSED_AFTER_S: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""After so much of the work behind the first answer a session is closed: while it is read, solved, compiled, tried."""
CLOSE_S: Final = 0.2


def network(ops: Sequence[str], width: int, sizes: Sequence[int | str]) -> bytes:
    """Ops in a chain, each with a constant of its own kind; matrices are as wide as they are high."""
    rng = np.random.default_rng(0)
    weights = {"MatMul": rng.standard_normal((width, width)) / width**0.5, "Add": 0.5, "Mul": 0.5}
    nodes = [
        helper.make_node(op, [f"x{place}", *([op] if op in weights else [])], [f"x{place + 1}"])
        for place, op in enumerate(ops)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in ("x0", f"x{len(ops)}")]
    constants = [numpy_helper.from_array(np.asarray(weights[op], np.float32), op) for op in weights if op in ops]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], constants)
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto.SerializeToString()


def spent_s() -> float:
    """Seconds of CPU of this process, of its children, and of theirs, so far."""
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def after_the_last_answer() -> Measure:
    """A hundred texts of different lengths, each once: nobody needs their plans."""
    source = network(["MatMul", "Relu"] * 12, 128, [1, "length", 128])
    with tempfile.TemporaryDirectory() as cache, Agent(cache=Path(cache)) as agent, agent.load(source) as session:
        for length in range(1, SHAPES + 1):
            session.run({"x0": np.ones((1, length, 128), np.float32)})
        began = spent_s()
        time.sleep(LEFT_S)
        return verdict(f"CPU seconds after the last answer, {SHAPES} shapes once each", spent_s() - began, CPU_S)


def closing() -> Measure:
    """A long chain, which takes seconds to read, to solve and to compile, closed at many moments of that."""
    source, took = network(["Add", "Mul"] * (OPS // 2), 16, [16]), []
    for after_s in CLOSED_AFTER_S:
        with tempfile.TemporaryDirectory() as cache, Agent(cache=Path(cache)) as agent:
            agent.load(source).run({"x0": np.ones(16, np.float32)})
            time.sleep(after_s)
            began = time.perf_counter()
            agent.close()
            took.append(time.perf_counter() - began)
    moments = f"{CLOSED_AFTER_S[0]:g} to {CLOSED_AFTER_S[-1]:g} s"
    return verdict(f"seconds of close(), {OPS} ops, {moments} after an answer, the longest", max(took), CLOSE_S)


def measured() -> list[Measure]:
    """Both."""
    return [after_the_last_answer(), closing()]
