"""A session among the others of an agent: what policies know of it, and what computes its runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_sdk.engine import Device, Executor
from agent_sdk.engine.arbiter import Hold
from agent_sdk.engine.turn import Turn
from agent_sdk.journey.plans import Feed, Plans
from agent_sdk.scheduling.groups import Group
from agent_sdk.scheduling.job import Job, JobStats
from agent_sdk.scheduling.network import Network
from agent_sdk.scheduling.parts import Part
from agent_sdk.scheduling.scheduler import Dispatch, PlannedRun
from hope_schema import HOST

GUESS_NS: Final = 1_000_000
"""What a network is taken to last that has never run."""
JOINTLY: Final = "joint plan"
"""Where a run was that a network's part of a joint plan has answered."""


class Where:
    """A device's processors as policies number them, and behind them three that stand for who answers a session.

    Attributes:
        names: ids by number.
        kinds: likewise; single cores of a kind are equals.
        masks: per number the resources that it takes, as bits.
        in_turn: whoever answers in one go: it takes every core.
        at_once: whoever answers by segments: the arbiter's keys decide there.
        jointly: a part of a joint plan. Nor does that take any processor: the keys of its segments say when the plan
            has each.
    """

    def __init__(self, device: Device) -> None:
        processors = device.processors.values()
        self.names = list(device.processors)
        self.kinds = [own.spec.kind for own in processors]
        masks = [device.arbiter.mask(own.spec.resources) for own in processors]
        every = 0
        for mask, own in zip(masks, processors, strict=True):
            every |= mask if own.spec.memory == HOST else 0
        self.masks = [*masks, every, 0, 0]
        self.in_turn, self.at_once, self.jointly = range(len(masks), len(self.masks))


@dataclass(eq=False)
class Member:
    """A session among the others. Everything but ``fits``, ``executor`` and ``outputs`` is asked with the queue's lock.

    Attributes:
        plans: who answers it.
        where: the device's processors.
        executors: by processor, where it is spread.
        parts: its runs in a round of the joint plan that the policy follows; empty where there is none.
        stats: what became of its jobs.
        network: what policies know of it.
    """

    plans: Plans
    where: Where
    executors: dict[int, Executor] = field(default_factory=dict)
    parts: Sequence[Part] = ()
    stats: JobStats = field(default_factory=JobStats)
    network: Network = field(init=False)

    def __post_init__(self) -> None:
        self.network = Network(self.plans.name, 1, len(self.where.masks), {})
        self.network.in_flight = self.plans.options.in_flight

    def look(self) -> None:
        """See who answers where the session is not spread: what holds its cores by segments begins at once."""
        if self.executors:
            return
        network, last, where = self.network, self.plans.last, self.where
        program = None if last is None else last.executor.program
        by_segments = program is not None and (len(program.segments) > 1 or not program.on_host)
        here, other = (where.at_once, where.in_turn) if by_segments else (where.in_turn, where.at_once)
        if not network.runs_on(here):
            known = None if last is None else last.quiet_us.get(last.current)
            network.set((0, 0, here), round(known * 1e3) if known else GUESS_NS)
            network.forget(other)
            if not known:
                network.assumed.add(here)

    def spread(self, groups: Mapping[str, Group], in_flight: int) -> Collection[Executor]:
        """Have runs go to these core groups, by processor; what ran them before."""
        before, network = self.executors, self.network
        for index in (*before, self.where.in_turn, self.where.at_once):
            network.forget(index)
        alike: dict[str, list[int]] = {}
        self.executors = {}
        for name, group in groups.items():
            index = self.where.names.index(name)
            same = alike.setdefault(self.where.kinds[index], [])
            same.append(index)
            network.alike[index] = same
            network.border_ns[index] = round(group.border_us * 1e3)
            network.set((0, 0, index), round(group.us * 1e3))
            self.executors[index] = group.executor
        network.in_flight = in_flight
        return before.values()

    def lose(self, failed: Executor) -> None:
        """Leave out a core group that has failed."""
        for index in [index for index, other in self.executors.items() if other is failed]:
            del self.executors[index]
            self.network.forget(index)
            self.look()

    def planned(self) -> list[PlannedRun]:
        """Its runs as a policy follows them. A part is no processor of which its network knows: the plan chooses it."""
        return [PlannedRun(one.release_ns, one.start_ns, one.finish_ns, self.where.jointly) for one in self.parts]

    def fits(self, inputs: Feed) -> bool:
        """Whether inputs are those that its core groups and parts were made for; looks at floats, so without a lock."""
        if not self.executors and not self.parts:
            return False
        every = (*self.executors.values(), *(part.executor for part in self.parts))
        own = {(one.program.model, one.program.trusting): one for one in every}  # those of one model take the same
        return self.plans.at(inputs) is not None and all(one.takes(inputs) for one in own.values())

    def executor(self, dispatch: Dispatch) -> Executor | None:
        """What a policy chose to compute a run; None where whoever answers the session does."""
        if dispatch.processor == self.where.jointly:
            run, parts = dispatch.request.run, self.parts
            return parts[run].executor if run < len(parts) else None
        return self.executors.get(dispatch.processor)

    def outputs(
        self, job: Job, dispatch: Dispatch, executor: Executor | None, hold: Hold, *, by_start: bool
    ) -> tuple[dict[str, Any], int | None]:
        """What a run computes, and the nanoseconds that it waited for others' segments; None where what it took says
        nothing. ``by_start`` is as of ``Policy``.
        """
        jointly = dispatch.processor == self.where.jointly
        if executor is None or jointly:
            hold.give_back()  # whoever answers may be several, one after the other
        if executor is not None:
            turn = Turn(dispatch.key, by_start, job.wanted, None if jointly else hold)
            outputs, trace = executor.run(job.inputs, timeout_s=job.timeout_s, turn=turn)
            if trace.ordinary:
                masks, where = self.where.masks, dispatch.processor
                there = (one for one in (*self.executors,) if masks[one] == hold.mask.value)
                job.where = JOINTLY if jointly else self.where.names[next(there, where)]
                return dict(outputs), None if trace.beside else round(trace.waited_us * 1e3)
            hold.give_back()
        turn = Turn(dispatch.key, by_start, job.wanted)
        chosen = dispatch.processor in (self.where.in_turn, self.where.at_once)
        return self.plans.run(job.inputs, timeout_s=job.timeout_s, turn=turn), 0 if chosen else None

    def note_deadline(self, *, missed: bool) -> None:
        """Have the planner told how a network keeps deadlines: by the joint plan that is followed, else by its own."""
        told = self.parts[0] if self.parts else self.plans.last
        sample = None if told is None else told.sample
        if sample is not None:
            sample.missed.append(missed)
