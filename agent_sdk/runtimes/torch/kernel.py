"""A super-op as a function of tensors on one device: folded, its constants there, its outputs' memory known."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from agent_sdk.errors import CompilationFailed, OutOfMemory, ProcessorError, UnsupportedOp, WrongOutput
from agent_sdk.model import Model
from agent_sdk.model.feeds import Feeds, feeds_of_segment
from agent_sdk.runtimes.base import segment_of
from agent_sdk.runtimes.faults import first_line, lacks_memory
from agent_sdk.runtimes.torch.fold import fold
from agent_sdk.runtimes.torch.node import Node, node_of
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.table import OTHERS, Call, call_for
from hope_schema import SuperOp, TensorType

MISSING: Final = ("not implemented for", "could not run", "not supported", "not currently supported")
"""What torch says, in lower case, where it has no kernel for an element type or a device."""
LONGEST: Final = max(map(len, OTHERS))
"""Most ops in a row that one call runs."""


@dataclass(frozen=True)
class Line:
    """One call; arguments are constants, or places in the kernel's list of tensors (None where left out)."""

    call: Call
    arguments: tuple[Tensor | int | None, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """A super-op ready to be launched.

    Attributes:
        inputs: the activations it reads, in the order of its call's arguments.
        outputs: those it returns.
        types: of all of these, as they are held on the device.
        feeds: draws what it reads.
        recipe: which of the ways to run it; see ``recipes``.
        views: outputs that share the memory of an input, and which; see ``in_row``.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType] = field(repr=False)
    lines: tuple[Line, ...] = field(repr=False)
    places: tuple[int, ...] = field(repr=False)
    count: int = field(repr=False)
    feeds: Feeds = field(repr=False)
    recipe: int = 0
    views: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Launch it on the current stream."""
        held: list[Any] = [*tensors, *(None,) * (self.count - len(tensors))]
        for line in self.lines:
            given = [held[argument] if isinstance(argument, int) else argument for argument in line.arguments]
            made = line.call(*given)
            for place, tensor in zip(line.results, made if isinstance(made, tuple) else (made,), strict=True):
                held[place] = tensor
        return tuple(held[place] for place in self.places)

    def renamed(self, name_of: Callable[[str], str]) -> "Kernel":
        """The same, with other names."""
        return replace(
            self,
            name=name_of(self.name),
            inputs=tuple(map(name_of, self.inputs)),
            outputs=tuple(map(name_of, self.outputs)),
            types={name_of(name): kind for name, kind in self.types.items()},
            views={name_of(name): name_of(source) for name, source in self.views.items()},
        )


def build(super_op: SuperOp, model: Model, precision: Precision, device: torch.device, recipe: int = 0) -> Kernel:
    """Make a super-op's kernel by one of its recipes and run it once. Recipe 0 is the table's; see ``recipes``.

    Raises:
        UnsupportedOp: the table, or torch on this device, lacks a call.
        WrongOutput: it returns another shape than the graph declares.
        OutOfMemory, CompilationFailed: torch failed otherwise.
    """
    try:
        nodes = _folded(super_op, model, precision, device)
        place: dict[str, int] = {name: index for index, name in enumerate(super_op.inputs)}
        lines = []
        for call, node in _calls(nodes, frozenset(super_op.outputs), recipe):
            arguments = tuple(_argument(node, index, place, precision, device) for index in range(len(node.inputs)))
            for name in filter(None, node.outputs):
                place.setdefault(name, len(place))
            lines.append(Line(call, arguments, tuple(place[name] for name in node.outputs if name)))
        tensors = model.graph.tensor
        kernel = Kernel(
            name=super_op.id,
            inputs=super_op.inputs,
            outputs=super_op.outputs,
            types={name: precision.held(tensors[name].type) for name in (*super_op.inputs, *super_op.outputs)},
            lines=tuple(lines),
            places=tuple(place[name] for name in super_op.outputs),
            count=len(place),
            feeds=feeds_of_segment(segment_of(super_op, model)),
            recipe=recipe,
        )
        return _run(kernel, drawn(kernel, precision, device), precision)[0]
    except Exception as error:
        raise translated(error, f"{precision.name} on {device}, op '{super_op.id}'", CompilationFailed) from error


def recipes(super_op: SuperOp, model: Model, precision: Precision, device: torch.device) -> int:
    """How many ways there are to run a super-op. Raises UnsupportedOp where there is none."""
    nodes = _folded(super_op, model, precision, device)
    kept = frozenset(super_op.outputs)
    return max(len(list(_ways(nodes, index, kept))) for index in range(len(nodes)))


def _folded(super_op: SuperOp, model: Model, precision: Precision, device: torch.device) -> list[Node]:
    nodes = [
        node_of(
            model,
            op.id,
            half=precision.half,
            cuda=device.type == "cuda",
            channels_last=precision.channels_last,
        )
        for op in super_op.ops
    ]
    return fold(nodes, frozenset(super_op.outputs))


def _calls(nodes: Sequence[Node], kept: frozenset[str], recipe: int) -> Iterator[tuple[Call, Node]]:
    """The calls of a recipe: of each op's ways the one of that number, or its last."""
    index = 0
    while index < len(nodes):
        ways = list(_ways(nodes, index, kept))
        call, count = ways[min(recipe, len(ways) - 1)]
        last = nodes[index + count - 1]
        yield call, replace(nodes[index], outputs=last.outputs, types={**nodes[index].types, **last.types})
        index += count


def _ways(nodes: Sequence[Node], index: int, kept: frozenset[str]) -> Iterator[tuple[Call, int]]:
    """The table's call for an op, then others for it, and for it together with those that follow."""
    yield call_for(nodes[index]), 1
    for count in range(1, LONGEST + 1):
        row = nodes[index : index + count]
        linked = all(
            behind.inputs == before.outputs and before.outputs[0] not in kept for before, behind in pairwise(row)
        )
        if len(row) == count and linked:
            for maker in OTHERS.get(tuple(node.type for node in row), ()):
                call = maker(*row)
                if call is not None:
                    yield call, count


def _argument(
    node: Node, index: int, place: Mapping[str, int], precision: Precision, device: torch.device
) -> Tensor | int | None:
    name = node.inputs[index]
    if not name:
        return None
    if name not in node.constants:
        return place[name]
    value = torch.from_numpy(node.constants[name].copy())
    value = value.to(device, precision.dtype(value.dtype))
    if precision.channels_last and node.type == "Conv" and value.dim() == 4:
        value = value.contiguous(memory_format=torch.channels_last)
    return value


def drawn(kernel: Kernel, precision: Precision, device: torch.device) -> list[Tensor]:
    """Tensors that a kernel may read: what is data is drawn on the device."""
    generator = torch.Generator(device).manual_seed(0)
    made = []
    for name in kernel.inputs:
        kind = kernel.types[name]
        dtype = getattr(torch, kind.dtype)
        if dtype.is_floating_point and kernel.feeds.use(name, kind) is None:
            tensor = torch.randn(kind.shape, generator=generator, device=device).to(dtype)
        else:
            tensor = torch.from_numpy(kernel.feeds.tensor(name, kind, np.random.default_rng(0))).to(device)
        made.append(precision.laid_out(tensor))
    return made


def in_row(kernels: Sequence[Kernel], precision: Precision, device: torch.device) -> list[Kernel]:
    """The kernels of a segment, in a topological order, with the views that each makes of what those before it return.

    A plain tensor is relabelled where it stands; one that came as a view of another shape may have to be copied.
    """
    final = {name: index for index, kernel in enumerate(kernels) for name in kernel.inputs}
    memory: dict[str, Tensor] = {}
    found = []
    for index, kernel in enumerate(kernels):
        try:
            for name in kernel.inputs:
                if name not in memory:
                    kind = kernel.types[name]
                    plain = torch.zeros(kind.shape, dtype=getattr(torch, kind.dtype), device=device)
                    memory[name] = precision.laid_out(plain)
            kernel, made = _run(kernel, [memory[name] for name in kernel.inputs], precision)
        except Exception as error:
            raise translated(error, f"{precision.name} on {device}, op '{kernel.name}'", CompilationFailed) from error
        found.append(kernel)
        memory.update(zip(kernel.outputs, made, strict=True))
        memory = {name: tensor for name, tensor in memory.items() if final.get(name, 0) > index}
    return found


def _run(kernel: Kernel, given: Sequence[Tensor], precision: Precision) -> tuple[Kernel, tuple[Tensor, ...]]:
    """Run it once: what it returns, and with which outputs look at the memory of which input, or output before."""
    with precision.switched():
        made = kernel(*given)
    memory = {tensor.untyped_storage().data_ptr(): name for name, tensor in zip(kernel.inputs, given, strict=True)}
    views = {}
    for name, tensor in zip(kernel.outputs, made, strict=True):
        if tuple(tensor.shape) != kernel.types[name].shape or tensor.dtype != getattr(torch, kernel.types[name].dtype):
            raise WrongOutput(
                f"'{name}' came out as {tensor.dtype}{list(tensor.shape)}, the graph declares {kernel.types[name]}"
            )
        at = tensor.untyped_storage().data_ptr()
        if tensor.numel() and at in memory:
            views[name] = memory[at]
        memory.setdefault(at, name)
    return replace(kernel, views=views), made


def translated(error: Exception, where: str, meaning: Callable[[str], ProcessorError]) -> ProcessorError:
    """What an error of torch means: ``meaning``, unless memory ran out or there is no kernel for what is asked."""
    if isinstance(error, ProcessorError):
        return error
    text = first_line(error)
    if isinstance(error, torch.OutOfMemoryError) or lacks_memory(error):
        return OutOfMemory(f"{where}: {text}; close other programs on the device, or use a smaller model")
    if isinstance(error, NotImplementedError) or any(mark in text.lower() for mark in MISSING):
        return UnsupportedOp(f"{where}: torch {torch.__version__} cannot run this: {text}")
    return meaning(f"{where}: torch failed: {text}")
