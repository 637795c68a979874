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
    """Networks as ``{model: (units, {(first, last, processor): ns})}``, processors as sets of resources.

    ``borders`` says how long the pieces are that a model's run is in, by processor: it gives way to smaller keys.
    ``pools`` are processors on each of which a piece may be that was meant for one of them.
    ``cheaper`` says by model which other one answers runs that would be late and may be degraded.
    ``plan`` is a joint one, ``{model: [(release, start, finish, processor)]}`` by run of a round, whose
    runs are asked for within ``late`` of their releases.
    """

    nets: dict
    sets: list[frozenset[int]]
    name: str
    borders: dict = field(default_factory=dict)
    pools: dict = field(default_factory=dict)
    cheaper: dict = field(default_factory=dict)
    plan: dict = field(default_factory=dict)
    late: int = 0
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
        self.asked_since: dict[str, int] = {}
        self.ratios = {model: [1 + 0.5 * (run + 1) / 100 for run in range(100)] for model in self.nets}
        self.doubted: set = set()
        self.ends, self.first_key = {}, {}
        self.begun = self._rounds(asked)
        computing: dict = {}
        left: dict = {}
        line: list = []
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, _, what = heapq.heappop(events)
                if isinstance(what, Asked):
                    queue.append(what)
                    if what.deadline is not None:
                        self.active[what.model] = (what.deadline - now, now)
                elif what is None:
                    continue
                elif left[what]:
                    del computing[what]
                    line.append(what)
                else:
                    run, first, last, _ = what
                    del computing[what]
                    self._measured(run.model, what[3], whole=not first and last == self.nets[run.model][0] - 1)
                    running.remove(what)
                    run.unit = last + 1
                    self.in_a_row[run.model] = 0
                    if run.unit < self.nets[run.model][0]:
                        queue.insert(0, run)
            self.looks: set = set()
            started = self._decide(now, queue, running, promised)
            for at in sorted(self.looks)[:1]:
                heapq.heappush(events, (at, order, None))
                order += 1
            for what in started:
                left[what] = self._takes(what)
                line.append(what)
            line.sort(key=lambda what: self.first_key[what])
            wanted: set = set().union(*computing.values())
            for what in list(line):
                pool = [self.sets[where] for where in self.pools.get((what[0].model, what[3]), [what[3]])]
                pool.sort(key=lambda resources: resources != self.sets[what[3]])
                there = [resources for resources in pool if not wanted & resources]
                if there:
                    step = min(self._border(what) or left[what], left[what])
                    left[what] -= step
                    computing[what] = there[0]
                    wanted |= there[0]
                    line.remove(what)
                    heapq.heappush(events, (now + step, order, what))
                    order += 1
                else:
                    wanted = wanted.union(*pool)
        return self.decisions

    def _rounds(self, asked):
        """By run when its round of the plan began, and which of its model's runs there it is; nothing for those of a
        round behind one that was not whole.
        """
        begun: dict = {}
        latest: dict = {}
        epoch, follows, there = -BIG, True, dict(self.plan)
        for run in asked:
            if run.model not in self.plan:
                continue
            mine = self.plan[run.model]
            due = [epoch + at for at, *_ in mine][len(there[run.model]) :]
            if not due or abs(run.release - due[0]) > self.late:
                follows = all(len(there[model]) == len(self.plan[model]) for model in self.plan)
                epoch = run.release - mine[0][0]
                firsts = {model: epoch + runs[0][0] for model, runs in self.plan.items()}
                near = {model for model, at in latest.items() if abs(at - firsts[model]) <= self.late}
                there = {
                    model: ["from the round before"] if model in near and not follows and model != run.model else []
                    for model in self.plan
                }
            if follows:
                begun[run] = epoch, len(there[run.model])
            there[run.model] = [*there[run.model], run]
            latest[run.model] = run.release
        return begun

    def _slot(self, run):
        return self.plan[run.model][self.begun[run][1]] if run in self.begun and not run.unit else None

    def _takes(self, what):
        run, first, last, where = what
        return self.nets[run.model][1][first, last, where]

    def _border(self, what):
        return self.borders.get((what[0].model, what[3]), 0)

    def _key(self, run):
        due = run.release + PATIENCE if run.deadline is None else run.deadline
        rest = self._best(run, [0] * len(self.sets), 0)[0]
        if self._slot(run):
            return self.begun[run][0] + self._slot(run)[1]
        return {"fifo": run.release, "least_slack": due - rest, "planned": due - rest}.get(self.name, due)

    def _yields(self, what, run):
        return self._border(what) and self.first_key[what] > self._key(run) and what[0].model != run.model

    def _free(self, run, part=2):
        """Per processor when it is free for a run: those that give way to it are halfway to their borders."""
        free = [self.now] * len(self.sets)
        for what in (*self.running, *self.promised):
            at_border = what in self.running and self._yields(what, run)
            until = self.now + self._border(what) // part if at_border else self.ends[what]
            for other, resources in enumerate(self.sets):
                if resources & self.sets[what[3]]:
                    free[other] = max(free[other], until)
        return free

    def _decide(self, now, queue, running, promised):
        self.now, self.queue, self.running = now, queue, running
        self.blocked: set[int] = set()
        self.new: list = []
        before, self.promised = list(promised), promised
        promised.clear()
        for what in before:
            self._give(*what)
        old = [run for run in queue if self._since(run) <= now - LONG_AGO]
        young = [run for run in queue if self._since(run) > now - LONG_AGO]
        for group in (old, young):
            if group:
                getattr(self, self.name)(list(group))
                for run in group if group is old else ():
                    if run in queue:
                        self.blocked |= self.sets[self._best(run, [0] * len(self.sets), 0)[2]]
        return self.new

    def _since(self, run):
        return run.release if run.deadline is None else run.deadline

    def _idle(self, run, where):
        there = [what for what in self.running if self.sets[what[3]] & self.sets[where]]
        stays = [self.sets[what[3]] for what in there if not self._yields(what, run)]
        beneath = any(self.sets[what[3]] >= self.sets[where] for what in there if self._yields(what, run))
        behind = beneath and all(taken >= self.sets[where] for taken in stays)
        return not self.blocked & self.sets[where] and (not stays or behind)

    def _somewhere(self):
        """Whether anything is idle, or may give way."""
        full = self.blocked.union(*(self.sets[what[3]] for what in self.running))
        breakable = any(self._border(what) for what in (*self.running, *self.promised))
        return any(not (self.blocked if breakable else full) & resources for resources in self.sets)

    def _give(self, run, first, last, where):
        what = (run, first, last, where)
        self.ends[what] = self._free(run)[where] + self._takes(what)
        self.first_key.setdefault(what, self._key(run))
        if self._idle(run, where):
            for other in self.running:
                if self.sets[other[3]] & self.sets[where] and self.first_key[other] > self.first_key[what]:
                    self.ends[other] += self._takes(what)
            self.new.append(what)
            self.running.append(what)
            self.decisions.append((self.now, run.number, first, last, where))
        else:
            self.promised.append(what)
            self.blocked |= self.sets[where]

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

    def _kept(self, run, choice):
        """The choice; of a run that is degraded one of the cheaper model; None where it is dropped."""
        late = run.deadline is not None and choice[0] > run.deadline and not run.unit
        if late and run.on_late == "drop" and self.in_a_row.get(run.model, 0) < 16:
            if not self.in_a_row.get(run.model, 0):
                self.asked_since[run.model] = run.release
            self.in_a_row[run.model] = self.in_a_row.get(run.model, 0) + 1
            self.queue.remove(run)
            self.decisions.append((self.now, run.number, 0, 0, None))
            return None
        if late and run.on_late == "drop":
            self.doubted |= {(run.model, other) for other in self.pools.get((run.model, choice[2]), [choice[2]])}
        if late and run.on_late == "degrade" and run.model in self.cheaper:
            run.model = self.cheaper[run.model]
            self.begun.pop(run, None)
            return self._kept(run, self._best(run, self._free(run), self.now))
        return choice

    def fifo(self, group):
        """As its name says."""
        for run in group:
            end, last, where, then = self._best(run, [0] * len(self.sets), 0)
            self._reserve(run, (self._free(run)[where] + end, last, where, then))

    def _reserve(self, run, choice):
        """Where it is chosen, now or later."""
        kept = self._kept(run, choice)
        if kept and self._idle(run, kept[2]):
            self._take(run, *kept[1:3])
        elif kept:
            self.blocked |= self.sets[kept[2]]

    def shortest_expected_latency(self, group):
        """As its name says."""
        while group:
            ends = [self._best(run, self._free(run), self.now) for run in group]
            at = max(range(len(group)), key=lambda index: (ends[index][0], -index))
            run = group.pop(at)
            kept = self._kept(run, ends[at])
            if kept:
                self._take(run, *kept[1:3])

    def heft(self, group):
        """As its name says."""
        while self._somewhere() and group:
            waits = [0] * len(self.sets)
            passed: list[Asked] = []
            while True:
                ends = {}
                for run in group:
                    if run in passed:
                        continue
                    free = [a + b for a, b in zip(self._free(run), waits, strict=True)]
                    others = [*self.queue, *(what[0] for what in (*self.running, *self.promised))]
                    for other in dict.fromkeys(others):
                        if other is not run and other.then:
                            free[other.then[0]] += other.then[1]
                    ends[run] = self._best(run, free, self.now)
                if not ends:
                    return
                run = max(ends, key=lambda one: (ends[one][0], -group.index(one)))
                kept = self._kept(run, ends[run])
                if not kept:
                    break
                _, last, where, then = kept
                table = self.nets[run.model][1]
                if self._idle(run, where):
                    run.then = then and (then[2], table[then])
                    self._take(run, last, where)
                    break
                waits[where] += table[run.unit, last, where]
                passed.append(run)
            group.remove(run)

    def least_slack(self, group):
        """As its name says."""
        ends = {run: self._best(run, self._free(run), self.now)[0] for run in group}
        slack = {run: BIG * 9 if run.deadline is None else run.deadline - ends[run] for run in group}
        for run in sorted(group, key=lambda one: (slack[one], group.index(one))):
            kept = self._kept(run, self._best(run, self._free(run), self.now))
            if kept and self._idle(run, kept[2]):
                self._take(run, *kept[1:3])
                if not self._somewhere():
                    return

    def planned(self, group):
        """As its name says."""
        mine = [run for run in group if self._slot(run)]
        for run in sorted(mine, key=lambda one: (self.begun[one][0] + self._slot(one)[1], group.index(one))):
            _, start, finish, where = self._slot(run)
            last = self.nets[run.model][0] - 1
            self._reserve(run, (self._free(run)[where] + finish - start, last, where, None))
        self.least_slack([run for run in group if run not in mine])

    def earliest_deadline(self, group):
        """As its name says."""
        due = {run: run.deadline if run.deadline is not None else run.release + PATIENCE for run in group}
        behind = []
        for run in sorted(group, key=lambda one: (one.deadline is None, due[one], group.index(one))):
            if not self._somewhere():
                return
            if not self._in_time(run):
                behind.append(run)
        for run in behind:
            kept = self._kept(run, self._best(run, self._free(run), self.now))
            if not kept:
                continue
            if kept[0] <= run.deadline:
                self._in_time(run)
                continue
            idle = [one for one in self._wholes(run) if self._idle(run, one[2]) and not self._hurts(run, one[2])]
            idle.sort()
            if idle and not (run.on_late == "drop" and self.in_a_row.get(run.model, 0) >= 16):
                self._take(run, self.nets[run.model][0] - 1, idle[0][2])
            elif self._idle(run, kept[2]):
                self._take(run, *kept[1:3])

    def _in_time(self, run):
        """Where it makes its deadline, now or later; whether there is such a place."""
        due = run.deadline if run.deadline is not None else run.release + PATIENCE
        limit = BIG * 9 if run.deadline is None else run.deadline
        fits = [one for one in self._wholes(run) if one[1] <= limit and self._idle(run, one[2])]
        if run.deadline is None:
            fits.sort(key=lambda one: (self._hurts(run, one[2]), self._risked(run, one), *one[1:]))
            apart = []
        else:
            fits.sort(key=lambda one: (self._hurts(run, one[2]), self._risk(run, one[2], limit), *one))
            apart = [one for one in fits if self._apart(run, one)]
        kind = apart or [one for one in fits if not self._harmed(run, one)] or fits
        dropped = self.in_a_row.get(run.model, 0)
        served = self.asked_since[run.model] + PATIENCE if dropped else BIG
        sees = run.on_late != "drop" or dropped >= 16 or self.now >= served
        if not apart and kind:
            takes = self._takes((run, 0, self.nets[run.model][0] - 1, kind[0][2]))
            harmed = self._harmed(run, kind[0])
            if run.deadline is None:
                waits, latest = bool(harmed) and due > self.now, due
            else:
                waits = not sees and any(takes / within >= 2 for within in harmed)
                latest = min(served, run.deadline - self._best(run, [0] * len(self.sets), 0)[0] + 1)
            if waits:
                others = [self.active[model][1] + 10 * within + 1 for model, within in self._lately(run)]
                self.looks.add(min(latest, *others))
                return True
        end, last, where, _ = self._best(run, self._free(run), self.now)
        if kind and self._hurts(run, kind[0][2]):
            ends = {what[3]: self.ends[what] for what in (*self.running, *self.promised)}
            patient = []
            for _, _, other in self._wholes(run):
                there = [ends[one] for one in ends if self.sets[one] & self.sets[other]]
                patient.append((max([self.now, *there]) + self._takes((run, 0, last, other)), other))
            if min(patient)[0] <= limit:
                self.blocked |= self.sets[min(patient)[1]]
                return True
        if kind:
            self._take(run, self.nets[run.model][0] - 1, kind[0][2])
        elif end > limit:
            return False
        elif self._idle(run, where):
            self._take(run, last, where)
        elif run.deadline is not None:
            self.blocked |= self.sets[where]
        return True

    def _hurts(self, run, where):
        """Whether one that gives way to a run there misses its deadline for that, which it would have made."""
        for what in self.running:
            there = self.sets[what[3]] & self.sets[where] and self._yields(what, run)
            deadline = what[0].deadline
            if there and deadline is not None:
                end = self.ends[what]
                if end <= deadline < end + self._takes((run, 0, self.nets[run.model][0] - 1, where)):
                    return True
        return False

    def _risk(self, run, where, limit):
        """How many of the latest runs would end too late there, where everybody gives way as late as can be."""
        takes = self._takes((run, 0, self.nets[run.model][0] - 1, where))
        return self._too_long(run.model, takes, limit - self._free(run, part=1)[where])

    def _too_long(self, model, takes, within):
        return sum(ratio > within / takes for ratio in self.ratios[model])

    def _measured(self, model, where, *, whole):
        """What is expected is what it takes: of a whole run that is known now."""
        if (model, where) in self.doubted:
            self.doubted -= {(model, other) for other in self.pools.get((model, where), [where])}
        elif whole:
            self.ratios[model] = [*self.ratios[model][1:], 1.0]

    def _risked(self, run, option):
        """How many of the latest runs of the others would end too late beside this or behind it."""
        found = []
        for model, within in self._lately(run):
            units, table = self.nets[model]
            late = []
            for where, resources in enumerate(self.sets):
                if (0, units - 1, where) in table:
                    waits = self._wait(run, option, within) if resources & self.sets[option[2]] else 0
                    late.append(self._too_long(model, table[0, units - 1, where], within - waits))
            found.append(min(late, default=0))
        return sum(found)

    def _wholes(self, run):
        units, table = self.nets[run.model]
        found = [(where, table.get((0, units - 1, where))) for where in range(len(self.sets))]
        free = self._free(run)

        def cores(where):
            there = [what for what in self.running if self.sets[what[3]] & self.sets[where]]
            return len(self.sets[where].union(*(self.sets[what[3]] for what in there if self._yields(what, run))))

        return [(ns * cores(where), free[where] + ns, where) for where, ns in found if ns is not None and not run.unit]

    def _lately(self, run):
        """Other models that were asked for, and within which time."""
        return [
            (other, within)
            for other, (within, at) in self.active.items()
            if other != run.model and at + 10 * within >= self.now
        ]

    def _apart(self, run, option):
        """Whether each of the others makes its deadline on cores of its own, as many as it needs at least."""
        rest = frozenset().union(*self.sets) - self.sets[option[2]]
        needed = 0
        for model, within in self._lately(run):
            units, table = self.nets[model]
            own = [
                len(resources)
                for where, resources in enumerate(self.sets)
                if resources <= rest and table.get((0, units - 1, where), BIG) <= within
            ]
            needed += min(own, default=len(rest) + 1)
        return needed <= len(rest)

    def _wait(self, run, option, within):
        """How long another that is due so soon waits for the next border of a run, or for its end."""
        border = self.borders.get((run.model, option[2]), 0)
        due = run.release + PATIENCE if run.deadline is None else run.deadline
        runs = option[1] - self.now + round(self._takes((run, 0, self.nets[run.model][0] - 1, option[2])) * 0.5)
        return border if border and self.now + within < due else runs

    def _harmed(self, run, option):
        """Within what time each of the others is due that cannot make it meanwhile, nor behind this."""
        found = []
        for model, within in self._lately(run):
            wait = self._wait(run, option, within)
            units, table = self.nets[model]
            if min(table.get((0, units - 1, where), BIG) for where in range(len(self.sets))) <= within and not any(
                table[0, units - 1, where] + wait * bool(resources & self.sets[option[2]]) <= within
                for where, resources in enumerate(self.sets)
                if (0, units - 1, where) in table
            ):
                found.append(within)
        return found
