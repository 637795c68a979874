"""ONNX Runtime's own optimised graph, frozen to a file, so that every segment is cut from the same one.

The runtime fuses kernels and lays tensors out in channel blocks (NCHWc) only when it sees a whole network, and the
order and names in what it writes differ from process to process. So the optimised graph is written once per model,
runtime version and machine, its weights beside it (aligned, and mapped into memory by every session that uses
them, not copied), and its tensors are identified with the source graph's by name and structure.
"""

import logging
import os
import shutil
import threading
from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import onnx
import onnxruntime as ort

from agent_sdk.errors import NotWantedError, OutOfMemory, ProcessorLost
from agent_sdk.files import one_at_a_time
from agent_sdk.forking import TemporaryFolder
from agent_sdk.machine.soc import read_soc
from agent_sdk.model import Model
from agent_sdk.model.equal import identity, renames, repeatable
from agent_sdk.model.nodes import reads
from agent_sdk.model.weights import GRAPH_FILE, INLINE_BYTES, WEIGHTS_FILE, LightModels, WeightsFile
from agent_sdk.runtimes.faults import lacks_memory, machines_fault
from agent_sdk.runtimes.ort.fusion import SUMS, activation, summand, take_apart
from agent_sdk.runtimes.ort.options import LEVELS, opened, options
from hope_schema import ModelGraph, Op
from hope_schema.hashing import digest

log = logging.getLogger(__name__)

WEIGHTS_BYTES: Final = "hope_weights_bytes"
"""Key of the graph file's metadata: how long the weights file must be."""
FORMAT: Final = 1
"""Raise when what is written changes."""
MAX_FROZEN: Final = 24
"""Frozen graphs kept on disk; the ones used longest ago are dropped first."""
MOVING_S: Final = 10.0
"""How long another process that moves one into place, which takes milliseconds, is waited for."""
BLOCKED_DOMAIN: Final = "com.microsoft.nchwc"
BLOCKED_SUFFIXES: Final = ("_bn_nchwc", "_mul_nchwc", "_nchwc")
"""How the runtime names a blocked kernel after the tensor of the kernel it replaces."""


@dataclass(frozen=True)
class Fusion:
    """What a fused kernel keeps to itself, classes of tensors; and the indices of the nodes that do it in steps."""

    inside: frozenset[str]
    steps: range


