"""A known set of networks that run together: one plan for all of them.

Asked for at once they are one program (``UnitedModel``): its segments follow the plan's order over one set of lanes,
and on a GPU they are one launch. Where a policy has jobs follow the plan, each is asked for at a time of its own, and
each run in a round is a program of its own. What the plan cannot answer the sessions answer as jobs, by the policy.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from agent_sdk.closing import Closes
from agent_sdk.errors import DeviceClosedError, InputError, UnplannableError
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.journey.plans import Feed, Plans
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import FAILURES
from agent_sdk.machine.timing import timed
from agent_sdk.model.united import UnitedModel
from agent_sdk.scheduling.job import Job
from agent_sdk.scheduling.jobs import Jobs
from agent_sdk.scheduling.parts import Part, open_parts, open_whole
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


class Together(Closes, Forks):
    """Sessions that run together; made by ``Agent.together``. May be used from any number of threads.

    Args:
        members: the sessions.
        reply: the plan of all of them.
        services: of the agent.
        jobs: the agent's queue, where the runs go that the plan does not answer.

    Attributes:
        plan: of all of them.
        whole: what computes a run of each as one program.
        joint_us: what a run of the plan takes, microseconds; the median.
        apart_us: what the sessions take as jobs, as the agent's policy has them run.

    Raises ProcessorError where the plan cannot run here, or answers otherwise than the networks' files.
    """

    def __init__(
        self,
        members: Sequence[Participant],
        reply: PlanReply,
        services: Services,
        jobs: Jobs,
    ) -> None:
        plan = self.plan = reply.plan
        self._members, self._services, self._jobs = members, services, jobs
        self._sample = None if services.field is None else services.field.follow(reply)
        self._closed = False
        self._notes: list[str] = []
        self._failure = ""
        left = list(range(len(plan.jobs)))
        self._own: list[list[int]] = []
        for member in members:
            self._own.append(_runs_of(plan, left, member))
            left = [job for job in left if job not in self._own[-1]]
        self._lock = threading.Lock()
        self._opened = ExitStack()
        self._runs: list[list[Part]] = []
        watch_forks(self)
        prepared = [member.prepared for member in members]
        feeds = [one.drawn.tried[0] for one in prepared]
        joint, apart = [], []
        with ExitStack() as opening:
            opening.callback(self.close)
            first = [own[0] for own in self._own]
            self.whole = self._opened.enter_context(open_whole(plan, first, prepared, services))
            for _ in range(ROUNDS):
                joint.append(timed(lambda: self._planned(feeds))[0])
                apart.append(timed(lambda: self._apart(feeds))[0])
            opening.pop_all()
        self.joint_us, self.apart_us = statistics.median(joint), statistics.median(apart)
        if hosts := self.whole.program.halved_to:
            self._notes.append(
                f"float32 crosses to and from {', '.join(hosts)} as float16, as that host's entry allows"
            )
        if plan.lateness_us is not None and plan.lateness_us > 0:
            self._notes.append(f"the plan misses a deadline by {plan.lateness_us / 1e3:.2f} ms: the policy decides")
        elif not self.faster:
            self._notes.append(
                f"the plan takes {self.joint_us / 1e3:.2f} ms, the sessions as jobs {self.apart_us / 1e3:.2f} ms: "
                "these answer"
            )

    @classmethod
    def planned(cls, members: Sequence[Participant], services: Services, jobs: Jobs, wait_s: float | None) -> Together:
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
        return cls(members, services.supplier.joint(request, wait_s).reply, services, jobs)

    @property
    def notes(self) -> list[str]:
        """What was not as it should be; of runs that failed the latest."""
        return [*self._notes, *filter(None, [self._failure])]

    @property
    def faster(self) -> bool:
        """Whether the plan is, and keeps its deadlines: then it answers."""
        return self.joint_us < self.apart_us and (self.plan.lateness_us or 0.0) <= 0.0

    @property
    def runs(self) -> list[list[Part]]:
        """Each session's in a round of the plan, compiled when they are first asked for, also where it does not answer.

        Raises ProcessorError where one cannot run here, UnplannableError where memory has no room, DeviceClosedError
        once this is closed.
        """
        with self._lock:  # what is compiled while another thread closes this is closed too
            if self._closed:
                raise DeviceClosedError(CLOSED)
            if not self._runs:
                self._runs = self._compiled()
            return self._runs

    def _compiled(self) -> list[list[Part]]:
        found: list[list[Part]] = []
        with ExitStack() as opening:
            for member, own in zip(self._members, self._own, strict=True):
                parts = open_parts(self.plan, own, member.prepared, self._services, self._sample)
                for executor in {part.executor for part in parts}:
                    opening.enter_context(executor)
                found.append(parts)
            self._opened.push(opening.pop_all())
        return found

    @property
    def parts(self) -> dict[Plans, list[Part]]:
        """Each session's runs in a round, for a policy that follows the plan; nothing where it does not answer.

        Raises like ``runs``.
        """
        found: dict[Plans, list[Part]] = {}
        for member, own in zip(self._members, self.runs, strict=True) if self.faster else ():
            found[member.plans] = sorted([*found.get(member.plans, []), *own], key=lambda part: part.release_ns)
        return found

    def run(self, *feeds: Feed) -> list[dict[str, Any]]:
        """Compute all of them, of an input each, in the order of the sessions. Raises like ``Session.run``."""
        if self._closed:
            raise DeviceClosedError(CLOSED)
        if len(feeds) != len(self._members):
            raise InputError(f"{len(self._members)} networks run together, of an input each, not {len(feeds)}")
        feeds = tuple(map(on_host, feeds))
        asked = zip(self._members, feeds, strict=True)
        fits = all(member.plans.taking(feed) is not None for member, feed in asked)
        if not (fits and self.faster and self.whole.takes(self._model.feed(feeds))):  # the mix is not as planned
            return self._apart(feeds)
        try:
            answers = self._planned(feeds)
        except FAILURES as error:
            self._failure = f"the plan of all failed ({error}); the sessions answer as jobs"
            answers = []
        return answers or self._apart(feeds)

    @property
    def _model(self) -> UnitedModel:
        model = self.whole.program.model
        assert isinstance(model, UnitedModel)
        return model

    def _planned(self, feeds: Sequence[Feed]) -> list[dict[str, Any]]:
        """What the plan computes; nothing where that is not to be believed."""
        outputs, trace = self.whole.run(self._model.feed(feeds))
        return self._model.answers(outputs) if trace.ordinary else []

    def _apart(self, feeds: Sequence[Feed]) -> list[dict[str, Any]]:
        asked: list[Job] = []
        try:
            for one, feed in zip(self._members, feeds, strict=True):
                asked.append(self._jobs.submit(one.plans, feed))
            return [job.result() for job in asked]
        finally:
            for job in asked:  # nothing of it goes on behind a caller that one of them has failed
                job.cancel()

    def close(self) -> None:
        """Free what the plan runs on; the sessions stay. Idempotent."""
        with self._lock:
            self._closed = True
            self._opened.close()


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
