"""A known set of networks that run together: one plan for all of them, followed by keys at the arbiter.

Each run of a network in the plan is a program of its own. A round of the plan begins at one epoch, and a segment stands
at the arbiter by epoch + planned start: who is late goes behind nobody whom the plan has later, and no network waits
for another where the plan shares nothing. On a GPU a round in which all are asked for at once is one program, and so
one launch. What the plan cannot answer the sessions answer as jobs, by the policy.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from agent_sdk.closing import Closes
from agent_sdk.engine import Device, Executor
from agent_sdk.engine.trace import Trace
from agent_sdk.engine.turn import Turn
from agent_sdk.errors import DeviceClosedError, InputError, ProcessorError, UnplannableError
from agent_sdk.journey.plans import Feed, Plans
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import FAILURES
from agent_sdk.machine.timing import timed
from agent_sdk.model.united import UnitedModel
from agent_sdk.scheduling.jobs import Jobs
from agent_sdk.scheduling.parts import Part, joins, open_parts, open_whole
from agent_sdk.scheduling.rounds import Rate
from agent_sdk.tensors import on_host
from hope_schema import Job as PlannedNetwork
from hope_schema import Plan, PlanReply, PlanRequest

CLOSED: Final = "what ran these networks together is closed; the sessions are not"
ROUNDS: Final = 5
"""Runs by which the plan is compared with one network after the other."""


class Participant(NamedTuple):
    """A session of the set: who answers it, what it is prepared for, and how often it is asked for if that is known."""

    plans: Plans
    prepared: Prepared
    rate: Rate | None = None


class Together(Closes):
    """Sessions that run together; made by ``Agent.together``. May be used from any number of threads.

    Args:
        members: the sessions.
        reply: the plan of all of them.
        services: of the agent.
        device: runs them.
        jobs: the agent's queue, where the runs go that the plan does not answer.

    Attributes:
        plan: of all of them.
        runs: each session's in a round of it, also where it does not answer.
        whole: what computes a round as one program; None where its parts do.
        joint_us: what a run of the plan takes, microseconds; the median.
        apart_us: what the sessions take as jobs, as the agent's policy has them run.
        notes: what was not as it should be.

    Raises ProcessorError where the plan cannot run here, or answers otherwise than the networks' files.
    """

    def __init__(
        self,
        members: Sequence[Participant],
        reply: PlanReply,
        services: Services,
        device: Device,
        jobs: Jobs,
    ) -> None:
        plan = self.plan = reply.plan
        self._device, self._jobs = device, jobs
        sample = None if services.field is None else services.field.follow(reply)
        self._closed = False
        self.notes: list[str] = []
        self._members = [member.plans for member in members]
        self.runs: list[list[Part]] = []
        self.whole: Executor | None = None
        self._threads = ThreadPoolExecutor(len(members), thread_name_prefix="hope-together")
        left = list(range(len(plan.jobs)))
        feeds = [member.prepared.drawn.tried[0] for member in members]
        first: list[int] = []
        with ExitStack() as opened:
            opened.callback(self.close)
            for member in members:
                own = _runs_of(plan, left, member)
                first.append(own[0])
                left = [job for job in left if job not in own]
                self.runs.append(open_parts(plan, own, member.prepared, services, device, sample))
            if joins(plan, self.runs):
                try:
                    self.whole = open_whole(plan, first, self.runs, feeds, device)
                except ProcessorError as error:
                    self.notes.append(f"each network is launched by itself: {error}")
            joint, apart = [], []
            for _ in range(ROUNDS):
                joint.append(timed(lambda: self._planned(feeds))[0])
                apart.append(timed(lambda: self._apart(feeds))[0])
            opened.pop_all()
        self.joint_us, self.apart_us = statistics.median(joint), statistics.median(apart)
        if plan.lateness_us is not None and plan.lateness_us > 0:
            self.notes.append(f"the plan misses a deadline by {plan.lateness_us / 1e3:.2f} ms: the policy decides")
        elif not self.faster:
            self.notes.append(
                f"the plan takes {self.joint_us / 1e3:.2f} ms, the sessions as jobs {self.apart_us / 1e3:.2f} ms: "
                "these answer"
            )

    @classmethod
    def planned(
        cls, members: Sequence[Participant], services: Services, device: Device, jobs: Jobs, wait_s: float | None
    ) -> Together:
        """Have one plan made: where rates are known of a whole round in which the latest run is as early as it can be,
        else of one run of each, of which the last ends soonest. Raises like ``Agent.together``.
        """
        if len(members) < 2:
            raise InputError("it takes two sessions or more to run together")
        for _, prepared, _ in members:
            if prepared.obtained.served is None or prepared.pinned:
                raise UnplannableError(f"'{prepared.model.name}' has no plan that may answer with those of others")
        wanted = tuple(
            PlannedNetwork(
                model_hash=member.prepared.model.graph.model_hash, **(member.rate._asdict() if member.rate else {})
            )
            for member in members
        )
        alone = services.request(wanted[0].model_hash)
        objective = "makespan" if members[0].rate is None else "lateness"
        request = PlanRequest.model_validate({**dict(alone), "jobs": wanted, "objective": objective})
        return cls(members, services.supplier.joint(request, wait_s).reply, services, device, jobs)

    @property
    def faster(self) -> bool:
        """Whether the plan is, and keeps its deadlines: then it answers."""
        return self.joint_us < self.apart_us and (self.plan.lateness_us or 0.0) <= 0.0

    @property
    def parts(self) -> dict[Plans, list[Part]]:
        """Each session's runs in a round, for a policy that follows the plan; nothing where it does not answer."""
        found: dict[Plans, list[Part]] = {}
        for plans, own in zip(self._members, self.runs, strict=True) if self.faster else ():
            found[plans] = sorted([*found.get(plans, []), *own], key=lambda part: part.release_ns)
        return found

    def run(self, *feeds: Feed) -> list[dict[str, Any]]:
        """Compute all of them, of an input each, in the order of the sessions. Raises like ``Session.run``."""
        self._device.refuse_when_forked()  # the threads have stayed with the parent
        if self._closed:
            raise DeviceClosedError(CLOSED)
        if len(feeds) != len(self._members):
            raise InputError(f"{len(self._members)} networks run together, of an input each, not {len(feeds)}")
        feeds = tuple(map(on_host, feeds))
        asked = zip(self._members, self.runs, feeds, strict=True)
        fits = all(plans.taking(feed) is not None and own[0].executor.takes(feed) for plans, own, feed in asked)
        if not fits or not self.faster:  # the mix is not as planned
            return self._apart(feeds)
        try:
            answers = self._planned(feeds)
        except FAILURES as error:
            note = f"the plan of all failed ({error}); the sessions answer as jobs"
            self.notes += [note] if note not in self.notes else []
            answers = []
        return answers or self._apart(feeds)

    def _planned(self, feeds: Sequence[Feed]) -> list[dict[str, Any]]:
        """What the plan computes; nothing where that is not to be believed."""
        epoch_ns = perf_counter_ns()
        if self.whole is not None:
            model = self.whole.program.model
            assert isinstance(model, UnitedModel)
            turn = Turn(epoch_ns, lambda program: program.starts_ns)
            outputs, trace = self.whole.run(model.feed(feeds), turn=turn)
            return model.answers(outputs) if trace.ordinary else []

        def one(index: int) -> tuple[dict[str, Any], Trace]:
            part = self.runs[index][0]
            turn = Turn(epoch_ns + part.start_ns, lambda program: program.starts_ns)
            return part.executor.run(feeds[index], turn=turn)

        others: list[Future[tuple[dict[str, Any], Trace]]] = []
        try:
            for index in range(1, len(feeds)):
                try:
                    others.append(self._threads.submit(one, index))
                except RuntimeError as error:  # it was closed since the run began
                    raise DeviceClosedError(CLOSED) from error
            answers = [one(0), *(other.result() for other in others)]
            return [outputs for outputs, _ in answers] if all(trace.ordinary for _, trace in answers) else []
        finally:
            wait(others)  # nothing of it goes on behind the caller

    def _apart(self, feeds: Sequence[Feed]) -> list[dict[str, Any]]:
        asked = [self._jobs.submit(plans, feed) for plans, feed in zip(self._members, feeds, strict=True)]
        try:
            return [job.result() for job in asked]
        finally:
            for job in asked:  # nothing of it goes on behind a caller that one of them has failed
                job.cancel()

    def close(self) -> None:
        """Free what the plan runs on; the sessions stay. Idempotent."""
        self._closed = True
        self._threads.shutdown(wait=True)
        with ExitStack() as closing:
            whole = () if self.whole is None else (self.whole,)
            for executor in {*whole, *(part.executor for own in self.runs for part in own)}:
                closing.callback(executor.close)


def _runs_of(plan: Plan, left: Sequence[int], member: Participant) -> list[int]:
    """A session's runs among those of a plan that are left; of one network there may be several sessions."""
    model, rate = member.prepared.model.graph.model_hash, member.rate

    def is_own(job: int) -> bool:
        run = plan.jobs[job]
        if run.model_hash != model or rate is None:
            return run.model_hash == model
        return run.period_us == rate.period_us and run.deadline_us == rate.deadline_us + run.run * rate.period_us

    own = [job for job in left if is_own(job)]
    numbers = [plan.jobs[job].run for job in own]
    return [job for at, job in enumerate(own) if numbers.index(numbers[at]) == at]
