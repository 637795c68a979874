"""A known set of networks that run together: one plan for all of them, followed by keys at the arbiter.

Each network's part of the plan is a program of its own. A run of the set begins at one epoch, and a segment stands at
the arbiter by epoch + planned start: who is late goes behind nobody whom the plan has later, and no network waits for
another where the plan shares nothing. What the plan cannot answer the sessions answer as jobs, by the agent's policy.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from time import perf_counter_ns
from typing import Any, Final

from agent_sdk.closing import Closes
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.trace import Trace
from agent_sdk.engine.turn import Turn
from agent_sdk.errors import DeviceClosedError, ExecutionError, InputError, ProcessorError, UnplannableError
from agent_sdk.journey.catalogue import Plans
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.preparing import Feed
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import FAILURES, warm
from agent_sdk.journey.verify import agreement
from agent_sdk.scheduling.jobs import Jobs
from hope_schema import Job as PlannedNetwork
from hope_schema import Plan, PlanRequest

ROUNDS: Final = 5
"""Runs by which the plan is compared with one network after the other."""


def part_of(plan: Plan, job: int) -> Plan:
    """One network's part of a plan of several, with the times that it has there."""
    steps = tuple(step.model_copy(update={"job": 0}) for step in plan.steps if step.job == job)
    own = {step.id for step in steps}
    return plan.model_copy(
        update={
            "jobs": (plan.jobs[job],),
            "steps": steps,
            "order": tuple(step for step in plan.order if step in own),
            "transfers": tuple(move.model_copy(update={"job": 0}) for move in plan.transfers if move.job == job),
        }
    )


class Together(Closes):
    """Sessions that run together; made by ``Agent.together``. May be used from any number of threads.

    Args:
        members: who answers the sessions, and what each is prepared for.
        plan: of all of them.
        services: of the agent.
        device: runs them.
        jobs: the agent's queue, where the runs go that the plan does not answer.

    Attributes:
        plan: of all of them.
        joint_us: what a run of the plan takes, microseconds; the median.
        apart_us: what the sessions take as jobs, as the agent's policy has them run.
        notes: what was not as it should be.

    Raises ProcessorError where the plan cannot run here, or answers otherwise than the networks' files.
    """

    def __init__(
        self,
        members: Sequence[tuple[Plans, Prepared]],
        plan: Plan,
        services: Services,
        device: Device,
        jobs: Jobs,
    ) -> None:
        self.plan, self._device, self._jobs = plan, device, jobs
        self._closed = False
        self.notes: list[str] = []
        self._members = [plans for plans, _ in members]
        self._executors: list[Executor] = []
        self._threads = ThreadPoolExecutor(len(members), thread_name_prefix="hope-together")
        left = list(range(len(plan.jobs)))
        with ExitStack() as opened:
            opened.callback(self.close)
            for _, prepared in members:
                job = next(one for one in left if plan.jobs[one].model_hash == prepared.model.graph.model_hash)
                left.remove(job)
                self._executors.append(_opened(part_of(plan, job), prepared, services, device))
            feeds = [prepared.drawn.tried[0] for _, prepared in members]
            joint, apart = [], []
            for _ in range(ROUNDS):
                joint.append(_took(lambda: self._planned(feeds)))
                apart.append(_took(lambda: self._apart(feeds)))
            opened.pop_all()
        self.joint_us, self.apart_us = statistics.median(joint), statistics.median(apart)
        if not self.faster:
            self.notes.append(
                f"the plan takes {self.joint_us / 1e3:.2f} ms, the sessions as jobs {self.apart_us / 1e3:.2f} ms: "
                "these answer"
            )

    @classmethod
    def planned(
        cls,
        members: Sequence[tuple[Plans, Prepared]],
        services: Services,
        device: Device,
        jobs: Jobs,
        wait_s: float | None,
    ) -> Together:
        """Have one plan made in which the last network ends soonest. Raises like ``Agent.together``."""
        if len(members) < 2:
            raise InputError("it takes two sessions or more to run together")
        for _, prepared in members:
            if prepared.obtained.served is None or prepared.serving.pinned:
                raise UnplannableError(f"'{prepared.model.name}' has no plan that may answer with those of others")
        hashes = [prepared.model.graph.model_hash for _, prepared in members]
        wanted = tuple(PlannedNetwork(model_hash=one) for one in hashes)
        alone = services.obtainer.request(hashes[0])
        request = PlanRequest.model_validate({**dict(alone), "jobs": wanted, "objective": "makespan"})
        plan = services.obtainer.supplier.joint(request, wait_s).reply.plan
        return cls(members, plan, services, device, jobs)

    @property
    def faster(self) -> bool:
        """Whether the plan is, and answers."""
        return self.joint_us < self.apart_us

    @property
    def parts(self) -> dict[Plans, Executor]:
        """Who computes each session's part, for a policy that follows the plan; nothing where it is not faster."""
        return dict(zip(self._members, self._executors, strict=True)) if self.faster else {}

    def run(self, *feeds: Feed) -> list[dict[str, Any]]:
        """Compute all of them, of an input each, in the order of the sessions. Raises like ``Session.run``."""
        self._device.refuse_when_forked()  # the threads have stayed with the parent
        if self._closed:
            raise DeviceClosedError("what ran these networks together is closed; the sessions are not")
        if len(feeds) != len(self._members):
            raise InputError(f"{len(self._members)} networks run together, of an input each, not {len(feeds)}")
        fits = all(plans.at(feed) is not None for plans, feed in zip(self._members, feeds, strict=True))
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
        turn = Turn(perf_counter_ns(), lambda program: program.starts_ns)

        def one(index: int) -> tuple[dict[str, Any], Trace]:
            executor = self._executors[index]
            return executor.run(feeds[index], turn=turn)

        others = [self._threads.submit(one, index) for index in range(1, len(feeds))]
        try:
            answers = [one(0), *(other.result() for other in others)]
            return [outputs for outputs, _ in answers] if all(trace.ordinary for _, trace in answers) else []
        finally:
            for other in others:  # nothing of it goes on behind the caller
                with suppress(BaseException):
                    other.result()

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
            for executor in self._executors:
                closing.callback(executor.close)


def _opened(plan: Plan, prepared: Prepared, services: Services, device: Device) -> Executor:
    """One network's part, compiled and judged by the network's file."""
    feed = prepared.drawn.tried[0]
    fit: Mapping[str, Any] = services.fit_for(prepared.model, prepared.drawn.tried).processors
    services.first_runs.at_plan(prepared.model, plan, prepared.drawn.tried)
    executor = Executor(build_program(plan, prepared.model, fit), device)
    answers, failures = warm({"plan": executor}, feed)
    right = prepared.reference.outputs(feed)
    found = agreement(prepared.model, {"plan": executor}, answers, feed, right, prepared.reference)
    wrong = {**failures, **found.wrong}
    if wrong:
        with suppress(ExecutionError):
            executor.close()
        raise ProcessorError(f"the plan of several networks is not used: {wrong['plan']}") from wrong["plan"]
    return executor


def _took(run: Any) -> float:
    began = perf_counter_ns()
    run()
    return (perf_counter_ns() - began) / 1e3