class FrozenGraph:
    """The optimised graph of one model and what its tensors mean.

    ``meaning`` maps a frozen tensor to the *class* of source tensors it holds (equal by construction: the runtime
    merges twins) and whether it is blocked; ``forms`` is the other way round. ``nodes`` are the ``kernels`` that the
    runtime wrote and, behind them, what fused ones (``fusions``, by what they write) are taken apart into; ``order``
    has their places in a topological order.
    """

    def __init__(self, model: Model, directory: Path) -> None:
        self.directory = directory
        self.source: ModelGraph = model.graph
        self.proto = onnx.load(directory / GRAPH_FILE, load_external_data=False)
        self.constants = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        self.kernels = tuple(self.proto.graph.node)
        self.producer = {name: index for index, node in enumerate(self.kernels) for name in node.output if name}
        self.readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.kernels):
            for name in reads(node):
                self.readers.setdefault(name, []).append(index)
        self.class_of = tensor_classes(model)
        self.meaning = self._meaning()
        self.nodes = list(self.kernels)
        self.order = [(index, 0) for index in range(len(self.kernels))]
        self.fusions: dict[str, Fusion] = {}
        self._take_apart()

    def inputs_of(self, node: onnx.NodeProto) -> list[str]:
        """The activation tensors a frozen node reads, each once."""
        return [name for name in reads(node) if name not in self.constants]

    @cached_property
    def forms(self) -> Mapping[tuple[str, bool], str]:
        """(class, blocked) to the frozen tensor that holds it; the first in node order."""
        return {form: name for name, form in reversed(self.meaning.items())}

    def native_blocked(self, tensor: str) -> bool:
        """Whether segments hand this source tensor to each other blocked.

        That is the form its producer writes, if it can be converted either way: ReorderInput wants channels in
        fours. It depends on the graph alone, so every segment of every plan agrees.
        """
        shape = self.source.tensor[tensor].shape
        name = self.forms.get((self.class_of[tensor], True))
        if name is None or len(shape) != 4 or shape[1] % 4:
            return False
        return str(self.nodes[self.producer[name]].op_type) != "ReorderInput"

    def reads_blocked(self, tensor: str, ops: Collection[str]) -> bool:
        """Whether a kernel that computes some of these source ops reads a source tensor in blocks."""
        name = self.forms.get((self.class_of[tensor], True))
        made = {self.class_of[output] for op in ops for output in self.source.op[op].outputs}
        readers = (self.kernels[index] for index in self.readers.get(name or "", ()))
        return any(
            node.op_type != "ReorderOutput" and self.meaning.get(node.output[0], ("", True))[0] in made
            for node in readers
        )

    def _meaning(self) -> dict[str, tuple[str, bool]]:
        meaning = {name: (self.class_of[name], False) for name in self.source.inputs}
        blocked: set[str] = set()
        for node in self.kernels:
            fed = node.domain == BLOCKED_DOMAIN or any(name in blocked for name in node.input)
            if fed and node.op_type != "ReorderOutput":
                blocked.update(node.output)
        plain = (name for node in self.kernels for name in node.output if name in self.class_of)
        meaning |= {name: (self.class_of[name], False) for name in plain if name not in blocked}
        for node in self.kernels:
            if node.op_type == "ReorderOutput" and node.output[0] in self.class_of:
                meaning[node.input[0]] = (self.class_of[node.output[0]], True)
            elif node.op_type == "ReorderInput" and node.input[0] in self.class_of:
                meaning[node.output[0]] = (self.class_of[node.input[0]], True)
        for node in self.kernels:
            name = node.output[0]
            if name in blocked and name not in meaning:
                tensor = self._named_after(node)
                if tensor is not None:
                    meaning[name] = (self.class_of[tensor], True)
        return meaning

    def _take_apart(self) -> None:
        for index, node in enumerate(self.kernels):
            steps = take_apart(node, self.source, self.class_of, self.meaning)
            if not steps:
                continue
            blocked = self.meaning[node.output[0]][1]
            indices = range(len(self.nodes), len(self.nodes) + len(steps))
            self.nodes += [step.node for step in steps]
            self.order += [(index, place) for place in range(len(steps))]
            for place, step in zip(indices[:-1], steps, strict=False):
                self.producer[step.node.output[0]] = place
                self.meaning[step.node.output[0]] = (step.klass, blocked)
            self.fusions[node.output[0]] = Fusion(frozenset(step.klass for step in steps[:-1]), indices)

    def _named_after(self, node: onnx.NodeProto) -> str | None:
        """The source tensor that a blocked kernel writes: the one in its name, or what was fused behind that."""
        text = node.name
        for suffix in BLOCKED_SUFFIXES:
            base = text.removesuffix(suffix)
            if base != text and base in self.class_of:
                text = base
                break
        if text not in self.class_of:
            return None
        if node.op_type != "Conv":
            return text
        if summand(node):
            added = self._sole_reader(text, SUMS)
            if added is None:
                return None
            text = added.outputs[0]
        kind = activation(node)
        if kind and self.source.op[self.source.producer[text]].type != kind:
            after = self._sole_reader(text, frozenset({kind}))
            if after is None:  # a Relu between, for example, which the bounds of a Clip took in
                return None
            text = after.outputs[0]
        return text

    def _sole_reader(self, tensor: str, types: frozenset[str]) -> Op | None:
        """The op that alone reads ``tensor``, if it is of one of ``types``; ops that only rename are skipped."""
        readers = self.source.consumers.get(tensor, ())
        if len(readers) != 1 or tensor in self.source.outputs:
            return None
        op = self.source.op[readers[0]]
        if self.class_of[op.outputs[0]] == self.class_of[tensor]:
            return self._sole_reader(op.outputs[0], types)
        return op if op.type in types else None


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


