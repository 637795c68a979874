"""The policies once more, from their definitions, over plain lists: what decisions are compared with."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cache

BIG = 10**15
PATIENCE = 10**9
LONG_AGO = 10**9


@dataclass(eq=False)
class Asked:
    """A run."""

    model: str
    release: int
    deadline: int | None
    on_late: str
    number: int
    unit: int = 0
    then: tuple[int, int] | None = None


@dataclass
class World:
    """Networks as ``{model: (units, {(first, last, processor): ns})}``, processors as sets of resources."""

    nets: dict
    sets: list[frozenset[int]]
    name: str
    decisions: list = field(default_factory=list)

    def run(self, asked: list[Asked]) -> list:
        """Every decision: when, which run, which units, where; ``None`` for where says dropped."""
        events = [(one.release, index, one) for index, one in enumerate(asked)]
        heapq.heapify(events)
        order = len(events)
        queue: list[Asked] = []
        running: list = []
        promised: list = []
        self.active: dict = {}
        self.in_a_row: dict[str, int] = {}
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, _, what = heapq.heappop(events)
                if isinstance(what, Asked):
                    queue.append(what)
                    if what.deadline is not None:
                        self.active[what.model] = (what.deadline - now, now)
                else:
                    run, _, last, _, _ = what
                    running.remove(what)
                    run.unit = last + 1
                    self.in_a_row[run.model] = 0
                    if run.unit < self.nets[run.model][0]:
                        queue.insert(0, run)
            for what in self._decide(now, queue, running, promised):
                heapq.heappush(events, (what[4], order, what))
                order += 1
        return self.decisions

    def _decide(self, now, queue, running, promised):
        self.now, self.queue, self.running = now, queue, running
        self.taken: set[int] = set()
        self.free = [now] * len(self.sets)
        self.new: list = []
        for what in running:
            self.taken |= self.sets[what[3]]
            self._hold(what[3], what[4])
        before, self.promised = list(promised), promised
        promised.clear()
        for run, first, last, where, _ in before:
            self._give(run, first, last, where)
        old = [run for run in queue if self._since(run) <= now - LONG_AGO]
        young = [run for run in queue if self._since(run) > now - LONG_AGO]
        for group in (old, young):
            if group:
                getattr(self, self.name)(list(group))
                for run in group if group is old else ():
                    if run in queue:
                        self.taken |= self.sets[self._best(run, [0] * len(self.sets), 0)[2]]
        return self.new

    def _since(self, run):
        return run.release if run.deadline is None else run.deadline

    def _hold(self, where, until):
        for other, resources in enumerate(self.sets):
            if resources & self.sets[where]:
                self.free[other] = max(self.free[other], until)

    def _idle(self, where):
        return not self.taken & self.sets[where]

    def _give(self, run, first, last, where):
        what = (run, first, last, where, self.free[where] + self.nets[run.model][1][first, last, where])
        if self._idle(where):
            self.new.append(what)
            self.running.append(what)
            self.decisions.append((self.now, run.number, first, last, where))
        else:
            self.promised.append(what)
        self.taken |= self.sets[where]
        self._hold(where, what[4])

    def _take(self, run, last, where):
        self.queue.remove(run)
        self._give(run, run.unit, last, where)

    def _best(self, run, free, now):
        """End, last unit and processor of the first subgraph, and the second: by trying every sequence."""
        units, table = self.nets[run.model]

        @cache
        def until(unit):
            if unit == run.unit:
                return now, ()
            found = None
            for first in range(run.unit, unit):
                for where in range(len(self.sets)):
                    ns = table.get((first, unit - 1, where))
                    end, way = until(first) if ns is not None else (BIG, ())
                    if ns is None or end >= BIG:
                        continue
                    end = max(end, free[where]) + ns
                    if found is None or end <= found[0]:
                        found = end, (*way, (first, unit - 1, where))
            return found or (BIG, ())

        end, way = until(units)
        return end, way[0][1], way[0][2], way[1] if len(way) > 1 else None

    def _lost(self, run, end):
        late = run.deadline is not None and end > run.deadline
        if late and run.on_late == "drop" and not run.unit and self.in_a_row.get(run.model, 0) < 16:
            self.in_a_row[run.model] = self.in_a_row.get(run.model, 0) + 1
            self.queue.remove(run)
            self.decisions.append((self.now, run.number, 0, 0, None))
            return True
        return False

    def fifo(self, group):
        """As its name says."""
        for run in group:
            end, last, where, _ = self._best(run, [0] * len(self.sets), 0)
            if self._lost(run, self.free[where] + end):
                continue
            if self._idle(where):
                self._take(run, last, where)
            else:
                self.taken |= self.sets[where]

    def shortest_expected_latency(self, group):
        """As its name says."""
        while group:
            ends = [self._best(run, self.free, self.now) for run in group]
            at = max(range(len(group)), key=lambda index: (ends[index][0], -index))
            run = group.pop(at)
            if not self._lost(run, ends[at][0]):
                self._take(run, *ends[at][1:3])

    def heft(self, group):
        """As its name says."""
        while any(map(self._idle, range(len(self.sets)))) and group:
            waits = [0] * len(self.sets)
            passed: list[Asked] = []
            while True:
                ends = {}
                for run in group:
                    if run in passed:
                        continue
                    free = [a + b for a, b in zip(self.free, waits, strict=True)]
                    others = [*self.queue, *(what[0] for what in (*self.running, *self.promised))]
                    for other in dict.fromkeys(others):
                        if other is not run and other.then:
                            free[other.then[0]] += other.then[1]
                    ends[run] = self._best(run, free, self.now)
                if not ends:
                    return
                run = max(ends, key=lambda one: (ends[one][0], -group.index(one)))
                end, last, where, then = ends[run]
                table = self.nets[run.model][1]
                if self._lost(run, end):
                    break
                if self._idle(where):
                    run.then = then and (then[2], table[then])
                    self._take(run, last, where)
                    break
                waits[where] += table[run.unit, last, where]
                passed.append(run)
            group.remove(run)

    def least_slack(self, group):
        """As its name says."""
        ends = {run: self._best(run, self.free, self.now)[0] for run in group}
        slack = {run: BIG * 9 if run.deadline is None else run.deadline - ends[run] for run in group}
        for run in sorted(group, key=lambda one: (slack[one], group.index(one))):
            end, last, where, _ = self._best(run, self.free, self.now)
            if not self._lost(run, end) and self._idle(where):
                self._take(run, last, where)
                if not any(map(self._idle, range(len(self.sets)))):
                    return

    def earliest_deadline(self, group):
        """As its name says."""
        behind = []
        due = {run: run.deadline if run.deadline is not None else run.release + PATIENCE for run in group}
        for run in sorted(group, key=lambda one: (one.deadline is None, due[one], group.index(one))):
            if not any(map(self._idle, range(len(self.sets)))):
                return
            limit = BIG * 9 if run.deadline is None else run.deadline
            fits = [one for one in self._wholes(run) if one[1] <= limit and self._idle(one[2])]
            fits.sort(key=lambda one: one if run.deadline is not None else one[1:])
            kind = [one for one in fits if self._considerate(run, one)] or fits
            end, last, where, _ = self._best(run, self.free, self.now)
            if kind:
                self._take(run, self.nets[run.model][0] - 1, kind[0][2])
            elif end > limit:
                behind.append(run)
            elif self._idle(where):
                self._take(run, last, where)
            elif run.deadline is not None:
                self.taken |= self.sets[where]
        for run in behind:
            end, last, where, _ = self._best(run, self.free, self.now)
            if self._lost(run, end):
                continue
            idle = sorted(one for one in self._wholes(run) if self._idle(one[2]))
            if idle and not (run.on_late == "drop" and self.in_a_row.get(run.model, 0) >= 16):
                self._take(run, self.nets[run.model][0] - 1, idle[0][2])
            elif self._idle(where):
                self._take(run, last, where)

    def _wholes(self, run):
        units, table = self.nets[run.model]
        found = [(where, table.get((0, units - 1, where))) for where in range(len(self.sets))]
        return [
            (ns * len(self.sets[where]), self.free[where] + ns, where)
            for where, ns in found
            if ns is not None and not run.unit
        ]

    def _considerate(self, run, option):
        for model, (deadline, at) in self.active.items():
            if model == run.model or at + 10 * deadline < self.now:
                continue
            units, table = self.nets[model]
            if not any(
                table[0, units - 1, where] + (option[1] - self.now) * bool(resources & self.sets[option[2]]) <= deadline
                for where, resources in enumerate(self.sets)
                if (0, units - 1, where) in table
            ):
                return False
        return True
