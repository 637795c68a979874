"""One LSTM layer (Hochreiter and Schmidhuber 1997), unrolled over time with every gate as ops of its own."""

from __future__ import annotations

from hope_zoo.network import Network
from hope_zoo.weights import Topology

HIDDEN = 1024
STEPS = 10
GATES = {"input": "Sigmoid", "forget": "Sigmoid", "output": "Sigmoid", "candidate": "Tanh"}


def lstm() -> Topology:
    """Return the paper's LSTM (section 5): one layer, 1024 hidden units, 10 time steps; every step shares its weights.

    Inputs: ``x`` (10, 1024), one row per step, and the initial states ``h0`` and ``c0`` (1, 1024). Output: the
    hidden state after the last step.
    """
    row = (1, HIDDEN)
    net = Network("lstm", {"x": (STEPS, HIDDEN), "h0": row, "c0": row})
    weights = {
        (gate, source): net.parameter(f"{gate}/{source}/weights", (HIDDEN, HIDDEN))
        for gate in GATES
        for source in ("x", "h")
    }
    bias = {key: net.parameter(f"{'/'.join(key)}/bias", (HIDDEN,)) for key in weights}
    hidden, cell = "h0", "c0"
    for step in range(STEPS):
        scope = f"step_{step}"
        bounds = [net.constant(f"{scope}/{key}", values) for key, values in _rows(step).items()]
        x = net.op("Slice", ["x", *bounds], f"{scope}/x", row)
        gate = {}
        for name, kind in GATES.items():
            own = f"{scope}/{name}"
            fresh = net.op("Gemm", [x, weights[name, "x"], bias[name, "x"]], f"{own}/from_x", row)
            past = net.op("Gemm", [hidden, weights[name, "h"], bias[name, "h"]], f"{own}/from_h", row)
            gate[name] = net.op(kind, [net.add(fresh, past, f"{own}/sum")], own, row)
        kept = net.op("Mul", [gate["forget"], cell], f"{scope}/kept", row)
        learnt = net.op("Mul", [gate["input"], gate["candidate"]], f"{scope}/learnt", row)
        cell = net.add(kept, learnt, f"{scope}/cell")
        hidden = net.op("Mul", [gate["output"], net.op("Tanh", [cell], f"{scope}/tanh", row)], f"{scope}/hidden", row)
    return net.topology(hidden)


def _rows(step: int) -> dict[str, list[int]]:
    return {"starts": [step], "ends": [step + 1], "axes": [0]}
