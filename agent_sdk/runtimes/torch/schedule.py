"""On which stream each step runs, which events keep order, and when memory may be given back: plain data, no torch.

A *task* is a step as the plan times it. Streams are as few as the plan's overlaps need (an interval graph is coloured
with as many colours as intervals overlap, whatever free one is taken); which free one, so that few events are needed.

What a stream *knows* is, per stream, how many of its tasks are finished whenever the next task starts (a vector clock).
A task waits for an event only where what its stream knows does not cover a producer. Memory goes back to the allocator
of the stream it was made on, before the first task of that stream that knows all who touched it to be finished: what
is allocated there from then on comes behind them, by program order or behind an event.

Networks of one plan share no tensor, so each has streams of its own: what really happens is not what was planned to
the microsecond, and behind a task of another network one would wait for nothing. Which of them may wait says a task's
*urgency*: how little of the longest way through all tasks it may be late without making that longer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

SLACK_US: Final = 1e-3
"""Intervals that overlap by less than this touch."""
MAY_WAIT: Final = (0.02, 0.08, 0.2, 0.35, 0.6)
"""By how much of the longest way a task of each urgency may be late, from the greatest urgency to 1; by more: 0."""


@dataclass(frozen=True)
class Task:
    """A step with its planned interval.

    ``reads`` and ``writes`` name tensors; ``views`` maps a written tensor to the read one whose memory it looks at.
    ``alone_us`` is what it takes with nobody beside it; None where that is not known.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    start_us: float
    finish_us: float
    alone_us: float | None = None
    views: Mapping[str, str] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """What it takes alone, or as it is planned."""
        return self.finish_us - self.start_us if self.alone_us is None else self.alone_us


@dataclass(frozen=True)
class Issue:
    """A task in the order of issue.

    Attributes:
        task: its place among the tasks.
        stream: where it runs.
        waits: issues (by place) whose event its stream waits for before.
        signals: whether an event is recorded behind it.
        frees: tensors that nobody needs any more; their memory may be taken over from this issue on.
        urgency: the greater goes first where two are ready: 0 to ``len(MAY_WAIT)``.
    """

    task: int
    stream: int
    waits: tuple[int, ...]
    signals: bool
    frees: tuple[str, ...]
    urgency: int = 0


@dataclass(frozen=True)
class Schedule:
    """All issues, and what the first stream waits for at the end so that everything is finished."""

    issues: tuple[Issue, ...]
    streams: int
    joins: tuple[int, ...]


def networks(tasks: Sequence[Task]) -> list[list[int]]:
    """The tasks, by place, in groups that share no tensor; in the order of the first task of each."""
    group: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        names = (*task.reads, *task.writes)
        joined = {id(group[name]): group[name] for name in names if name in group}
        largest = max(joined.values(), key=len, default=[])
        for other in joined.values():
            if other is not largest:
                largest += other
                for name in (name for place in other for name in (*tasks[place].reads, *tasks[place].writes)):
                    group[name] = largest
        largest.append(index)
        group |= dict.fromkeys(names, largest)
    return sorted(map(sorted, {id(one): one for one in group.values()}.values()))


def reads_from(tasks: Sequence[Task]) -> list[set[int]]:
    """By task, which others make what it reads."""
    producer = {name: index for index, task in enumerate(tasks) for name in task.writes}
    return [{producer[name] for name in task.reads if name in producer} for task in tasks]


def ways_there(tasks: Sequence[Task]) -> tuple[list[float], list[float]]:
    """By task, in a topological order, the longest way to its start, and that from its start to the end."""
    length, before = [task.us for task in tasks], reads_from(tasks)
    start, rest = [0.0] * len(tasks), list(length)
    for index, others in enumerate(before):
        start[index] = max((start[other] + length[other] for other in others), default=0.0)
    for index in reversed(range(len(tasks))):
        for other in before[index]:
            rest[other] = max(rest[other], length[other] + rest[index])
    return start, rest


def urgencies(tasks: Sequence[Task]) -> list[int]:
    """How urgent each task is, of tasks in a topological order."""
    start, rest = ways_there(tasks)
    longest = max(map(sum, zip(start, rest, strict=True)), default=0.0)
    late = [longest - begin - behind for begin, behind in zip(start, rest, strict=True)]
    return [sum(one <= share * longest for share in MAY_WAIT) for one in late]


def assign_streams(tasks: Sequence[Task]) -> list[int]:
    """A stream per task: of each network as many streams as its planned intervals overlap at most.

    ``tasks`` stand in the order of their starts.
    """
    streams, used = [0] * len(tasks), 0
    for own in networks(tasks):
        found = _streams_of([tasks[index] for index in own])
        for index, stream in zip(own, found, strict=True):
            streams[index] = used + stream
        used += max(found) + 1
    return streams


