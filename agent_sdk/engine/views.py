"""Slices and joins that cost nothing: of tensors one behind the other in one piece of memory, and of outputs.

Where everything before the axis of a cut is 1, as before the channels of a single image, parts of a tensor stand in
the whole one behind the other, in rows as in blocks of channels. They are then written into the memory of the whole and
read from there, and nobody carries out the slices and joins between them. An output that no step reads as a whole is
stored part by part.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from agent_sdk.model import Model
from agent_sdk.model.cutting import CutModel
from agent_sdk.model.united import UnitedModel, marked
from agent_sdk.runtimes.base import Processor
from hope_schema import ModelGraph, Step
from hope_schema.cutgraph import CutOp
from hope_schema.cutting import Span


@dataclass(frozen=True)
class View:
    """Where a tensor stands in memory that it shares with parts of itself, or with what it is a part of.

    Attributes:
        storage: the name of that memory.
        start: the first of its elements.
        parts: the tensors that steps make, and that have to be there before this one is: itself, if a step makes it.
    """

    storage: str
    start: int
    parts: tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    """A tensor as an interval of another one."""

    storage: str
    span: Span


def find_views(
    model: Model, steps: Sequence[Step], processors: Mapping[str, Processor]
) -> tuple[dict[str, View], list[Step]]:
    """The tensors that share memory, and the steps without the slices and joins that need not be carried out.

    That is so where all who make or read them compute in one memory, which can be divided, and only what steps make is
    written, each place once.
    """
    if isinstance(model, UnitedModel):
        return _by_member(model, steps, processors)
    if not isinstance(model, CutModel):
        return {}, list(steps)
    steps = _without(_stored(model), steps)
    places = _places(model)
    memories: dict[str, set[str]] = {}
    whole: set[str] = set()
    for step in steps:
        home = processors[step.processor].place
        for op in step.ops:
            for name in (*model.graph.op[op].inputs, *model.graph.op[op].outputs):
                if name in places:
                    memories.setdefault(places[name].storage, set()).add(home.memory)
                    if not home.divisible:
                        whole.add(places[name].storage)
    inputs = {*model.graph.inputs}  # their memory is the caller's: what is sliced of them is copied
    glue = {one.op.id for one in model.made if one.source is None and inputs.isdisjoint(one.op.inputs)} & places.keys()
    made = {name for step in steps for op in step.ops for name in model.graph.op[op].outputs}
    families: dict[str, list[str]] = {}
    for name, place in places.items():
        if name in made:
            families.setdefault(place.storage, []).append(name)
    views: dict[str, View] = {}
    for storage, names in families.items():
        written = sorted((name for name in names if name not in glue), key=lambda name: places[name].span)
        apart = all(places[a].span.stop <= places[b].span.start for a, b in pairwise(written))
        if not apart or len(memories[storage]) > 1 or storage in whole or not glue.intersection(names):
            continue
        for name in names:
            span = places[name].span
            inner = math.prod(model.graph.tensor[name].shape[span.axis + 1 :])
            parts = tuple(part for part in written if _overlap(places[part].span, span))
            views[name] = View(storage, span.start * inner, parts)
    return views, _without(glue & views.keys(), steps)


def _without(needless: Collection[str], steps: Sequence[Step]) -> list[Step]:
    left = [step.model_copy(update={"ops": tuple(op for op in step.ops if op not in needless)}) for step in steps]
    return [step for step in left if step.ops]


def _stored(model: CutModel) -> set[str]:
    """The joins of outputs that nobody reads as a whole."""
    wanted, found = {*model.held}, set[str]()
    for one in reversed(model.made):
        if one.op.type == "Concat" and one.source is None and wanted.isdisjoint(one.op.outputs):
            found.add(one.op.id)
        else:
            wanted.update(one.op.inputs)
    return found


def _by_member(
    model: UnitedModel, steps: Sequence[Step], processors: Mapping[str, Processor]
) -> tuple[dict[str, View], list[Step]]:
    """What networks side by side have each by itself."""
    found: dict[str, View] = {}
    left: dict[int, Step] = {}
    for place, member in enumerate(model.members):
        called = partial(marked, place)
        own = [
            step.model_copy(update={"ops": tuple(model.member(op)[2] for op in step.ops)})
            for step in steps
            if model.member(step.ops[0])[0] == place
        ]
        views, needed = find_views(member, own, processors)
        for name, view in views.items():
            found[called(name)] = View(called(view.storage), view.start, tuple(map(called, view.parts)))
        for step in needed:
            left[step.id] = step.model_copy(update={"ops": tuple(map(called, step.ops))})
    return found, [left[step.id] for step in steps if step.id in left]


def same_layout(makers: Mapping[str, Processor], model: Model) -> bool:
    """Whether parts of one tensor are handed over in one layout, in which they stand one behind the other.

    ``makers`` are by tensor who makes it, or of what is joined a part. What stands in two places has two layouts.
    """
    if len({processor.place.name for processor in makers.values()}) > 1:
        return False
    blocks = {processor.block(model, name) for name, processor in makers.items()}
    sizes = {model.graph.tensor[name].shape[1] for name in makers} if blocks != {1} else set()
    return len(blocks) == 1 and all(size % block == 0 for size in sizes for block in blocks)


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.stop and other.start < one.stop


def _places(model: CutModel) -> dict[str, _Place]:
    """Where parts, and whatever is contiguous of them, lie in the tensors that are cut."""
    places: dict[str, _Place] = {}
    for one in model.made:
        name = one.op.id
        if one.source is not None:
            if one.part is not None and (span := _interval(one)) and _flat(model.graph, name, span.axis):
                places[name] = _Place(one.source.id, span)
            continue
        found = _sliced(model, one, places) if one.op.type == "Slice" else _joined(model, one, places)
        if found is not None:
            places[name] = found
    return places


def _interval(one: CutOp) -> Span | None:
    """What a part makes, or a slice takes, where that is of one axis: boxes are not in one piece."""
    return one.region.spans[0] if one.region is not None and len(one.region.spans) == 1 else None


def _flat(graph: ModelGraph, tensor: str, axis: int) -> bool:
    return math.prod(graph.tensor[tensor].shape[:axis]) == 1


def _sliced(model: CutModel, one: CutOp, places: dict[str, _Place]) -> _Place | None:
    [source], span = one.op.inputs, _interval(one)
    if span is None or source in model.graph.inputs or not _flat(model.graph, source, span.axis):
        return None
    size = model.graph.tensor[source].shape[span.axis]
    whole = places.setdefault(source, _Place(source, Span(span.axis, 0, size)))
    if whole.span.axis != span.axis:
        return None
    start = whole.span.start
    return _Place(whole.storage, Span(span.axis, start + span.start, start + span.stop))


def _joined(model: CutModel, one: CutOp, places: Mapping[str, _Place]) -> _Place | None:
    found = [places.get(name) for name in one.op.inputs]
    parts = [place for place in found if place is not None]
    if len(parts) < len(found) or len({(place.storage, place.span.axis) for place in parts}) > 1:
        return None
    if any(a.span.stop != b.span.start for a, b in pairwise(parts)):
        return None
    axis = parts[0].span.axis
    if axis != one.op.attributes["axis"]:
        return None
    return _Place(parts[0].storage, Span(axis, parts[0].span.start, parts[-1].span.stop))
