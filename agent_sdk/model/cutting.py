"""Cuts made in a model: parts of ops with parts of their weights, slices and joins.

What is cut, and how, says ``hope_schema.cutgraph``, on which planner and agent agree; here it is done to ONNX nodes. No
weights are copied before somebody asks for them, and then only those that are cut: where a part of weights in a file is
contiguous, it is a place in that file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from agent_sdk.model.model import Model, Output
from agent_sdk.model.nodes import reads, shell
from hope_schema import Cut
from hope_schema.cutgraph import CutOp, assembled, cut_ops, holders
from hope_schema.cutrules import LARGEST
from hope_schema.cutting import CutError, Region
from hope_schema.hashing import digest

BOUNDS: Final = ("start", "stop", "axis")
"""What a Slice reads beside its tensor."""
SHAPE: Final = {"Reshape": 1, "Resize": 3}
"""Types that may read the shape of their output, and in which place."""
PADS: Final = 1
"""Where a Pad may read by how much it pads: all axes before, all behind."""


@dataclass(frozen=True, eq=False)
class CutModel(Model):
    """A model with some of its super-ops cut into parts: made of ``source`` by ``cuts``, whose weights it uses.

    ``made`` says where each of its ops comes from. Its ``proto`` has nodes, and no constants.
    """

    source: Model = field(kw_only=True, repr=False)
    cuts: tuple[Cut, ...] = field(kw_only=True)
    made: tuple[CutOp, ...] = field(kw_only=True, repr=False)
    parts: Constants = field(kw_only=True, repr=False)

    @cached_property
    def content_digest(self) -> str:
        return digest([self.source.content_digest, [cut.model_dump(mode="json") for cut in self.cuts]])

    @cached_property
    def constants(self) -> Mapping[str, onnx.TensorProto]:
        return self.parts

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        graph = self.source.graph
        return {name: Output(graph.tensor[name].type, held) for name, held in holders(graph, self.made).items()}

    @property
    def uneven(self) -> bool:
        return any(one.part is not None and one.op.type in LARGEST for one in self.made)


class Constants(Mapping[str, onnx.TensorProto]):
    """The constants of a cut model: those of its source, parts of them, and those that slices need.

    ``folder`` is where the source's data lie, as far as they are in a file.
    """

    def __init__(self, source: Mapping[str, onnx.TensorProto], folder: Path | None) -> None:
        self.source = source
        self.folder = folder
        self._own: dict[str, onnx.TensorProto | tuple[str, Region] | None] = {}

    def whole(self, name: str) -> str:
        """Have one of the source's."""
        self._own[name] = None
        return name

    def part(self, name: str, region: Region) -> str:
        """Have a part of one of the source's. Returns its name."""
        self._own[region.of(name)] = name, region
        return region.of(name)

    def new(self, name: str, values: Sequence[int]) -> str:
        """Have whole numbers."""
        self._own[name] = numpy_helper.from_array(np.array(values, np.int64), name)
        return name

    def __getitem__(self, name: str) -> onnx.TensorProto:
        found = self._own[name]
        if found is None:
            return self.source[name]
        if isinstance(found, tuple):
            whole, region = found
            return part_of_constant(self.source[whole], region, self.folder)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def cut_model(model: Model, cuts: Sequence[Cut], folder: Path | None = None) -> CutModel:
    """The model with some super-ops cut into parts.

    Args:
        cuts: which of its super-ops, and where.
        folder: where the model's weights lie, if they are in a file.

    Raises CutError where an op stays whole, with the reason.
    """
    made = cut_ops(model.graph, cuts)
    constants = Constants(model.constants, folder)
    proto = shell(model.proto)
    nodes: dict[str, tuple[int, ...]] = {}
    for one in made:
        before = len(proto.graph.node)
        proto.graph.node.extend(_nodes(model, one, constants))
        nodes[one.op.id] = tuple(range(before, len(proto.graph.node)))
    return CutModel(
        graph=assembled(model.graph, made),
        proto=proto,
        name=model.name,
        nodes=nodes,
        path=model.path,
        taken=model.taken,
        guard=model.guard,
        source=model,
        cuts=tuple(cuts),
        made=tuple(made),
        parts=constants,
    )


