"""An op as the rules of cutting see it, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hope_schema.cutting import CutError, Region, Span
from hope_schema.graph import AttributeValue, ModelGraph, Op


class MisalignedError(CutError):
    """The op can be cut along this axis, but not at this border."""


Part = dict[int, Span | None]
"""By operand what is read; who is absent is read whole."""


class View:
    """An op as its rule sees it.

    Operands are its inputs, then its parameters; ``changed`` are the attributes of the part, as far as is known. Once
    it is cut along one axis, the op is that part.
    """

    def __init__(self, graph: ModelGraph, op: Op) -> None:
        self.op = op
        self.type = op.type
        self.output = graph.tensor[op.id].shape
        self.shapes = [graph.tensor[name].shape for name in op.inputs] + [kind.shape for kind in op.parameters]
        self.inputs = len(op.inputs)
        self.operands = len(self.shapes)
        self.changed: dict[str, AttributeValue] = dict(op.attributes)

    def get(self, name: str, default: Any) -> Any:
        """An attribute."""
        return self.changed.get(name, default)

    def put(self, name: str, value: AttributeValue, default: AttributeValue) -> None:
        """Change an attribute of the part; one that has its default value is left out."""
        self.changed.pop(name, None)
        if value != default:
            self.changed[name] = value

    def cut(self, span: Span, part: Part) -> None:
        """Become the part that makes an interval of the output. Raises IndexError where it reads what is not there."""
        self.output = Region((span,)).shape(self.output)
        for place, read in part.items():
            if read is not None:
                if not 0 <= read.start < read.stop <= self.shapes[place][read.axis]:
                    raise IndexError(read)
                self.shapes[place] = Region((read,)).shape(self.shapes[place])

    def axis(self, default: int) -> int:
        """The attribute of this name, counted from the front."""
        axis = int(self.get("axis", default))
        return axis + len(self.output) if axis < 0 else axis


Rule = Callable[[View, Span], Part]
