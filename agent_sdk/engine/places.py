"""In which places tensors stand, and who carries them there.

A place is a memory, or a layout within one. A tensor is made in its processor's own layout, if that has one for it,
and moves once to every other place where it is read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from agent_sdk.engine.program import Move, memory_of
from agent_sdk.engine.views import View, same_layout
from agent_sdk.errors import IllegalPlanError
from agent_sdk.model import Model
from agent_sdk.runtimes.base import Processor
from hope_schema import HOST, Plan, Step

Hop = tuple[str, str]


class Places:
    """Where tensors come to exist, and where each step reads them.

    Graph inputs, graph outputs and parts of tensors that are not all handed over in one layout stand in the plain one.

    Args:
        model: the model, cut as the plan says.
        steps: the steps that matter, in order.
        views: the tensors that share memory.
    """

    def __init__(
        self, model: Model, steps: Sequence[Step], processors: Mapping[str, Processor], views: Mapping[str, View]
    ) -> None:
        graph = model.graph
        self._model, self._processors, self._views = model, processors, views
        self._makers = {
            name: processors[step.processor] for step in steps for op in step.ops for name in graph.op[op].outputs
        }
        self._makers |= {name: self._makers[view.parts[-1]] for name, view in views.items()}
        self._readers: dict[str, list[tuple[Processor, tuple[str, ...]]]] = {}
        for step in steps:
            for name in dict.fromkeys(name for op in step.ops for name in graph.op[op].inputs):
                self._readers.setdefault(name, []).append((processors[step.processor], step.ops))
        self.made = {name: self._made(name) for name in self._makers} | dict.fromkeys(graph.inputs, HOST)
        """By tensor, the place where it comes to exist."""
        for storage in {view.storage for view in views.values()}:
            family = [name for name, view in views.items() if view.storage == storage]
            makers = {name: self._makers[name] for name in family}
            plain = any(self.made[name] == makers[name].place.memory for name in family)
            if plain or any(self._elsewhere(name) for name in family) or not same_layout(makers, model):
                self.made |= {name: makers[name].place.memory for name in family}
        self._read: dict[Hop, str] = {}

    def _elsewhere(self, name: str) -> list[Processor]:
        """Who reads a tensor from another place than its maker's."""
        here = self._makers[name].place.name
        return [reader for reader, _ in self._readers.get(name, ()) if reader.place.name != here]

    def _made(self, name: str) -> str:
        place = self._makers[name].place
        if name in self._model.held:
            return place.memory
        leaves_plain = self._elsewhere(name) and (
            self._makers[name].block(self._model, name) == 1 or self.changer(place.name) is None
        )
        return place.memory if leaves_plain else place.name

    def read(self, name: str, processor: Processor) -> str:
        """Where a processor reads a tensor: where it was made, or in its own layout if a reader there wants that."""
        here, made = processor.place, self.made[name]
        if name not in self._makers or name in self._views:
            return made if made == here.name else here.memory
        if here.name == self._makers[name].place.name:
            return made
        if (name, here.name) not in self._read:
            native = any(
                reader.reads_native(self._model, name, ops)
                for reader, ops in self._readers[name]
                if reader.place.name == here.name
            )
            self._read[name, here.name] = here.name if native else here.memory
        return self._read[name, here.name]

    def changer(self, place: str, resources: Iterable[str] = ()) -> Processor | None:
        """Who changes between this layout and the plain one: the widest on these resources, else a single core."""
        within = set(resources)
        able = [own for own in self._processors.values() if own.place.name == place]
        wide = [own for own in able if within.issuperset(own.spec.resources)]
        single = [own for own in able if own.spec.threads == 1]  # computes on the thread that calls it
        return max(wide or single, key=lambda own: own.spec.threads, default=None)

    def _queued(self, target: str) -> bool:
        """Whether a queue brings a tensor there: a layout into which no single thread changes is its first reader's."""
        return target == memory_of(target) or self.changer(target) is not None

    def cores_of(self, engine: str) -> frozenset[int]:
        """The CPUs of whose copy engine this is; none where it is nobody's."""
        owners = (own for own in self._processors.values() if engine in (own.copy_engines or ()))
        return next((own.caller_cores for own in owners), frozenset())

    def sends(self, move: Move) -> bool:
        """Whether a move is what a queue carries from this machine to the memory of another host, and is something."""
        far = {own.place.memory: own.place for own in self._processors.values() if own.spec.host != HOST}
        here, target = memory_of(move.source) in (*far, HOST), far.get(move.target)
        return bool(move.over and here and target and target.keeps and self._model.graph.tensor[move.tensor].bytes)

    def read_in(self, name: str, memory: str) -> list[str]:
        """The places of a memory in which a tensor is read."""
        readers = (reader for reader, _ in self._readers.get(name, ()) if reader.place.memory == memory)
        return list(dict.fromkeys(self.read(name, reader) for reader in readers))

    def carried(self, plan: Plan, memories: set[str]) -> dict[str, list[Move]]:
        """The plan's transfers that a resource of its own carries between memories, by tensor, hop by hop.

        The rest is the readers', and what no step that matters reads is not moved. Graph inputs are loaded before a run
        and outputs stored after it, whatever carries them. Raises IllegalPlanError for what cannot be executed in these
        memories.
        """
        graph = self._model.graph
        found: dict[str, list[Move]] = {}
        there: dict[str, set[str]] = {}
        through: dict[str, str] = {}
        read = {
            (part, reader.place.memory)
            for name, readers in self._readers.items()
            for part in (self._views[name].parts if name in self._views else (name,))
            for reader, _ in readers
        }
        for transfer in reversed(plan.transfers):  # what is sent on is wanted where it comes by
            if (transfer.tensor, memory_of(transfer.target)) in read:
                read.add((transfer.tensor, memory_of(transfer.source)))
        for transfer in plan.transfers:
            name = transfer.tensor
            what = f"the plan moves '{name}' from {transfer.source} to {transfer.target}"
            if name not in graph.tensor:
                raise IllegalPlanError(f"{what}, which model '{graph.name}' does not have")
            source, target = memory_of(transfer.source), memory_of(transfer.target)
            if {source, target} - memories - {HOST}:
                raise IllegalPlanError(f"{what}, where none of its processors computes")
            if source == target or name not in self._makers or (name, target) not in read:
                continue
            wanted, home = self.read_in(name, target), self.made[name]
            if target == HOST and not wanted:
                through.setdefault(name, source)
                continue
            before = there.setdefault(name, {memory_of(home)})
            if source == HOST and HOST not in before:
                source = through.get(name, source)  # from one host to another it only passes through this one
            if source not in before:
                raise IllegalPlanError(f"{what}, but it is not there")
            if transfer.over is None:
                continue
            before.add(target)
            moves = found.setdefault(name, [])
            for end in wanted or [target]:
                way = hops(home if memory_of(home) == source else source, end)
                gone = {move.target for move in moves}
                moves += [Move(name, *hop, transfer.over) for hop in way if hop[1] not in gone and self._queued(hop[1])]
        return found


def hops(source: str, target: str) -> Iterator[Hop]:
    """The way from one place to another: to the plain layout, to the other memory, into a layout."""
    between = () if source == target else (memory_of(source), memory_of(target), target)
    return pairwise(dict.fromkeys((source, *between)))
