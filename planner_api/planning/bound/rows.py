"""What is true of every schedule, as rows of a linear program over fractional placements (`interval` says which).

Variables: x[i, k], the share of op i on the equal processors of class k; y[t, l], whether tensor t is moved to place l
(at least x[reader, l] - x[producer, l] for each of its readers); z[i, k], whether op i pays a launch there; and when
each op finishes.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from planner_api.planning.bound.trivial import longest
from planner_api.planning.highs import Program
from planner_api.planning.problem import BoolArray, FloatArray, IntArray, Machine, Problem
from planner_api.planning.problem.symmetry import equal_processors, resource_kinds

MOST_RESOURCES = 256
"""Of one group, above which nobody counts the ways to fill it."""
SCALE = 1000.0
"""The critical path in the program's unit, so that tolerances mean the same for a phone and for a server."""


NOTHING_US = 1e-6
"""A critical path below which it is no unit: what else there is would be beyond all numbers in it."""


class Rows:
    """The program without its intervals. Times are in ``unit`` microseconds."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.lists = problem, problem.lists
        self.classes = equal_processors(problem)
        first = [members[0] for members in self.classes]
        n, self.width = len(problem.ops), len(first)
        self.place = problem.machine.place[first].tolist()
        self.places = sorted(set(self.place))
        fastest = problem.latency_us[:, first]
        self.supported = np.isfinite(fastest)
        path = max(longest(problem, problem.latency_us.min(axis=1).tolist()))
        self.unit = path / SCALE if path > NOTHING_US else 1.0
        self.latency = np.where(self.supported, fastest, 0.0) / self.unit
        self.launch = problem.machine.launch_us[first] / self.unit
        self.export = problem.export_us[:, first] / self.unit
        self.share = problem.least_shares[:, first]  # of what launches and moves take
        self.release = problem.release_us / self.unit
        groups = self._resource_groups(first)
        # work[g][op, k]: what the op takes of group g, whose capacity is 1, on class k; parts[g][k]: per microsecond of
        # a launch or a move there.
        self.work = [self.latency * problem.shares[:, first] * part for part, _ in groups]
        self.parts = np.array([part for _, part in groups])
        # Columns: x by op and class, then the finish of each op, then the value, then y and z.
        self.program = Program()
        for upper in self.supported.astype(float).ravel().tolist():
            self.program.column(0.0, upper)
        self.finish = n * self.width
        for _ in range(n):
            self.program.column(0.0, math.inf)
        self.value = self.program.column(-math.inf if problem.objective == "lateness" else 0.0, math.inf, cost=1.0)
        self.moves: dict[tuple[int, int], tuple[int, float]] = {}
        self.queued: dict[tuple[int, int], tuple[int, float]] = {}
        self.loads: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.relays = _relays(problem.machine)
        self.launch_column: IntArray = np.full(self.supported.shape, -1)
        for op in range(n):
            self.program.row([(self.x(op, k), 1.0) for k in range(self.width)], 1.0, 1.0)
        self._move_rows()
        self._launch_rows()
        self._payments()
        self._path_rows()
        self._link_rows()
        self._load_rows()

    def _resource_groups(self, first: list[int]) -> list[tuple[FloatArray, FloatArray]]:
        """For each group of equal resources what one processor of each class takes of it: computing, and otherwise."""
        resources = np.array(resource_kinds(self.problem, self.classes))
        machine = self.problem.machine
        groups = []
        for group in range(resources.max() + 1):
            inside = resources == group
            part = machine.uses[first][:, inside].sum(axis=1) / inside.sum()
            gain = self._crowding(first, inside)
            slowed = np.where(part < 1.0, gain, 1.0) * part
            # Launches and moves are not slowed: per microsecond they take no more than the most slowed work does.
            groups.append((slowed, slowed / machine.slowdown[first] if gain > 1.0 else part))
        different = {part.tobytes() + other.tobytes(): (part, other) for part, other in groups}
        return list(different.values())

    def _crowding(self, first: list[int], inside: BoolArray) -> float:
        """How much sooner a group of resources is full because what runs on it slows what runs beside it; at least 1.

        Of what runs at one instant each op is slowed by all that stand before it in the sequence, since those end
        later than it starts. So what the group gets done is at most the largest sum, over all ways to fill it one op
        after the other, of each op's part over its factor. An op that takes all of the group runs alone.
        """
        machine, size = self.problem.machine, int(inside.sum())
        count = machine.uses[first][:, inside].sum(axis=1)
        if size > MOST_RESOURCES or not (self.share[:, count > 0] == 1.0).all():
            return 1.0
        near = machine.near[first]
        room = near.sum(axis=1) - machine.uses[first].sum(axis=1)
        slows = near[:, inside].all(axis=1) & (room > 0)
        factor = np.where(slows, machine.slowdown[first], 1.0)
        ways = [way for way in zip(count.tolist(), room.tolist(), factor.tolist(), strict=True) if 0 < way[0] < size]
        # done[taken]: the most that the ops on the rest of the group get done.
        done = [0.0] * (size + 1)
        for taken in reversed(range(size)):
            done[taken] = max(
                (
                    uses / size / (1.0 + (slow - 1.0) * min(taken / max(left, 1), 1.0)) + done[taken + uses]
                    for uses, left, slow in ways
                    if taken + uses <= size
                ),
                default=0.0,
            )
        return max(1.0, 1.0 / done[0]) if done[0] > 0.0 else 1.0

    def x(self, op: int, k: int) -> int:
        """Column of an op's share on a class."""
        return int(op * self.width + k)

    def _missing(self, reader: int, producer: int, places: Collection[int]) -> dict[int, float]:
        """The producer's share at some places less a reader's, as columns: what is not there must be moved there."""
        ops = [(reader, -1.0), (producer, 1.0)] if producer >= 0 else [(reader, -1.0)]
        return {self.x(op, k): sign for op, sign in ops for k in range(self.width) if self.place[k] in places}

    def _sources(self, tensor: int, target: int) -> set[int]:
        """The places from which a tensor may have to be moved to another."""
        producer = self.lists.producer[tensor]
        if producer < 0:
            return {self.problem.machine.host} - {target}
        return {self.place[k] for k in range(self.width) if self.supported[producer, k]} - {target}

    def _row(self, terms: dict[int, float], low: float = 0.0) -> None:
        self.program.at_least(terms.items(), low)

    def _after(self, op: int, earlier: int, spent: dict[int, float], least: float) -> None:
        """An op ends no sooner than what it spends, as columns, behind another, or (-1: none) behind some time."""
        row = {self.finish + op: 1.0, **{column: -us for column, us in spent.items()}}
        if earlier >= 0:
            row[self.finish + earlier], least = -1.0, 0.0
        self._row(row, least)

    def _moved(self, rows: Sequence[dict[int, float]]) -> int:
        """A column that is at least whatever is missing somewhere."""
        column = self.program.column(0.0, 1.0)
        for terms in rows:
            self._row({column: 1.0, **terms})
        return column

    def _move_rows(self) -> None:
        """y[t, l] >= x[reader, l] - x[producer, l]; what cannot be moved must not be.

        A tensor comes to a place over one channel at least: others may have brought it as far as there.
        """
        lists, machine = self.lists, self.problem.machine
        hops, owner = machine.hops, machine.owners
        for tensor, producer in enumerate(lists.producer):
            readers = lists.readers[tensor]
            for target in self.places if readers else ():
                sources = self._sources(tensor, target)
                prices = self.problem.transfer_us[tensor]
                last = {int(hops[source, target]) for source in sources}
                cost = min((float(prices[stop, target]) for stop in last), default=0.0)
                total = min((float(prices[source, target]) for source in sources), default=0.0)
                if total == 0.0:
                    continue
                queues = {int(machine.busy[stop, target]) for stop in last}
                rows = [self._missing(reader, producer, {target}) for reader in readers]
                if math.isinf(total):
                    for terms in rows:
                        self._row(terms)
                    continue
                moved = self._moved(rows), cost / self.unit
                # What lies before a queue on some way is moved on nobody's time.
                paid = queues == {-1} and target not in self.relays
                (self.moves if paid else self.queued)[tensor, target] = moved
                within = all(owner[stop] == owner[target] for stop in last)
                if len(queues) == 1 and within and not self.problem.is_output[tensor]:
                    self.loads[min(queues)].append(moved)

    def _link_rows(self) -> None:
        """What whole hosts exchange: a link carries it, y[t, h] >= x[reader on h] - x[producer on h], and who reads it
        there waits for all of its way, whoever brought it.
        """
        lists, machine = self.lists, self.problem.machine
        if machine.owner is None:
            return
        owner: list[int] = machine.owner.tolist()
        for host in sorted({owner[place] for place in self.places}):
            inside = [place for place in self.places if owner[place] == host]
            outside = {place for place in {machine.host, *self.places} if owner[place] != host}
            links = {
                source: {
                    (a, b) for place in inside for a, b in machine.way(source, place) if owner[a] != host == owner[b]
                }
                for source in outside
            }
            for tensor, producer in enumerate(lists.producer):
                sources = self._sources(tensor, -1) & outside
                price = self.problem.transfer_us[tensor] / self.unit
                way = min((float(price[source, place]) for source in sources for place in inside), default=0.0)
                if not 0.0 < way < math.inf:
                    continue
                rows = [self._missing(reader, producer, inside) for reader in lists.readers[tensor]]
                for reader, terms in zip(lists.readers[tensor], rows, strict=True):
                    spent = {column: -way * sign for column, sign in terms.items()}
                    for k in np.flatnonzero(self.latency[reader]).tolist():
                        spent[self.x(reader, k)] = spent.get(self.x(reader, k), 0.0) + float(self.latency[reader, k])
                    self._after(reader, producer, spent, float(self.release[reader]))
                channels = {channel for source in sources for channel in links[source]}
                queues = {int(machine.busy[channel]) for channel in channels}
                cost = min(float(price[channel]) for channel in channels)
                if len(queues) == 1 and queues != {-1} and cost > 0.0 and not self.problem.is_output[tensor]:
                    self.loads[min(queues)].append((self._moved(rows), cost))

    def _launch_rows(self) -> None:
        """z[i, k] >= x[i, k] - x[producer, k] for what only i reads; of several readers one at least must launch."""
        lists = self.lists
        for k in np.flatnonzero(self.launch).tolist():
            for op in range(len(lists.latency)):
                if self.supported[op, k] and lists.reads[op]:
                    self.launch_column[op, k] = self.program.column(0.0, 1.0)
            for tensor, producer in enumerate(lists.producer):
                readers = [op for op in lists.readers[tensor] if self.launch_column[op, k] >= 0]
                pays = {int(self.launch_column[op, k]): 1.0 for op in readers}
                for op in readers:
                    terms = {**pays, self.x(op, k): -1.0}
                    if producer >= 0:
                        terms[self.x(producer, k)] = 1.0
                    self._row(terms)

    def _duration(self, op: int) -> dict[int, float]:
        """What surely passes between the finish of all that an op reads from and its own finish."""
        terms = {self.x(op, k): float(us) for k, us in enumerate(self.latency[op]) if us > 0}
        terms |= {int(at): float(us) for at, us in zip(self.launch_column[op], self.launch, strict=True) if at >= 0}
        for tensor in self.lists.reads[op]:
            terms.update(self._fetch(tensor, self.moves))
        return terms

    def _fetch(self, tensor: int, moves: dict[tuple[int, int], tuple[int, float]]) -> dict[int, float]:
        """What the only reader of a tensor waits for it. With other readers, one of them may have fetched it."""
        if len(self.lists.readers[tensor]) > 1:
            return {}
        return dict(moves[tensor, place] for place in self.places if (tensor, place) in moves)

    def _path_rows(self) -> None:
        lists, problem = self.lists, self.problem
        self.durations = [self._duration(op) for op in range(len(lists.latency))]
        for op, duration in enumerate(self.durations):
            release = float(self.release[op])
            inputs = any(lists.producer[tensor] < 0 for tensor in lists.reads[op])
            for earlier in lists.before[op]:
                self._after(op, earlier, duration, release)
            if inputs or not lists.before[op]:
                self._after(op, -1, duration, release if inputs else 0.0)
            for tensor in lists.reads[op]:
                if fetch := self._fetch(tensor, self.queued):
                    self._after(op, lists.producer[tensor], duration | fetch, release)
            export: dict[int, float] = {}
            for k, cost in enumerate(self.export[op].tolist()):
                if math.isinf(cost):
                    self.program.upper[self.x(op, k)] = 0.0
                elif cost > 0.0:
                    export[self.x(op, k)] = -cost
            if export or not lists.after[op]:
                # value >= weight * (finish + export - due)
                weight, due = float(problem.weight[op]), float(problem.due_us[op]) / self.unit
                self._row({self.value: 1.0 / weight, self.finish + op: -1.0, **export}, -due)

    def _payments(self) -> None:
        """The columns of moves by tensor and place, and what they take of each group."""
        tensors = len(self.problem.tensors)
        self.move_column: IntArray = np.full((tensors, len(self.places)), -1)
        self.move_cost: FloatArray = np.zeros((len(self.parts), tensors, len(self.places)))
        for (tensor, target), (column, us) in self.moves.items():
            at, readers = (tensor, self.places.index(target)), self.lists.readers[tensor]
            self.move_column[at] = column
            able = self.supported[readers] & (np.array(self.place) == target)
            if able.any():  # of those that any reader keeps busy meanwhile, the least
                self.move_cost[:, *at] = us * (self.parts[:, None] * self.share[readers])[:, able].min(axis=1)

    def _work(self, group: int, ops: IntArray, tensors: IntArray) -> tuple[IntArray, FloatArray]:
        """What some ops and the moves of some tensors take of a group of resources, as columns and coefficients."""
        columns: list[IntArray] = []
        values: list[FloatArray] = []
        for k in np.flatnonzero(self.parts[group]).tolist():
            paying = ops[self.launch_column[ops, k] >= 0]
            columns += [ops * self.width + k, self.launch_column[paying, k]]
            values += [self.work[group][ops, k], self.launch[k] * self.share[paying, k] * self.parts[group][k]]
        for place in range(len(self.places)):
            moved = tensors[self.move_column[tensors, place] >= 0]
            columns.append(self.move_column[moved, place])
            values.append(self.move_cost[group][moved, place])
        return np.concatenate(columns), np.concatenate(values)

    def _load_rows(self) -> None:
        """All that a job does, and all that all jobs do where they count alike, between release and end."""
        problem = self.problem
        n = len(problem.ops)
        owner = problem.job_of
        reader_job = np.array([owner[readers[0]] if readers else -1 for readers in self.lists.readers], dtype=np.int64)
        for group in range(len(self.parts)):
            if problem.objective != "lateness":
                self._value_row(1.0, group, np.arange(n), np.arange(len(problem.tensors)), 0.0)
            for job, one in enumerate(problem.jobs if len(problem.jobs) > 1 else ()):
                ops = np.flatnonzero(owner == job)
                roots = [op for op in ops.tolist() if not self.lists.before[op]]
                waits = all(self.lists.reads[op] for op in roots)
                if not len(ops):
                    continue
                weight, due = float(problem.weight[ops[0]]), float(problem.due_us[ops[0]])
                least = (one.release_us if waits else 0.0) - due
                self._value_row(weight, group, ops, np.flatnonzero(reader_job == job), least / self.unit)
        self._export_loads()
        for queue, moved in self.loads.items():
            if queue >= 0 and problem.objective != "lateness":
                terms = {self.value: 1.0}
                for column, cost in moved:
                    terms[column] = terms.get(column, 0.0) - cost
                self._row(terms)

    def _value_row(self, weight: float, group: int, ops: IntArray, tensors: IntArray, least: float) -> None:
        columns, values = self._work(group, ops, tensors)
        self._row({self.value: 1.0 / weight, **dict(zip(columns.tolist(), (-values).tolist(), strict=True))}, least)

    def _export_loads(self) -> None:
        """What queues carry of outputs on their way to the host: all of it, from wherever they are made."""
        machine = self.problem.machine
        for tensor in self.lists.outputs:
            op = self.lists.producer[tensor]
            for k in np.flatnonzero(self.supported[op]).tolist() if op >= 0 else ():
                for channel in machine.way(self.place[k], machine.host):
                    cost = float(self.problem.transfer_us[tensor][channel]) / self.unit
                    if machine.busy[channel] >= 0 and 0.0 < cost < math.inf:
                        self.loads[int(machine.busy[channel])].append((self.x(op, k), cost))


def _relays(machine: Machine) -> set[int]:
    """Places that a tensor reaches on nobody's time, because a queue lies behind them on a way."""
    if machine.hop is None:
        return set()
    places, found = range(len(machine.places)), set()
    for way in (machine.way(source, target) for source in places for target in places):
        queued = [index for index, channel in enumerate(way) if machine.busy[channel] >= 0]
        found |= {b for _, b in way[: max(queued, default=0)]}
    return found