def part_of_constant(tensor: onnx.TensorProto, region: Region, folder: Path | None) -> onnx.TensorProto:
    """A region of a constant, called after it: a place in its file where that is contiguous, else a copy."""
    dims = region.shape(tensor.dims)
    if not external_data_helper.uses_external_data(tensor):
        values = numpy_helper.to_array(tensor)
        part = np.ascontiguousarray(values[region.index(values.ndim)])
        return numpy_helper.from_array(part, region.of(tensor.name))
    place = external_data_helper.ExternalDataInfo(tensor)
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    made = onnx.TensorProto(name=region.of(tensor.name), data_type=tensor.data_type, dims=dims)
    axis, start, _ = region.spans[0]
    if len(region.spans) == 1 and math.prod(tensor.dims[:axis]) == 1:
        made.data_location = onnx.TensorProto.EXTERNAL
        offset = (place.offset or 0) + start * math.prod(tensor.dims[axis + 1 :]) * kind.itemsize
        length = math.prod(dims) * kind.itemsize
        for key, value in (("location", place.location), ("offset", offset), ("length", length)):
            made.external_data.add(key=key, value=str(value))
        return made
    file = (folder or Path()) / place.location
    values = np.memmap(file, kind, "r", offset=place.offset or 0, shape=tuple(tensor.dims))
    made.raw_data = np.ascontiguousarray(values[region.index(values.ndim)]).tobytes()
    return made


def _nodes(model: Model, one: CutOp, constants: Constants) -> list[onnx.NodeProto]:
    if one.source is None:
        return [_glue(model, one, constants)]
    found = [model.proto.graph.node[index] for index in model.nodes[one.source.id]]
    if one.op is one.source:
        for name in (name for node in found for name in reads(node) if name in model.constants):
            constants.whole(name)
        return found
    [node] = found
    return [_part(model, one, node, constants)]


def _glue(model: Model, one: CutOp, constants: Constants) -> onnx.NodeProto:
    """A slice or a join."""
    name = one.op.id
    if one.region is None:
        return helper.make_node("Concat", one.op.inputs, [name], name=name, axis=one.op.attributes["axis"])
    axes, starts, ends = zip(*one.region.spans, strict=True)
    if any(opset.domain in ("", "ai.onnx") and opset.version < 10 for opset in model.proto.opset_import):
        return helper.make_node(
            "Slice", one.op.inputs, [name], name=name, axes=axes, starts=starts, ends=ends
        )  # its bounds became inputs later
    bounds = [constants.new(f"{name}/{what}", ends) for what, ends in zip(BOUNDS, (starts, ends, axes), strict=True)]
    return helper.make_node("Slice", [*one.op.inputs, *bounds], [name], name=name)


def _part(model: Model, one: CutOp, node: onnx.NodeProto, constants: Constants) -> onnx.NodeProto:
    """A node that computes a part, or the same by another name."""
    assert one.source is not None
    made = deepcopy(node)
    made.name = made.output[0] = one.op.id
    regions = iter(one.part.parameters if one.part is not None else (None,) * len(one.source.parameters))
    inputs = iter(one.op.inputs)
    shape = SHAPE.get(node.op_type) if one.part is not None else None
    for place, name in enumerate(node.input):
        if name in model.constants:
            region = next(regions)
            if place == shape:
                made.input[place] = constants.new(f"{one.op.id}/shape", one.types[0].shape)
                continue
            made.input[place] = constants.whole(name) if region is None else constants.part(name, region)
        elif name:
            made.input[place] = next(inputs)
    if one.part is None or one.region is None:
        return made
    _set(made, one.source.attributes, one.part.attributes)
    kind, read = node.op_type, list(node.input)
    if kind in ("Resize", "Upsample") and any(read[1:3][-1:]):  # a Resize reads a region first since operator set 11
        _check_scale(model, one, model.constants[read[1:3][-1]])
    elif kind == "Pad" and len(read) > PADS:
        pads = numpy_helper.to_array(model.constants[read[PADS]]).reshape(2, -1)
        if len(read) > PADS + 2 or pads[:, one.region.axes].any():
            raise CutError(f"Pad pads axis {' or '.join(map(str, one.region.axes))}")
    return made


def _check_scale(model: Model, one: CutOp, scales: onnx.TensorProto) -> None:
    """Refuse a factor that is another than that of the shapes, which are rounded."""
    assert one.source is not None
    assert one.region is not None
    found = numpy_helper.to_array(scales)
    for axis in one.region.axes:
        given, whole = (model.graph.tensor[name].shape[axis] for name in (one.source.inputs[0], one.source.id))
        if len(found) <= axis or float(found[axis]) * given != whole:
            raise CutError(f"{one.op.type} enlarges axis {axis} by no whole factor")


def _set(node: onnx.NodeProto, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    kept = [attribute for attribute in node.attribute if attribute.name not in changed]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, after[name]) for name in sorted(changed & after.keys()))
