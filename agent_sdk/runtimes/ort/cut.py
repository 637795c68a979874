"""Cuts a segment out of ONNX Runtime's frozen graph, fusions and blocked layouts included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from agent_sdk.model import extract
from agent_sdk.model.dtypes import value_info
from agent_sdk.model.nodes import reads
from agent_sdk.model.weights import LightModels
from agent_sdk.runtimes.base import Segment
from agent_sdk.runtimes.ort.graph import BLOCKED_DOMAIN, FrozenGraph
from hope_schema import TensorType


@dataclass(frozen=True)
class Piece:
    """A model for one session: what to compile, how, and which of its names carry the segment's tensors.

    ``inputs`` maps a segment's inputs to session inputs; one that is equal to another, or is not needed, is absent.
    ``optimise`` says that the piece is source ops, still to be optimised, not a cut of the frozen graph. ``weights``
    is the folder of the weights that it refers to.
    """

    proto: onnx.ModelProto
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    input_types: Mapping[str, TensorType]
    output_types: Mapping[str, TensorType]
    optimise: bool
    weights: Path

    def named_as(self, segment: Segment) -> Piece:
        """The piece of ``segment.own``, with the tensors called as the segment does."""
        own = segment.own
        called = dict(zip((*own.inputs, *own.outputs), (*segment.inputs, *segment.outputs), strict=True))
        return replace(
            self,
            inputs={called[name]: carrier for name, carrier in self.inputs.items()},
            outputs={called[name]: carrier for name, carrier in self.outputs.items()},
            input_types={called[name]: kind for name, kind in self.input_types.items()},
            output_types={called[name]: kind for name, kind in self.output_types.items()},
        )


def cut(frozen: FrozenGraph, segment: Segment, lights: LightModels) -> Piece:
    """The piece for a segment: from the frozen graph, or from the source where fusion swallowed a border."""
    try:
        return _Cutter(frozen, segment).piece()
    except NotThere:
        return from_source(frozen, segment, lights)


class NotThere(Exception):
    """The frozen graph does not hold a tensor of the segment's border; never leaves this module."""


