"""A device of many streams that is none: what is recorded runs on the CPU in any order that the events allow.

The oracle for schedules. Memory is handed out as torch's caching allocator does it, by stream: what is freed may be
taken by the next allocation of the stream it was made on, whatever other streams still do. So a missing event, or
memory that is given back too early, gives wrong numbers in some replay; and ``races`` finds it in all of them, by
asking of any two launches that touch the same memory, one of them writing, whether events order them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import override

from agent_sdk.runtimes.torch.driver import Driver, Recording


@dataclass(eq=False)
class Block:
    """Memory that one stream allocated."""

    stream: int
    memory: torch.Tensor
    users: int = 0


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor that lies in a block (or outside, where the block is None), with the value it has in issue order."""

    block: Block | None
    value: torch.Tensor

    def read(self) -> torch.Tensor:
        """What stands in the memory now."""
        if self.block is None:
            return self.value
        flat = self.block.memory.view(self.value.dtype)
        return torch.as_strided(flat, self.value.shape, self.value.stride(), self.value.storage_offset())

    def write(self, value: torch.Tensor) -> None:
        """Put a value into the memory."""
        self.read().copy_(value)


@dataclass(eq=False)
class Launch:
    """A call with the tensors it reads, and those of its results that are written rather than views."""

    call: Callable[..., Any]
    reads: list[Held]
    writes: list[Held]
    places: list[int]
    stream: int
    clock: dict[int, int] = field(default_factory=dict)
    place: int = 0


class Simulated(Driver):
    """Streams and events on the CPU."""

    device = torch.device("cpu")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @contextmanager
    @override
    def recording(self, streams: int, *, rehearsal: bool = False) -> Iterator[Recording]:
        self._lines: list[list[Launch | tuple[str, int]]] = [[] for _ in range(streams)]
        self._free: list[list[Block]] = [[] for _ in range(streams)]
        self._held: dict[int, Held] = {}
        self._blocks: dict[int, Block] = {}
        self._events = 0
        self.blocks: list[Block] = []
        made = _Replay(self._lines, random.Random(self.seed))
        yield made

    @override
    def launch(
        self, stream: int, call: Any, reads: Sequence[str], writes: Sequence[str], memory: dict, urgency: int = 0
    ) -> None:
        given = [self._as_held(memory, name) for name in reads]
        made = call(*[one.value for one in given])
        held, written = [], []
        for tensor in made:
            at = tensor.untyped_storage().data_ptr()
            known = next((one for one in given if one.value.untyped_storage().data_ptr() == at), None)
            if known is None:
                known = next((one for one in held if one.value.untyped_storage().data_ptr() == at), None)
            block = self._allocated(stream, tensor.untyped_storage().nbytes()) if known is None else known.block
            if block is not None:
                block.users += 1
            held.append(Held(block, tensor))
            if known is None:
                written.append(held[-1])
        for name, one in zip(writes, held, strict=True):
            memory[name] = one
        if written or not made:  # a view launches nothing
            places = [held.index(one) for one in written]
            self._lines[stream].append(Launch(call, given, written, places, stream))

    def _as_held(self, memory: dict, name: str) -> Held:
        if not isinstance(memory[name], Held):
            memory[name] = Held(None, memory[name])
        return memory[name]

    def _allocated(self, stream: int, size: int) -> Block:
        fitting = [block for block in self._free[stream] if block.memory.numel() >= size]
        if fitting:
            block = min(fitting, key=lambda one: one.memory.numel())
            self._free[stream].remove(block)
            return block
        self.blocks.append(Block(stream, torch.zeros(-(-size // 64) * 64, dtype=torch.uint8)))
        return self.blocks[-1]

    @override
    def free(self, stream: int, names: Sequence[str], memory: dict) -> None:
        for name in names:
            block = memory.pop(name).block
            if block is not None:
                block.users -= 1
                if block.users == 0:
                    self._free[block.stream].append(block)

    @override
    def signal(self, stream: int) -> int:
        self._events += 1
        self._lines[stream].append(("signal", self._events))
        return self._events

    @override
    def wait(self, stream: int, event: int) -> None:
        self._lines[stream].append(("wait", event))

    @override
    def fork(self, streams: int) -> None:
        self.fork_event = self.signal(0)
        for stream in range(1, streams):
            self.wait(stream, self.fork_event)

    def synchronise(self) -> None:
        """Replays are over when they return."""


class _Replay(Recording):
    def __init__(self, lines: list[list[Launch | tuple[str, int]]], draw: random.Random) -> None:
        self.lines, self.draw = lines, draw

    def replay(self) -> None:
        """Run in an order drawn anew."""
        self._walk(self._run)

    def races(self) -> list[str]:
        """Pairs of launches that touch the same memory, one of them writing, in an order that nothing guarantees."""
        seen: dict[Block, list[tuple[Launch, bool]]] = {}
        found = []

        def visit(launch: Launch) -> None:
            touched = [(one.block, False) for one in launch.reads] + [(one.block, True) for one in launch.writes]
            for block, writes in touched:
                if block is None:
                    continue
                for other, wrote in seen.setdefault(block, []):
                    if (writes or wrote) and other is not launch and other.place >= launch.clock.get(other.stream, 0):
                        found.append(f"{other.call} and {launch.call} on streams {other.stream} and {launch.stream}")
                seen[block].append((launch, writes))

        self._walk(visit)
        return found

    def finished(self) -> bool:
        """Whether the first stream, at its end, has waited for everything."""
        clocks = self._walk(lambda _: None)
        counts = [sum(isinstance(line, Launch) for line in own) for own in self.lines]
        return all(clocks[0].get(stream, 0) >= count for stream, count in enumerate(counts))

    def _walk(self, visit: Callable[[Launch], None]) -> list[dict[int, int]]:
        """Go through the lines in a legal order drawn anew, with the vector clock of every launch."""
        at = [0] * len(self.lines)
        clocks: list[dict[int, int]] = [{} for _ in self.lines]
        events: dict[int, dict[int, int]] = {}
        while True:
            ready = [s for s, own in enumerate(self.lines) if at[s] < len(own) and self._may(own[at[s]], events)]
            if not ready:
                assert all(at[s] == len(own) for s, own in enumerate(self.lines)), (
                    "streams wait for each other for ever"
                )
                return clocks
            stream = self.draw.choice(ready)
            line = self.lines[stream][at[stream]]
            at[stream] += 1
            clock = clocks[stream]
            if isinstance(line, Launch):
                line.place = clock.get(stream, 0)
                line.clock = dict(clock)
                visit(line)
                clock[stream] = line.place + 1
            elif line[0] == "signal":
                events[line[1]] = dict(clock)
            else:
                for other, count in events[line[1]].items():
                    clock[other] = max(clock.get(other, 0), count)

    def _may(self, line: Any, events: dict[int, dict[int, int]]) -> bool:
        return isinstance(line, Launch) or line[0] == "signal" or line[1] in events

    def _run(self, launch: Launch) -> None:
        made = launch.call(*[one.read() for one in launch.reads])
        for held, place in zip(launch.writes, launch.places, strict=True):
            held.write(made[place].clone())