def _streams_of(tasks: Sequence[Task]) -> list[int]:
    """A stream per task: as many streams as planned intervals overlap at most.

    ``tasks`` stand in the order of their starts. Among free streams the one is taken whose last task is the producer
    that finishes last (no event is needed), else one whose last task is surely finished by then (order on that stream
    costs nothing), else the one that has been free for longest.
    """
    last: list[int] = []
    streams: list[int] = []
    producer: dict[str, int] = {}
    known: list[list[int]] = []
    position: list[int] = []
    for index, task in enumerate(tasks):
        before = sorted({producer[name] for name in task.reads if name in producer}, key=lambda i: tasks[i].finish_us)
        free = [s for s, other in enumerate(last) if tasks[other].finish_us <= task.start_us + SLACK_US]
        behind: list[int] = []
        for other in before:
            behind = _joined(behind, known[other])
        chosen = next((streams[other] for other in reversed(before) if last[streams[other]] == other), None)
        if chosen is None or chosen not in free:
            sure = [s for s in free if s < len(behind) and behind[s] > position[last[s]]]
            choices = sure or free
            chosen = min(choices, key=lambda s: tasks[last[s]].finish_us) if choices else len(last)
        if chosen == len(last):
            last.append(index)
            place = 0
            own: list[int] = []
        else:
            place = position[last[chosen]] + 1
            own = known[last[chosen]]
        clock = _joined(own, behind)
        clock += [0] * (chosen + 1 - len(clock))
        clock[chosen] = place + 1
        known.append(clock)
        position.append(place)
        streams.append(chosen)
        last[chosen] = index
        producer.update(dict.fromkeys(task.writes, index))
    return streams


def _joined(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [max(pair) for pair in zip_longest(a, b, fillvalue=0)]


def order(tasks: Sequence[Task], streams: Sequence[int], kept: Iterable[str] = ()) -> Schedule:
    """Events and frees for tasks on these streams, issued in the given order, which must be topological.

    ``kept`` are tensors that outlive the run: they and what looks at their memory are never freed.
    """
    count = max(streams, default=0) + 1
    owner: dict[str, str] = {}  # tensor to the one that its memory was allocated for
    home: dict[str, int] = {}  # that one to the stream it was allocated on
    reach: dict[str, list[int]] = {}  # that one to how much of each stream must be finished before it is freed
    names: dict[str, list[str]] = {}  # that one to all that look at its memory
    final: dict[str, int] = {}
    for index, task in enumerate(tasks):
        for name in task.writes:
            owner[name] = owner.get(task.views[name], "") if name in task.views else name
        for name in (*task.reads, *task.writes):
            if owner.get(name):
                final[owner[name]] = index
    pinned = {owner[name] for name in kept if owner.get(name)}

    length = [0] * count
    known = [[0] * count for _ in range(count)]
    after: list[list[int]] = []
    place: list[int] = []
    producer: dict[str, int] = {}
    pending: list[list[str]] = [[] for _ in range(count)]
    waits: list[tuple[int, ...]] = []
    frees: list[tuple[str, ...]] = []
    for index, task in enumerate(tasks):
        stream = streams[index]
        clock = known[stream]
        needed = []
        launches = any(name not in task.views for name in task.writes)
        # Latest first: what a later one knows often makes an event of an earlier one needless.
        for other in sorted({producer[name] for name in task.reads if launches and name in producer}, reverse=True):
            if place[other] >= clock[streams[other]]:
                needed.append(other)
                clock = _joined(clock, after[other])
        waits.append(tuple(needed))
        gone = [name for name in pending[stream] if all(a >= b for a, b in zip(clock, reach[name], strict=True))]
        pending[stream] = [name for name in pending[stream] if name not in gone]
        frees.append(tuple(alias for name in gone for alias in names[name]))
        place.append(length[stream])
        length[stream] += 1
        clock = list(clock)
        clock[stream] = length[stream]
        known[stream] = clock
        after.append(clock)
        for name in task.writes:
            # A view launches nothing: who reads it waits for what wrote the memory.
            if name not in task.views:
                producer[name] = index
            elif task.views[name] in producer:
                producer[name] = producer[task.views[name]]
            home.setdefault(owner[name], stream)
            names.setdefault(owner[name], []).append(name)
        for name in (*task.reads, *task.writes):
            own = owner.get(name)
            if own:
                far = reach.setdefault(own, [0] * count)
                far[stream] = max(far[stream], length[stream])
        for own in dict.fromkeys(owner[name] for name in (*task.reads, *task.writes) if owner.get(name)):
            if final[own] == index and own not in pinned:
                pending[home[own]].append(own)
    ends = [max((i for i in range(len(tasks)) if streams[i] == s), default=-1) for s in range(count)]
    clock, joins = known[0], []
    for other in sorted((end for end in ends if end >= 0), reverse=True):
        if place[other] >= clock[streams[other]]:
            joins.append(other)
            clock = _joined(clock, after[other])
    signalling = {other for needed in waits for other in needed} | set(joins)
    issues = tuple(
        Issue(index, streams[index], waits[index], index in signalling, frees[index], urgency)
        for index, urgency in enumerate(urgencies(tasks))
    )
    return Schedule(issues, count, tuple(joins))
