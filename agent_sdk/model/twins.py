"""Which tensors of a graph are equal by construction: a runtime holds one of them for all."""

from collections.abc import Hashable

from agent_sdk.model.equal import identity, renames, repeatable
from agent_sdk.model.model import Model


def tensor_classes(model: Model) -> dict[str, str]:
    """Tensor to the representative of all tensors that are equal to it by construction.

    What only renames its input is of its class, because runtimes drop it. So are twins, which runtimes merge: of those
    that the reader has left, one is an output of the graph.
    """
    classes = {name: name for name in model.graph.inputs}
    seen: dict[tuple[Hashable, int], str] = {}
    for node in model.proto.graph.node:
        outputs = list(node.output)
        if renames(node, model.constants):
            classes[outputs[0]] = classes.get(node.input[0], outputs[0])
            classes |= {name: name for name in filter(None, outputs[1:])}
            continue
        same = identity(node, classes, model.constants) if repeatable(node, model.constants) else object()
        for index, name in enumerate(outputs):
            if name:
                classes[name] = seen.setdefault((same, index), name)
    return classes
