"""Networks side by side as one: a graph in which every name begins with its network's place among them.

A joint plan of several networks is a plan of one model then, and its program like any other: it has the inputs and
outputs of all, and whoever compiles an op looks it up in the network that it comes from, whose weights it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import onnx
from typing_extensions import override

from agent_sdk.model.bounds import Guard
from agent_sdk.model.model import Model, Output
from hope_schema import ModelGraph, SuperOp
from hope_schema.hashing import digest


@dataclass(frozen=True, eq=False)
class UnitedModel(Model):
    """Made of ``members``. Its ``proto`` is empty."""

    members: tuple[Model, ...] = field(kw_only=True, repr=False)

    @cached_property
    def content_digest(self) -> str:
        """Follows from what it is made of."""
        return digest([member.content_digest for member in self.members])

    @override
    def member(self, name: str) -> tuple[int, Model, str]:
        place, _, own = name.partition("/")
        return int(place), self.members[int(place)], own

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {
            marked(place, name): replace(one, held={marked(place, part): region for part, region in one.held.items()})
            for place, member in enumerate(self.members)
            for name, one in member.outputs.items()
        }

    @property
    def uneven(self) -> bool:
        return any(member.uneven for member in self.members)

    def source(self, super_op: SuperOp) -> tuple[int, SuperOp]:
        """Whose super-op it is, and that one's own."""
        place, member, _ = self.member(super_op.id)
        return place, SuperOp(member.graph, tuple(member.graph.op[self.member(op.id)[2]] for op in super_op.ops))

    def feed(self, feeds: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What is given to the members, in their order, as one feed."""
        return {marked(place, name): value for place, feed in enumerate(feeds) for name, value in feed.items()}

    def answers(self, outputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The outputs of each member."""
        return [
            {name: outputs[marked(place, name)] for name in member.outputs} for place, member in enumerate(self.members)
        ]


def marked(place: int, name: str) -> str:
    """What a tensor of a member, or an op, is called in the whole."""
    return f"{place}/{name}"


def united(members: Sequence[Model]) -> UnitedModel:
    """Networks as one, in this order."""
    guard = Guard(
        {marked(place, name): ends for place, one in enumerate(members) for name, ends in one.guard.whole.items()},
        tuple(marked(place, name) for place, one in enumerate(members) for name in one.guard.floats),
    )
    return UnitedModel(
        graph=_graph([member.graph for member in members]),
        proto=onnx.ModelProto(),
        name=" + ".join(member.name for member in members),
        nodes={},
        guard=guard,
        members=tuple(members),
    )


def _graph(members: Sequence[ModelGraph]) -> ModelGraph:
    # NOTE: not validated: each of them was, and a name may have been as long as names may be.
    def each(names: Iterable[str], place: int) -> tuple[str, ...]:
        return tuple(marked(place, name) for name in names)

    row = list(enumerate(members))
    return ModelGraph.model_construct(
        name=" + ".join(graph.name for graph in members),
        tensors=tuple(
            one.model_copy(update={"name": marked(place, one.name)}) for place, graph in row for one in graph.tensors
        ),
        ops=tuple(
            op.model_copy(update={"inputs": each(op.inputs, place), "outputs": each(op.outputs, place)})
            for place, graph in row
            for op in graph.ops
        ),
        inputs=tuple(name for place, graph in row for name in each(graph.inputs, place)),
        outputs=tuple(name for place, graph in row for name in each(graph.outputs, place)),
    )