class FrozenGraphs:
    """Frozen graphs by model, on disk and (the ones in use) in memory; safe to use from several threads.

    ``lights`` are the same models as they were, their weights in files too.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._machine = read_soc().name
        self.lights = LightModels(directory / "weights")
        self._lock = threading.Lock()
        self._open: dict[str, FrozenGraph | None] = {}

    def get(self, model: Model) -> FrozenGraph | None:
        """The frozen graph of ``model``, made on the first call; None when ONNX Runtime refuses the whole.

        Raises OutOfMemory, also for want of disk, or ProcessorLost, and tries again when it is called again: segments
        with and without a frozen graph would not agree on the form in which they hand over tensors.
        """
        key = digest([FORMAT, model.content_digest, ort.__version__, self._machine])[:32]
        with self._lock:
            if key not in self._open:
                self._open = {key: self._load(model, self._directory / key)} | dict(list(self._open.items())[:7])
            return self._open[key]

    def _load(self, model: Model, path: Path) -> FrozenGraph | None:
        where = f"the optimised graph of '{model.name}' in '{self._directory}'"
        if not _complete(path):
            try:
                light = self.lights.get(model)[0]
                self._directory.mkdir(parents=True, exist_ok=True)
                assert light.path is not None
                freeze(light.path, path)
            except (OutOfMemory, NotWantedError):
                raise
            except Exception as error:
                if fault := machines_fault(error, where, str(error).strip() or type(error).__name__):
                    raise fault from error
                log.info("ONNX Runtime does not take '%s' as a whole: %s", model.name, error)
                return None
            with suppress(OSError):  # another process may be pruning too
                self._prune(keep=path)
        with suppress(OSError):  # where it cannot be marked as used, nobody can prune it either
            os.utime(path)
        try:
            return FrozenGraph(model, path)
        except OSError as error:  # somebody has just removed it, or reading fails
            raise ProcessorLost(f"{where}: {error}") from error

    def _prune(self, keep: Path) -> None:
        kept = sorted(
            (path for path in self._directory.iterdir() if (path / GRAPH_FILE).is_file()),
            key=lambda p: p.stat().st_mtime,
        )
        for path in kept[:-MAX_FROZEN]:
            if path != keep:
                shutil.rmtree(path, ignore_errors=True)


def freeze(source: Path, target: Path) -> None:
    """Let ONNX Runtime optimise the model file ``source`` and keep the result in the directory ``target``, atomically.

    Weights go through files, one tensor at a time, so that memory holds few copies of them. The scratch folder stands
    in that of the light model: if this process is killed, it is removed with it.
    """
    with TemporaryFolder(directory=source.parent) as scratch:
        optimised, made = (scratch / name for name in ("optimised", "made"))
        for folder in (optimised, made):
            folder.mkdir()
        _optimise(source, optimised / GRAPH_FILE)
        proto = onnx.load(optimised / GRAPH_FILE, load_external_data=False)
        taken: set[str] = set()
        for index, node in enumerate(proto.graph.node):
            if not node.name or node.name in taken:
                node.name = f"unnamed_{index}"
            taken.add(node.name)
        with WeightsFile(made / WEIGHTS_FILE) as weights:
            kept = [weights.keep(tensor, optimised) for tensor in proto.graph.initializer]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)
        proto.metadata_props.add(key=WEIGHTS_BYTES, value=str((made / WEIGHTS_FILE).stat().st_size))
        (made / GRAPH_FILE).write_bytes(proto.SerializeToString())
        with one_at_a_time(target.parent, MOVING_S):
            try:
                os.replace(made, target)
            except OSError:  # another process was faster, and its files are as good; or what is there is damaged
                if not _complete(target):
                    os.replace(target, scratch / "damaged")
                    os.replace(made, target)


def _optimise(source: Path, target: Path) -> None:
    """Write the optimised form of a model file, at the highest level at which the runtime manages.

    NOTE: its optimiser has bugs that make it refuse what it has itself rewritten (a Pad whose input is also a
    graph output by way of an Identity, in 1.31); a lower level then does. It is no cure for a shortage, and what is
    written is kept for good.
    """
    for level in LEVELS:
        entries = {
            "optimized_model_external_initializers_file_name": WEIGHTS_FILE,
            "optimized_model_external_initializers_min_size_in_bytes": str(INLINE_BYTES),
        }
        own = options(1, entries, level=level)
        own.optimized_model_filepath = str(target)
        try:
            opened(str(source), own)
            return
        except NotWantedError:
            raise
        except Exception as error:
            if level == LEVELS[-1] or lacks_memory(error):
                raise
            log.info("%s: optimising less, because ONNX Runtime says: %s", source, error)


def _complete(path: Path) -> bool:
    try:
        proto = onnx.load(path / GRAPH_FILE, load_external_data=False)
        sizes = [entry.value for entry in proto.metadata_props if entry.key == WEIGHTS_BYTES]
        return sizes == [str((path / WEIGHTS_FILE).stat().st_size)]
    except Exception as error:  # noqa: BLE001  a damaged file may fail in any way; it is made anew
        if path.exists():
            log.info("frozen graph %s is damaged and is made anew: %s", path, error)
        return False
