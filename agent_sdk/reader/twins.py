"""Which tensors of a graph are equal by construction, whatever the numbers: every runtime computes them once."""

from __future__ import annotations

from typing import Final

from agent_sdk.reader.model import Model

PASS_THROUGH: Final = frozenset({"Identity", "Dropout"})
"""Types whose first output is their input, by another name."""


def tensor_classes(model: Model) -> dict[str, str]:
    """Tensor to the representative of all tensors that are equal to it by construction.

    Twins (same type, attributes and inputs) and what only renames its input are one class, because runtimes
    merge the former and drop the latter.
    """
    classes = {name: name for name in model.graph.inputs}
    seen: dict[tuple[object, ...], str] = {}
    for node in model.proto.graph.node:
        outputs = list(node.output)
        if node.op_type in PASS_THROUGH and node.domain in ("", "ai.onnx"):
            classes[outputs[0]] = classes.get(node.input[0], outputs[0])
            for name in filter(None, outputs[1:]):
                classes[name] = name
            continue
        attributes = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
        inputs = tuple(classes.get(name, name) for name in node.input)
        for index, name in enumerate(outputs):
            if name:
                classes[name] = seen.setdefault((node.domain, node.op_type, attributes, inputs, index), name)
    return classes