def physical(kind: TensorType, *, blocked: bool) -> TensorType:
    """The shape a tensor has in memory: blocked ones have their channels padded to whole blocks."""
    if not blocked:
        return kind
    size = block_size()
    batch, channels, *area = kind.shape
    return TensorType(shape=(batch, -(-channels // size) * size, *area), dtype=kind.dtype)


@cache
def block_size() -> int:
    """Channels per block of this machine's kernels, asked of the runtime; 1 where it has no blocked layout."""
    try:
        session = ort.InferenceSession(
            reorder_model(TensorType(shape=(1, 4, 1, 1), dtype="float32"), outwards=False).SerializeToString(),
            providers=["CPUExecutionProvider"],
            enable_fallback=0,
        )
        return int(session.run(None, {"x": np.zeros((1, 4, 1, 1), np.float32)})[0].shape[1])
    except Exception:  # noqa: BLE001  the runtime raises its own unrelated classes
        return 1


def reordering(kind: TensorType, *, outwards: bool) -> Piece:
    """A change of one tensor, ``x``, from plain to blocked, or back (``outwards``)."""
    blocked = physical(kind, blocked=True)
    given, made = (blocked, kind) if outwards else (kind, blocked)
    proto = reorder_model(kind, outwards=outwards)
    return Piece(proto, {"x": "x"}, {"y": "y"}, {"x": given}, {"y": made}, optimise=False, weights=Path())


def reorder_model(kind: TensorType, *, outwards: bool) -> onnx.ModelProto:
    """A model that changes one tensor from plain to blocked, or back (``outwards``)."""
    node = _reorder("x", "y", kind, blocked=not outwards)
    open_shape = [None] * len(kind.shape)
    graph = helper.make_graph(
        [node],
        "reorder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, open_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, open_shape)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(BLOCKED_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def from_source(frozen: FrozenGraph | None, segment: Segment, lights: LightModels) -> Piece:
    """The segment's source ops, wrapped so that its border has the layouts that the frozen graph prescribes.

    All plain where there is none: for other providers, for whole networks, and where the runtime refuses the whole.
    """
    light, weights = lights.get(segment.model)
    proto = extract(light, segment.ops, segment.inputs, segment.outputs)
    tensor = segment.model.graph.tensor
    native = set(filter(frozen.native_blocked, (*segment.inputs, *segment.outputs))) if frozen is not None else set()
    inputs, outputs = {name: name for name in segment.inputs}, {name: name for name in segment.outputs}
    types = {name: tensor[name].type for name in (*segment.inputs, *segment.outputs)}
    for name in (name for name in segment.inputs if name in native - segment.imports):
        inputs[name], types[name] = _unused(f"{name}/blocked", tensor), physical(types[name], blocked=True)
        proto.graph.node.insert(0, _reorder(inputs[name], name, tensor[name].type, blocked=False))
        _declare(proto.graph.input, name, inputs[name], types[name])
    for name in (name for name in segment.outputs if name in native - segment.exports):
        outputs[name], types[name] = _unused(f"{name}/blocked", tensor), physical(types[name], blocked=True)
        proto.graph.node.append(_reorder(name, outputs[name], tensor[name].type, blocked=True))
        _declare(proto.graph.output, name, outputs[name], types[name])
    if native and BLOCKED_DOMAIN not in {entry.domain for entry in proto.opset_import}:
        proto.opset_import.append(helper.make_opsetid(BLOCKED_DOMAIN, 1))
    taken, made = ({name: types[name] for name in names} for names in (segment.inputs, segment.outputs))
    return Piece(proto, inputs, outputs, taken, made, True, weights)


@dataclass
class _Cutter:
    """One walk from the segment's outputs back to its inputs through the frozen graph."""

    frozen: FrozenGraph
    segment: Segment
    inputs: dict[str, str] = field(default_factory=dict)
    declared: dict[str, TensorType] = field(default_factory=dict)
    visited: set[int] = field(default_factory=set)
    reorders: dict[str, onnx.NodeProto] = field(default_factory=dict)
    leaving: dict[str, onnx.NodeProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        classes = self.frozen.class_of
        graph = self.segment.model.graph
        self.arrives = {classes[name]: name for name in reversed(self.segment.inputs)}  # of equals the first
        self.own = {classes[name] for op in self.segment.ops for name in graph.op[op].outputs}
        self.border = self.arrives.keys() | {classes[name] for name in self.segment.outputs}

    def piece(self) -> Piece:
        graph = self.segment.model.graph
        outputs: dict[str, str] = {}
        types: dict[str, TensorType] = {}
        copies: list[onnx.NodeProto] = []
        for name in self.segment.outputs:
            klass = self.frozen.class_of[name]
            if klass in self.arrives:
                raise NotThere(name)
            blocked = name not in self.segment.exports and self.frozen.native_blocked(name)
            made = self._made(klass, blocked)
            if made in outputs.values():
                twin = _unused(f"{name}/twin", graph.tensor)
                copies.append(helper.make_node("Identity", [made], [twin]))
                made = twin
            outputs[name] = made
            types[name] = physical(graph.tensor[name].type, blocked=blocked)
        nodes = [self.frozen.nodes[index] for index in sorted(self.visited, key=self.frozen.order.__getitem__)]
        # The runtime makes slices of one tensor by one kernel: it may make what the segment is given, too.
        for name in (name for node in nodes for name in node.output):
            if name in self.declared or name in self.reorders:
                raise NotThere(name)
        proto = onnx.ModelProto(ir_version=self.frozen.proto.ir_version, producer_name="hope")
        proto.opset_import.extend(self.frozen.proto.opset_import)
        if BLOCKED_DOMAIN not in {entry.domain for entry in proto.opset_import}:
            proto.opset_import.append(helper.make_opsetid(BLOCKED_DOMAIN, 1))
        proto.graph.name = f"{self.segment.model.name}/{self.segment.ops[-1]}"
        proto.graph.node.extend([*self.reorders.values(), *nodes, *self.leaving.values(), *copies])
        constants = dict.fromkeys(n for node in nodes for n in reads(node) if n in self.frozen.constants)
        proto.graph.initializer.extend(self.frozen.constants[name] for name in constants)
        proto.graph.input.extend(value_info(name, kind) for name, kind in self.declared.items())
        proto.graph.output.extend(value_info(made, types[name]) for name, made in outputs.items())
        arriving = {
            name: physical(graph.tensor[name].type, blocked=self._comes_blocked(name)) for name in self.segment.inputs
        }
        return Piece(proto, self.inputs, outputs, arriving, types, False, self.frozen.directory)

    def _comes_blocked(self, name: str) -> bool:
        return name not in self.segment.imports and self.frozen.native_blocked(name)

    def _made(self, klass: str, blocked: bool) -> str:
        """The frozen tensor that holds a class in the form wanted, with everything that computes it visited."""
        forms = self.frozen.forms
        name = forms.get((klass, blocked)) or forms.get((klass, not blocked))
        if name is None:
            raise NotThere(klass)
        self._visit(name)
        return name if (klass, blocked) in forms else self._reordered(name, klass, blocked)

    def _visit(self, name: str) -> None:
        """Visit the producer of a frozen tensor and all it depends on, as far as the segment's inputs."""
        stack = [name]
        while stack:
            index = self._producer(stack.pop())
            if index is None:
                raise NotThere(name)
            if index in self.visited:
                continue
            self.visited.add(index)
            node = self.frozen.nodes[index]
            meaning = self.frozen.meaning.get(node.output[0])
            if meaning is not None and meaning[0] not in self.own and meaning[0] not in self.arrives:
                raise NotThere(name)
            for read in self.frozen.inputs_of(node):
                if not self._arrived(read):
                    stack.append(read)

    def _producer(self, name: str) -> int | None:
        """What computes a frozen tensor: one kernel, or where a border falls inside that, the last of its steps."""
        fusion = self.frozen.fusions.get(name)
        if fusion is None or self.border.isdisjoint(fusion.inside):
            return self.frozen.producer.get(name)
        return fusion.steps[-1]

    def _arrived(self, read: str) -> bool:
        """If a frozen tensor holds one of the segment's inputs, provide it in the form it is read in."""
        if read in self.declared or read in self.reorders:
            return True
        klass, blocked = self.frozen.meaning.get(read, ("", False))
        name = self.arrives.get(klass)
        if name is None:
            return False
        kind = self.segment.model.graph.tensor[name].type
        comes_blocked = self._comes_blocked(name)
        if name not in self.inputs:
            direct = self.frozen.forms.get((klass, comes_blocked)) or _unused(f"{name}/arriving", self.frozen.producer)
            self.inputs[name] = direct
            self.declared[direct] = physical(kind, blocked=comes_blocked)
        arriving = self.inputs[name]
        if read == arriving:
            return True
        if comes_blocked == blocked:
            self.reorders[read] = helper.make_node("Identity", [arriving], [read], name=f"{read}/twin")
        elif blocked and (len(kind.shape) != 4 or kind.shape[1] % 4):
            raise NotThere(name)
        else:
            self.reorders[read] = _reorder(arriving, read, kind, blocked=blocked)
        return True

    def _reordered(self, name: str, klass: str, blocked: bool) -> str:
        """Convert a tensor made here into the form it must leave in."""
        kind = self.frozen.source.tensor[klass]
        if len(kind.shape) != 4 or (blocked and kind.shape[1] % 4):
            raise NotThere(klass)
        made = _unused(f"{klass}/{'blocked' if blocked else 'plain'}", self.frozen.producer)
        self.leaving[made] = _reorder(name, made, kind.type, blocked=blocked)
        return made


def _reorder(name: str, made: str, kind: TensorType, *, blocked: bool) -> onnx.NodeProto:
    """What makes a tensor of this type blocked, or plain again."""
    op = "ReorderInput" if blocked else "ReorderOutput"
    channels: dict[str, Any] = {} if blocked else {"channels": kind.shape[1]}
    return helper.make_node(op, [name], [made], name=f"{made}/reorder", domain=BLOCKED_DOMAIN, **channels)


def _declare(infos: Iterable[onnx.ValueInfoProto], name: str, renamed: str, kind: TensorType) -> None:
    for info in infos:
        if info.name == name:
            info.CopyFrom(value_info(renamed, kind))


def _unused(name: str, taken: Mapping[str, object]) -> str:
    while name in taken:
        name += "'"
    return name
