"""Which tensors of a graph are equal by construction: a runtime holds one of them for all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from agent_sdk.reader.equal import DEFAULT_DOMAINS, identity
from agent_sdk.reader.model import Model

PASS_THROUGH: Final = frozenset({"Identity", "Dropout"})
"""Types whose first output is their input, by another name."""


def tensor_classes(model: Model) -> dict[str, str]:
    """Tensor to the representative of all tensors that are equal to it by construction.

    What only renames its input is of its class, because runtimes drop it. So are twins, which runtimes merge: of those
    that the reader has left, one is an output of the graph.
    """
    classes = {name: name for name in model.graph.inputs}
    seen: dict[tuple[Hashable, int], str] = {}
    for node in model.proto.graph.node:
        outputs = list(node.output)
        if node.op_type in PASS_THROUGH and node.domain in DEFAULT_DOMAINS:
            classes[outputs[0]] = classes.get(node.input[0], outputs[0])
            for name in filter(None, outputs[1:]):
                classes[name] = name
            continue
        same = identity(node, classes, model.constants)
        for index, name in enumerate(outputs):
            if name:
                classes[name] = seen.setdefault((same, index), name)
    return classes
